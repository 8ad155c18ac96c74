package linux

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// ErrNoEvent: the kernel has no event of that name.
var ErrNoEvent = errors.New("the kernel has no such event")

// Event is an event of the kernel's tracing (struct trace_event_call) recorded at a
// tracepoint.
type Event struct {
	System, Name string
	Tracepoint   string

	// Record is the function that records it: its arguments are a struct
	// trace_event_file and the tracepoint's arguments. 0 for an event of a system
	// call.
	Record guest.GVA
	Class  string // its struct is trace_event_raw_CLASS; "" for an event of a system call

	// For an event of a system call: its number, and whether it is the return.
	Call   uint64
	IsExit bool

	Fields []EventField // without the common ones, by offset
}

// EventField is a field of an event's record.
type EventField struct {
	Name   string
	Type   string // in C, as in the kernel
	Offset uint64 // bytes
	Size   uint64 // bytes
	Signed bool
}

// DataLoc returns the element type of a field whose data follows the record's fixed
// part: the low 16 bits of the field are the offset from the record's start, the high
// ones the number of bytes.
func (f *EventField) DataLoc() (elem string, ok bool) {
	elem, ok = strings.CutPrefix(f.Type, "__data_loc ")
	return strings.TrimSuffix(elem, "[]"), ok
}

// String is SYSTEM:NAME.
func (e *Event) String() string { return e.System + ":" + e.Name }

// Bounds on reading the kernel's events.
const (
	maxEvents      = 1 << 14
	maxEventFields = 128
	maxEventText   = 256
)

// eventFields are the fields of the kernel's structures that describe events.
type eventFields struct {
	list, class, tracepoint, data         field // struct trace_event_call
	system, probe, fields                 field // struct trace_event_class
	link, name, typ, offset, size, signed field // struct ftrace_event_field
	point                                 field // struct tracepoint
	number, enter                         field // struct syscall_metadata
	head                                  guest.GVA
}

// events determines how to read the kernel's events.
func (v Tracing) events() (x eventFields, err error) {
	f := &finder{types: v.running.types, lookup: v.Address}
	const feature = "events of tracing"
	f.fields(feature,
		need{&x.list, "trace_event_call.list"}, need{&x.class, "trace_event_call.class"}, need{&x.tracepoint, "trace_event_call.tp"}, need{&x.data, "trace_event_call.data"},
		need{&x.system, "trace_event_class.system"}, need{&x.probe, "trace_event_class.probe"}, need{&x.fields, "trace_event_class.fields"},
		need{&x.link, "ftrace_event_field.link"}, need{&x.name, "ftrace_event_field.name"}, need{&x.typ, "ftrace_event_field.type"},
		need{&x.offset, "ftrace_event_field.offset"}, need{&x.size, "ftrace_event_field.size"}, need{&x.signed, "ftrace_event_field.is_signed"},
		need{&x.point, "tracepoint.name"})
	x.head, _ = f.symbol(feature, "ftrace_events")
	if len(f.missing) > 0 {
		return x, errors.New(f.missing[0])
	}
	f.fields("events of system calls", need{&x.number, "syscall_metadata.syscall_nr"}, need{&x.enter, "syscall_metadata.enter_fields"}) // CONFIG_FTRACE_SYSCALLS
	return x, nil
}

// Events returns the kernel's events that are recorded at tracepoints, and of system
// calls, by name, without their fields. Call it with the guest stopped, or while no
// module is loaded or unloaded.
func (v Tracing) Events() ([]Event, error) {
	x, err := v.events()
	if err != nil {
		return nil, err
	}
	var all []Event
	err = v.forEachEvent(&x, func(e Event, _ guest.GVA, _ guest.GVA) bool {
		all = append(all, e)
		return true
	})
	slices.SortFunc(all, func(a, b Event) int { return strings.Compare(a.String(), b.String()) })
	return all, err
}

// Event finds an event, with its fields. Errors are ErrNoEvent, or say which part of
// the kernel is not known.
func (v Tracing) Event(system, name string) (Event, error) {
	x, err := v.events()
	if err != nil {
		return Event{}, err
	}
	var found Event
	var class, call guest.GVA
	err = v.forEachEvent(&x, func(e Event, of, at guest.GVA) bool {
		if e.System == system && e.Name == name {
			found, class, call = e, of, at
		}
		return found.Name == ""
	})
	switch {
	case err != nil:
		return found, err
	case found.Name == "":
		return found, ErrNoEvent
	}
	found.Fields, err = v.fieldsOf(&x, &found, class, call)
	return found, err
}

// EventsWithFields is Events with the fields of each event whose fields can be read, for listings: Event reads the list up to the event.
func (v Tracing) EventsWithFields() (all []Event, err error) {
	x, err := v.events()
	if err != nil {
		return nil, err
	}
	err = v.forEachEvent(&x, func(e Event, class, at guest.GVA) bool {
		if e.Fields, err = v.fieldsOf(&x, &e, class, at); err == nil {
			all = append(all, e)
		}
		return true
	})
	return all, err
}

