package event

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// ErrRecord is returned for bytes that are not a record of the Fetcher.
var ErrRecord = errors.New("malformed record")

// Record is a decoded record.
type Record struct {
	Stage   Stage
	CPL     uint8     // 0 or 3
	IRQsOff bool      // RFLAGS.IF was clear
	Addr    guest.GVA // the probed address; of a return probe the function's
	Ret     guest.GVA // StageReturn: the address returned to
	// Duration is, of StageReturn, the time between entry and return in
	// nanoseconds on the hub's clock, traps and handlers included.
	Duration int64
	HasTask  bool        // PID and Comm are known
	PID      int32       // task id
	Comm     string      // task name, as the guest has it
	Regs     *probe.Regs // nil unless asked for by Options.Regs
	Values   []Value
}

// Decode reads a record that f captured. It copies what it needs from rec.
func (f *Fetcher) Decode(rec []byte) (*Record, error) {
	if len(rec) < entryArgs || rec[0] > byte(StageReturn) {
		return nil, fmt.Errorf("decode %s: %w", f.def.Name(), ErrRecord)
	}
	r := &Record{Stage: Stage(rec[0]), CPL: rec[1], IRQsOff: rec[2]&flagIRQsOff != 0, Addr: guest.GVA(le.Uint64(rec[8:]))}
	at := entryArgs
	if r.Stage != StagePost {
		at = f.status + len(f.ops)
	}
	end := at
	if f.profile != nil {
		end += CommSize
	}
	if f.regs != 0 {
		end += regsSize
	}
	if r.Stage == StageReturn {
		end += 8
	}
	if len(rec) < end || (r.Stage == StageReturn) != (f.args == returnArgs) && r.Stage != StagePost {
		return nil, fmt.Errorf("decode %s: %w", f.def.Name(), ErrRecord)
	}
	if f.profile != nil {
		r.PID = int32(le.Uint32(rec[4:]))
		r.Comm = string(commText(rec[at : at+CommSize]))
		r.HasTask = r.Comm != "" || r.PID != 0
		at += CommSize
	}
	if f.regs != 0 {
		regs := getRegs(rec[at:])
		r.Regs = &regs
	}
	if r.Stage == StagePost {
		return r, nil
	}
	if r.Stage == StageReturn {
		r.Ret = guest.GVA(le.Uint64(rec[16:]))
		r.Duration = int64(le.Uint64(rec[f.duration:]))
	}
	for i := range f.ops {
		v, err := f.value(i, rec)
		if err != nil {
			return nil, err
		}
		r.Values = append(r.Values, v)
	}
	return r, nil
}

// value decodes the argument with index i.
func (f *Fetcher) value(i int, rec []byte) (Value, error) {
	o, a, status := &f.ops[i], &f.types[i], rec[f.status+i]
	n := max(1, o.count)
	v := Value{Name: a.Name, Type: a.Type, Data: make([]Datum, n)}
	for j := range v.Data {
		d, at := &v.Data[j], o.off+j*o.size
		if a.Type.hasText() {
			loc := le.Uint32(rec[at:])
			off, size := int(loc&0xffff), int(loc>>16)
			switch {
			case size == 0:
				d.Fault = true
			case off+size > len(rec) || rec[off+size-1] != 0:
				return v, fmt.Errorf("decode %s %s: %w", f.def.Name(), a.Name, ErrRecord)
			default:
				d.Text = string(rec[off : off+size-1])
				d.Cut = status&statusCut != 0
			}
			continue
		}
		if j >= n-int(status&statusFaults) {
			d.Fault = true
			continue
		}
		d.Bits = getSized(rec[at : at+o.size])
		if a.Type.Format == Symbol || a.Type.Format == SymStr {
			d.Text = f.symbolText(guest.GVA(d.Bits))
		}
	}
	return v, nil
}

// symbolText returns name+0xoff/0xsize, or "" where no symbol covers addr.
func (f *Fetcher) symbolText(addr guest.GVA) string {
	s, ok := f.symbols.Find(addr)
	if !ok {
		return ""
	}
	return string(appendSymbolOffset(nil, s, addr))
}

func appendSymbolOffset(b []byte, s guest.Symbol, addr guest.GVA) []byte {
	b = strconv.AppendUint(append(append(b, s.Name...), "+0x"...), uint64(addr-s.Addr), 16)
	return strconv.AppendUint(append(b, "/0x"...), s.Size, 16)
}
