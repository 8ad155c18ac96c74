package http

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/source"
)

// maxPassedOn bounds how many calls are searched for the origin of an argument
// that functions pass on.
const maxPassedOn = 16

// maxCalls bounds the analyzed calls of one stack: for each, the debug
// information of two functions is read.
const maxCalls = 64

// entered finds the values with which the functions of a stack were entered,
// from their callers' information about the calls (DWARF 5, 2.5.1.7 and 3.4).
type entered struct {
	b     *backtrace
	l     *machine.Look
	names namer
	regs  []guest.KnownRegisters // of each frame

	calls map[int]*call // of the frames' functions
}

// call is the caller's information about a call.
type call struct {
	debuginfo.Call
	err error
}

// resolve replaces entry values in the location of a variable of frame i by
// their values.
func (e *entered) resolve(i int, v *debuginfo.Variable) {
	if v.Where.Base != debuginfo.BaseEntry || !errors.Is(v.Why, debuginfo.ErrEntryValue) {
		return
	}
	x, err := e.value(i, v.Where.Reg, maxPassedOn)
	if err != nil {
		v.Why = fmt.Errorf("%w: %w", v.Why, err)
		return
	}
	v.Where, v.Why = v.Where.WithEntryValue(x), nil
}

// value returns the value of a register when the function of frame i was
// entered. left is how many more frames may be searched.
func (e *entered) value(i, reg, left int) (uint64, error) {
	if left == 0 {
		return 0, fmt.Errorf("passed on by more than %d callers", maxPassedOn)
	}
	c, ok := e.calls[i]
	if !ok {
		c = &call{}
		c.Call, c.err = e.call(i, left)
		e.calls[i] = c
	}
	if c.err != nil {
		return 0, c.err
	}
	where, err := c.PassedValue(reg)
	if err != nil {
		return 0, err
	}
	return e.evaluate(i+1, where, left)
}

// call returns the call of the function of frame i.
func (e *entered) call(i, left int) (c debuginfo.Call, err error) {
	frames := e.b.frames
	switch {
	case i+1 >= len(frames):
		return c, errors.New("the caller is not known")
	case frames[i+1].Exact || frames[i+1].User != frames[i].User:
		return c, errors.New("it was not called, but has interrupted the code around it")
	case len(e.calls) >= maxCalls:
		return c, fmt.Errorf("more than %d calls are not looked at", maxCalls)
	}
	by := e.names.by
	if c, err = e.names.info.Call(frames[i+1].PC-by, uint64(frames[i].RuleAddr())-by); err != nil || c.Target == nil {
		return c, err
	}
	if t, err := e.evaluate(i+1, *c.Target, left); err != nil {
		return c, fmt.Errorf("where the caller has called: %w", err)
	} else if t != c.Function+by {
		return c, errors.New("the caller has called another function, which has continued here")
	}
	return c, nil
}

// evaluate evaluates a place by the registers of frame i.
func (e *entered) evaluate(i int, where debuginfo.Location, left int) (uint64, error) {
	if where.Base == debuginfo.BaseEntry {
		x, err := e.value(i, where.Reg, left-1)
		if err != nil {
			return 0, err
		}
		where = where.WithEntryValue(x)
	}
	fetch, err := source.Fetch(e.names.img, e.b.frames[i].RuleAddr(), e.names.by, debuginfo.Variable{Where: where})
	if err != nil {
		return 0, err
	}
	f := frameLook{e.l, e.b.root, e.regs[i]}
	return f.fetch(fetch)
}
