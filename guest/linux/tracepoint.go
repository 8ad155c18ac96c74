package linux

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// The kernel's names for a tracepoint's objects (include/linux/tracepoint.h).
const (
	tracepointPrefix = "__tracepoint_" // its struct tracepoint
	// iteratorPrefix is the prefix of the function that a tracepoint calls while it
	// has more than one function.
	iteratorPrefix = "__traceiter_"
	stubPrefix     = "__probestub_"
)

// Tracing is a View's knowledge of the kernel's tracing: its tracepoints and events.
// Its methods may be called from any goroutine.
type Tracing struct{ *View }

// Tracing returns the View's knowledge of the kernel's tracing.
func (v *View) Tracing() Tracing { return Tracing{v} }

// ErrNoTracepoint: the kernel has no tracepoint of that name.
var ErrNoTracepoint = errors.New("the kernel has no such tracepoint")

// Tracepoint is a tracepoint of the kernel itself.
type Tracepoint struct {
	Name     string
	Addr     guest.GVA // of its struct tracepoint
	Iterator string    // the function that calls all functions of the tracepoint

	// Idle is a function of the kernel's that does nothing, whatever its arguments.
	Idle guest.GVA
	// Register and Unregister are tracepoint_probe_register and tracepoint_probe_unregister: they take the tracepoint, a function and a
	// word for it, and return 0 or an errno as a negative number. They may sleep.
	Register, Unregister guest.GVA

	funcs, fn, data field
	entry           uint64
}

// TracepointFunc is a function that a tracepoint calls, and its data word.
type TracepointFunc struct {
	Func guest.GVA
	Data uint64
}

// Tracepoints returns the names of the kernel's own tracepoints, sorted.
func (v Tracing) Tracepoints() (names []string) {
	for _, s := range v.core.Match(tracepointPrefix + "*") {
		name := strings.TrimPrefix(s.Name, tracepointPrefix)
		if _, ok := v.Address(iteratorPrefix + name); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Tracepoint finds a tracepoint. The error is ErrNoTracepoint, or says which part of
// the kernel is not known.
func (v Tracing) Tracepoint(name string) (Tracepoint, error) {
	t := Tracepoint{Name: name, Iterator: iteratorPrefix + name}
	var ok bool
	if t.Addr, ok = v.Address(tracepointPrefix + name); !ok {
		return t, ErrNoTracepoint
	}
	if _, ok := v.Address(t.Iterator); !ok {
		return t, fmt.Errorf("tracepoints: the kernel has no symbol %s", t.Iterator)
	}
	f := &finder{types: v.running.types, lookup: v.Address}
	const feature = "tracepoints"
	f.fields(feature, need{&t.funcs, "tracepoint.funcs"}, need{&t.fn, "tracepoint_func.func"}, need{&t.data, "tracepoint_func.data"})
	t.Register, _ = f.symbol(feature, "tracepoint_probe_register")
	t.Unregister, _ = f.symbol(feature, "tracepoint_probe_unregister")
	if len(f.missing) > 0 {
		return t, errors.New(f.missing[0])
	}
	entry, err := v.running.types.field("tracepoint_func")
	if err != nil {
		return t, err
	}
	t.entry = uint64(entry.Size)
	t.Idle, err = v.idleFunction(name)
	return t, err
}

// idleFunction finds a function that may be called with any arguments: the kernel's
// own function for that, or one that only returns.
func (v Tracing) idleFunction(tracepoint string) (guest.GVA, error) {
	for _, name := range []string{stubPrefix + tracepoint, "ftrace_stub", "noop_ret", "__static_call_return0", "_paravirt_nop"} {
		if at, ok := v.Address(name); ok && v.onlyReturns(at) {
			return at, nil
		}
	}
	return 0, errors.New("tracepoints: no function of the kernel is known that does nothing")
}

// onlyReturns reports whether the function at addr changes no register but RAX and the flags, and returns, and may be called through a
// pointer.
func (v Tracing) onlyReturns(addr guest.GVA) bool {
	code := make([]byte, 32)
	if v.read(addr, code) != nil {
		return false
	}
	// A kernel with checked indirect calls has removed the mark from functions that
	// are not called indirectly.
	if len(v.core.k.table(endbrSeals).Data) > 0 && !bytes.HasPrefix(code, []byte(x86.Endbr64)) {
		return false
	}
	for len(code) > 0 {
		i, err := x86.Decode(code)
		if err != nil {
			return false
		}
		b := code[:i.Len]
		op := bytes.TrimLeft(b, "\x66\x2e\x48")
		switch {
		case i.IsEndbr(), bytes.HasPrefix(op, []byte{0x0f, 0x1f}), op[0] == 0x90: // a NOP
		case bytes.HasPrefix(op, []byte{0x31, 0xc0}), bytes.HasPrefix(op, []byte{0x33, 0xc0}), op[0] == 0xb8, bytes.HasPrefix(op, []byte{0xc7, 0xc0}): // to RAX
		case b[0] == 0xc3:
			return true
		case b[0] == 0xe9: // to the kernel's own return (CONFIG_RETHUNK)
			to := addr + guest.GVA(i.Len) + guest.GVA(int64(int32(le32(b[1:]))))
			return v.returns(to)
		default:
			return false
		}
		addr, code = addr+guest.GVA(i.Len), code[i.Len:]
	}
	return false
}

// maxTracepointFuncs bounds the functions of a tracepoint that are examined.
const maxTracepointFuncs = 256

// Users returns the current functions of the tracepoint. It reads an array that the
// kernel replaces when the functions change: call it with the guest stopped.
func (v Tracing) Users(t Tracepoint) (all []TracepointFunc, err error) {
	at, err := v.read.value(t.Addr, t.funcs)
	for ; err == nil && at != 0 && len(all) < maxTracepointFuncs; at += t.entry {
		fn, err := v.read.value(guest.GVA(at), t.fn)
		if err != nil {
			return nil, err
		}
		if fn == 0 {
			break
		}
		data, err := v.read.value(guest.GVA(at), t.data)
		if err != nil {
			return nil, err
		}
		all = append(all, TracepointFunc{guest.GVA(fn), data})
	}
	return all, err
}
