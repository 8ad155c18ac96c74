package event

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// ErrRecord is returned for bytes that are not a record of the Layout.
var ErrRecord = errors.New("malformed record")

// Record is a decoded record.
type Record struct {
	Moment  Moment
	CPL     uint8     // 0 or 3
	IRQsOff bool      // RFLAGS.IF was clear
	Addr    guest.GVA // the probed address; for a return probe the function's, for a watch the instruction's
	Ret     guest.GVA // AtReturn: the address returned to
	// Duration, for AtReturn, is the time between entry and return in nanoseconds on
	// the hub's clock, including traps and handlers.
	Duration int64
	HasTask  bool        // PID and Comm are known
	PID      int32       // task id
	Comm     string      // task name, as the guest has it
	Regs     *probe.Regs // nil unless requested by Options.Regs
	Stack    []guest.GVA // the address of the code, and the return address of each caller; nil unless requested by Options.Stack
	Values   []Value
}

// Decode reads a record made by f's program. It copies what it needs from rec.
func (f *Layout) Decode(rec []byte) (*Record, error) {
	if len(rec) < recordHeader {
		return nil, fmt.Errorf("decode %s: %w", f.def.Name(), ErrRecord)
	}
	if markMoment(le.Uint32(rec[RecordMark:])) == AtPost && f.Moment != AtPost {
		f = f.Post()
	}
	if len(rec) < f.Dynamic || markMoment(le.Uint32(rec[RecordMark:])) != f.Moment {
		return nil, fmt.Errorf("decode %s: %w", f.def.Name(), ErrRecord)
	}
	r := &Record{
		Moment: f.Moment, CPL: rec[RecordCS] & 3, IRQsOff: le.Uint16(rec[RecordFlags:])&x86.FlagIF == 0, Addr: f.addr,
	}
	if f.Entered != 0 {
		r.Ret = guest.GVA(le.Uint64(rec[f.Ret:]))
		r.Duration = int64(le.Uint64(rec[RecordTime:]) - le.Uint64(rec[f.Entered:]))
	}
	if f.Place != 0 {
		r.Addr = guest.GVA(le.Uint64(rec[f.Place:]))
	}
	if f.Comm != 0 {
		r.PID = int32(le.Uint32(rec[RecordPID:]))
		name, _, _ := bytes.Cut(rec[f.Comm:f.Comm+CommSize], []byte{0})
		r.Comm = string(name)
		r.HasTask = r.Comm != "" || r.PID != 0
	}
	if f.Regs != 0 {
		regs := getRegs(rec[f.Regs:])
		r.Regs = &regs
	}
	if f.Stack != 0 {
		for at := f.Stack; at < f.Stack+8*StackDepth; at += 8 {
			pc := le.Uint64(rec[at:])
			if pc == 0 {
				break
			}
			r.Stack = append(r.Stack, guest.GVA(pc))
		}
	}
	for i := range f.Fields {
		v, err := f.Fields[i].value(rec, rec[RecordStatus+i], f.names)
		if err != nil {
			return nil, fmt.Errorf("decode %s %s: %w", f.def.Name(), v.Name, err)
		}
		r.Values = append(r.Values, v)
	}
	return r, nil
}

// value reads one field.
func (x *Field) value(rec []byte, status byte, names Names) (Value, error) {
	n := x.Elements()
	v := Value{Name: x.Name, Type: x.Type, Data: make([]Datum, n)}
	for j := range v.Data {
		d, at := &v.Data[j], x.Offset+j*x.Size
		if x.Type.HasText() {
			loc := le.Uint32(rec[at:])
			off, size := int(loc&0xffff), int(loc>>16)
			switch {
			case size == 0:
				d.Fault = true
			case off+size > len(rec) || rec[off+size-1] != 0:
				return v, ErrRecord
			default:
				d.Text = string(rec[off : off+size-1])
				d.Cut = status&StatusCut != 0
			}
			continue
		}
		if j >= n-int(status&statusFaults) {
			d.Fault = true
			continue
		}
		d.Bits = getSized(rec[at : at+x.Size])
		if x.Type.Format == Symbol || x.Type.Format == SymStr {
			d.Text = symbolText(guest.GVA(d.Bits), names)
		}
	}
	return v, nil
}

// symbolText returns name+0xoff/0xsize, or "" where no symbol covers addr.
func symbolText(addr guest.GVA, names Names) string {
	s, ok := names.Find(addr)
	if !ok {
		return ""
	}
	return string(appendSymbolOffset(nil, s, addr))
}

func appendSymbolOffset(b []byte, s guest.Symbol, addr guest.GVA) []byte {
	b = strconv.AppendUint(append(append(b, guest.ShownName(s.Name)...), "+0x"...), uint64(addr-s.Addr), 16)
	return strconv.AppendUint(append(b, "/0x"...), s.Size, 16)
}