// fieldsOf reads the fields of an event, by the addresses of its class and its own.
func (v Tracing) fieldsOf(x *eventFields, e *Event, class, at guest.GVA) ([]EventField, error) {
	switch {
	case e.Record == 0 && e.IsExit:
		return []EventField{{Name: "__syscall_nr", Type: "int", Offset: 8, Size: 4, Signed: true}, {Name: "ret", Type: "long", Offset: 16, Size: 8, Signed: true}}, nil
	case e.Record == 0:
		meta, err := v.read.value(at, x.data)
		if err != nil {
			return nil, err
		}
		return v.eventFields(x, guest.GVA(meta)+guest.GVA(x.enter.Off))
	}
	return v.eventFields(x, class+guest.GVA(x.fields.Off))
}

// forEachEvent calls f with each event, the address of its class and its own address,
// until f returns false.
func (v Tracing) forEachEvent(x *eventFields, f func(e Event, class, at guest.GVA) bool) error {
	next, err := v.read.value(x.head, word)
	for n := 0; err == nil && guest.GVA(next) != x.head; n++ {
		if n == maxEvents {
			return errors.New("the guest's list of events does not end")
		}
		at := guest.GVA(next) - guest.GVA(x.list.Off)
		e, class, known, err := v.event(x, at)
		if err != nil {
			return err
		}
		if known && !f(e, class, at) {
			return nil
		}
		if next, err = v.read.value(guest.GVA(next), word); err != nil {
			return err
		}
	}
	return err
}

// event reads the event at at, without its fields; known is false if it is not at a
// tracepoint.
func (v Tracing) event(x *eventFields, at guest.GVA) (e Event, class guest.GVA, known bool, err error) {
	of, err := v.read.value(at, x.class)
	if err != nil {
		return e, 0, false, err
	}
	class = guest.GVA(of)
	if e.System, err = v.text(class, x.system); err != nil {
		return e, class, false, err
	}
	tp, err := v.read.value(at, x.tracepoint)
	if err != nil {
		return e, class, false, err
	}
	if s, ok := v.core.Find(guest.GVA(tp)); ok && s.Addr == guest.GVA(tp) && strings.HasPrefix(s.Name, tracepointPrefix) {
		if e.Name, err = v.text(guest.GVA(tp), x.point); err != nil {
			return e, class, false, err
		}
		e.Tracepoint = strings.TrimPrefix(s.Name, tracepointPrefix)
		record, err := v.read.value(class, x.probe)
		if err != nil {
			return e, class, false, err
		}
		e.Record = guest.GVA(record)
		if s, ok := v.core.Find(e.Record); ok && s.Addr == e.Record {
			e.Class, known = strings.CutPrefix(s.Name, "trace_event_raw_event_")
		}
		return e, class, known, nil
	}
	if e.System != "syscalls" || x.number.Size == 0 {
		return e, class, false, nil
	}
	if e.Name, err = v.text(at, x.tracepoint); err != nil { // the name of an event without a tracepoint is in the same place
		return e, class, false, err
	}
	switch {
	case strings.HasPrefix(e.Name, "sys_enter_"):
		e.Tracepoint = "sys_enter"
	case strings.HasPrefix(e.Name, "sys_exit_"):
		e.Tracepoint, e.IsExit = "sys_exit", true
	default:
		return e, class, false, nil
	}
	meta, err := v.read.value(at, x.data)
	if err == nil {
		e.Call, err = v.read.value(guest.GVA(meta), x.number)
	}
	return e, class, err == nil, err
}

// eventFields reads the list of fields at head.
func (v Tracing) eventFields(x *eventFields, head guest.GVA) (all []EventField, err error) {
	next, err := v.read.value(head, word)
	for ; err == nil && guest.GVA(next) != head; next, err = v.read.value(guest.GVA(next), word) {
		if len(all) == maxEventFields {
			return nil, errors.New("the guest's list of an event's fields does not end")
		}
		at := guest.GVA(next) - guest.GVA(x.link.Off)
		var f EventField
		var signed uint64
		if f.Name, err = v.text(at, x.name); err == nil {
			f.Type, err = v.text(at, x.typ)
		}
		for _, n := range []struct {
			to *uint64
			at field
		}{{&f.Offset, x.offset}, {&f.Size, x.size}, {&signed, x.signed}} {
			if err == nil {
				*n.to, err = v.read.value(at, n.at)
			}
		}
		if err != nil {
			return nil, err
		}
		if f.Signed = signed != 0; f.Offset > maxRecord || f.Size > maxRecord {
			return nil, fmt.Errorf("field %q of an event of the guest's is %d bytes at %d", f.Name, f.Size, f.Offset)
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b EventField) int { return int(a.Offset) - int(b.Offset) })
	return all, err
}

// maxRecord is the size of a page of the kernel's ring buffer, which bounds records.
const maxRecord = 4096

// text reads the text that field x of the structure at addr points to.
func (v Tracing) text(addr guest.GVA, x field) (string, error) {
	at, err := v.read.value(addr, x)
	if err != nil {
		return "", err
	}
	var b [maxEventText]byte
	for n := range b {
		if err := v.read(guest.GVA(at)+guest.GVA(n), b[n:n+1]); err != nil {
			return "", err
		}
		if b[n] == 0 {
			return string(b[:n]), nil
		}
	}
	return "", errors.New("a name of the guest's does not end")
}
