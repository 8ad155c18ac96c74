package timeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Record is a record of a trace. At most one of the pointers is set. None is set
// for a type that readers of traces can ignore.
type Record struct {
	api.Record // as it was read, or is to be written

	Start *api.Start
	Hit   *api.Hit
	Boot  *api.Boot
	Stop  *api.Stop
	Lost  *api.Lost
	Map   *api.MapSample
	End   *api.End
}

// Parse reads the data of a record.
func Parse(r api.Record) (*Record, error) {
	out := &Record{Record: r}
	var err error
	switch r.Type {
	case api.RecordStart:
		out.Start, err = data[api.Start](r)
	case api.RecordHit:
		if out.Hit, err = api.ReadHit(r.Data); err != nil {
			err = badData(r, err)
			out.readWhole()
			if out.Hit != nil {
				err = nil
			}
		}
	case api.RecordBoot:
		out.Boot, err = data[api.Boot](r)
	case api.RecordStop:
		out.Stop, err = data[api.Stop](r)
	case api.RecordLost:
		out.Lost, err = data[api.Lost](r)
	case api.RecordMap:
		out.Map, err = data[api.MapSample](r)
	case api.RecordEnd:
		out.End, err = data[api.End](r)
	}
	return out, err
}

// readWhole reads the hit of a line with further members after the data, which api.HitData has taken for a part of it.
func (r *Record) readWhole() {
	var whole api.Record
	if json.Unmarshal(slices.Concat([]byte(api.HitPrefix), r.Data, []byte("}")), &whole) != nil || whole.Type != api.RecordHit {
		return
	}
	if h, err := api.ReadHit(whole.Data); err == nil {
		r.Record, r.Hit = whole, h
	}
}

// data decodes the data of a record of a known type.
func data[T any](r api.Record) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(r.Data, v); err != nil {
		return nil, badData(r, err)
	}
	return v, nil
}

// badData returns the error for a record whose data cannot be decoded because of err.
func badData(r api.Record, err error) error {
	if len(r.Data) == 0 {
		return fmt.Errorf("a record of type %q without data", r.Type)
	}
	return fmt.Errorf("a record of type %q: %s", r.Type, api.DecodeText(err))
}

// NewRecord makes a record from its data, which has the type of one of Record's
// pointers.
func NewRecord[T api.Start | api.Hit | api.Boot | api.Stop | api.Lost | api.MapSample | api.End](v T) *Record {
	r := &Record{}
	if h, ok := any(v).(api.Hit); ok {
		r.Data = api.AppendHit(nil, &h)
	} else if b, err := json.Marshal(v); err != nil { // these types can always be encoded as JSON
		panic("BUG: marshal a record: " + err.Error())
	} else {
		r.Data = b
	}
	switch v := any(v).(type) {
	case api.Start:
		r.Type, r.Start = api.RecordStart, &v
	case api.Hit:
		r.Type, r.Hit = api.RecordHit, &v
	case api.Boot:
		r.Type, r.Boot = api.RecordBoot, &v
	case api.Stop:
		r.Type, r.Stop = api.RecordStop, &v
	case api.Lost:
		r.Type, r.Lost = api.RecordLost, &v
	case api.MapSample:
		r.Type, r.Map = api.RecordMap, &v
	case api.End:
		r.Type, r.End = api.RecordEnd, &v
	}
	return r
}

// Limits of a hit's values. No clock, no machine and no name exceeds them. The
// data that is kept of a trace is bounded by the number of names.
const (
	maxTime   = 1 << 58 // nanoseconds: nine years
	maxCPU    = 4095
	maxProbe  = 1 << 10 // bytes of its name
	maxComm   = 1 << 8
	maxSymbol = 1 << 13
	maxFrames = 1 << 10
)

// check rejects a record that guestprobe cannot have written.
func (r *Record) check() error {
	switch {
	case r.Start != nil && (r.Start.TimeNS < 0 || r.Start.TimeNS > maxTime || r.Start.BootNS < 0 || r.Start.BootNS > maxTime):
		return fmt.Errorf("a start at %d ns, of a boot at %d ns", r.Start.TimeNS, r.Start.BootNS)
	case r.Boot != nil && (r.Boot.BootNS < 0 || r.Boot.BootNS > maxTime):
		return fmt.Errorf("a boot at %d ns", r.Boot.BootNS)
	case r.Stop != nil && (r.Stop.TimeNS < 0 || r.Stop.TimeNS > maxTime || r.Stop.CPU < 0 || r.Stop.CPU > maxCPU):
		return fmt.Errorf("a stop at %d ns on vCPU %d", r.Stop.TimeNS, r.Stop.CPU)
	case r.Map != nil && (r.Map.TimeNS < 0 || r.Map.TimeNS > maxTime):
		return fmt.Errorf("a map at %d ns", r.Map.TimeNS)
	case r.Hit == nil:
		return nil
	}
	h := r.Hit
	switch {
	case h.Probe == "" || h.Stage == "":
		return errors.New("a hit of no probe or of no stage")
	case len(h.Probe) > maxProbe || len(h.Stage) > maxComm || len(h.Symbol) > maxSymbol || len(h.RetSymbol) > maxSymbol || h.Task != nil && len(h.Task.Comm) > maxComm:
		return errors.New("a hit with a name that is too long")
	case len(h.Stack) > maxFrames:
		return fmt.Errorf("a stack of %d frames", len(h.Stack))
	case h.TimeNS < 0 || h.TimeNS > maxTime:
		return fmt.Errorf("a hit at %d ns", h.TimeNS)
	case h.CPU < 0 || h.CPU > maxCPU:
		return fmt.Errorf("a hit on vCPU %d", h.CPU)
	case h.DurationNS < 0 || h.DurationNS > maxTime:
		return fmt.Errorf("a return after %d ns", h.DurationNS)
	}
	for _, f := range h.Stack {
		if len(f.Symbol) > maxSymbol || len(f.Name) > maxSymbol || len(f.Source) > maxSymbol {
			return errors.New("a hit with a name that is too long")
		}
	}
	for _, a := range h.Args {
		if len(a.Name) > maxComm {
			return errors.New("a hit with a name that is too long")
		}
	}
	return nil
}
