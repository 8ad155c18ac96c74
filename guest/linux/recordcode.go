package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Functions of the kernel by which an event's function allocates its record, and
// commits it (kernel/trace/trace_events.c, trace.c).
const (
	reserveRecord = "trace_event_buffer_reserve"
	commitRecord  = "trace_event_buffer_commit"
)

// maxRecordCode bounds the code of a function that records an event, in bytes.
const maxRecordCode = 16 << 10

// recordPart is one of the functions of a copy: the event's own, a part that the
// compiler has moved (.cold, do_...), or a function with the same code that it jumps
// to.
type recordPart struct {
	lo, hi guest.GVA
	off    int // in the copy
}

// Bounds of a copy.
const (
	maxRecordParts = 8
	recordPrefix   = "trace_event_raw_event_"
)

// recordCode reads the function at fn with its parts, one after the other.
func (v Tracing) recordCode(fn guest.GVA) (parts []recordPart, code []byte, err error) {
	todo := []guest.GVA{fn}
	for len(todo) > 0 {
		s, ok := v.core.Find(todo[0])
		todo = todo[1:]
		switch {
		case slices.ContainsFunc(parts, func(p recordPart) bool { return p.lo == s.Addr }):
			continue
		case !ok || len(parts) == 0 && s.Addr != fn || s.Size == 0 || s.Size > maxRecordCode:
			return nil, nil, errors.New("its extent is not known")
		case len(parts) == maxRecordParts:
			return nil, nil, fmt.Errorf("it has more than %d parts", maxRecordParts)
		}
		part := make([]byte, s.Size)
		if err := v.read(s.Addr, part); err != nil {
			return nil, nil, err
		}
		parts, code = append(parts, recordPart{s.Addr, s.Addr + guest.GVA(s.Size), len(code)}), append(code, part...)
		for off := 0; off < len(part); {
			n, target, branch, err := x86.Scan(part[off:], uint64(s.Addr)+uint64(off))
			if err != nil {
				return nil, nil, fmt.Errorf("at %#x: %w", off, err)
			}
			off += n
			if to, ok := v.core.Find(guest.GVA(target)); branch && ok && to.Addr != s.Addr && isRecordPart(to, guest.GVA(target), s) {
				todo = append(todo, to.Addr)
			}
		}
	}
	return parts, code, nil
}

// isRecordPart reports whether a copy of s must include the symbol that a branch of s
// leads to.
func isRecordPart(to guest.Symbol, target guest.GVA, s guest.Symbol) bool {
	if to.Name == s.Name+".cold" {
		return true
	}
	return to.Addr == target && strings.HasPrefix(strings.TrimPrefix(to.Name, "do_"), recordPrefix)
}

// RecordCode returns the code of the function that records e, for the address at. It
// calls reserve to allocate the record and commit to commit it, instead of the
// functions of the ring buffer: so the kernel's own code fills in a record wherever
// reserve says. The result has the same length for any address. In the copy the
// instruction of a WARN is a no-op, and that of a BUG a loop, ended by the time limit
// of calls from a hit: the kernel's tables have no entries for addresses in a copy.
// Errors say why there can be no copy.
func (v Tracing) RecordCode(e Event, at, reserve, commit guest.GVA) ([]byte, error) {
	refuse := func(format string, args ...any) ([]byte, error) {
		return nil, fmt.Errorf("the function that records %v cannot be copied: %s", &e, fmt.Sprintf(format, args...))
	}
	parts, code, err := v.recordCode(e.Record)
	if err != nil {
		return refuse("%v", err)
	}
	c := recordCopy{v: v, at: at, parts: parts, instead: map[guest.GVA]guest.GVA{}}
	for name, to := range map[string]guest.GVA{reserveRecord: reserve, commitRecord: commit} {
		from, ok := v.Address(name)
		if !ok {
			return refuse("the kernel has no symbol %s", name)
		}
		c.instead[from] = to
	}
	for _, p := range parts {
		part := code[p.off:][:p.hi-p.lo]
		for off := 0; off < len(part); {
			n, err := c.move(part, p, off)
			if err != nil {
				return refuse("%v", err)
			}
			off += n
		}
	}
	if c.calls < 2 {
		return refuse("it does not call %s and %s", reserveRecord, commitRecord)
	}
	return code, nil
}

// recordCopy is the state of making such a copy.
type recordCopy struct {
	v       Tracing
	at      guest.GVA
	parts   []recordPart
	instead map[guest.GVA]guest.GVA // replacements of called functions
	calls   int                     // number of such calls
}

// copyAddr returns the address in the copy for addr in the function.
func (c *recordCopy) copyAddr(addr guest.GVA) (guest.GVA, bool) {
	for _, p := range c.parts {
		if addr >= p.lo && addr < p.hi {
			return c.at + guest.GVA(p.off) + addr - p.lo, true
		}
	}
	return 0, false
}

// move relocates the instruction at off of a part, and returns its length.
func (c *recordCopy) move(code []byte, p recordPart, off int) (int, error) {
	i, err := x86.Decode(code[off:])
	if err != nil {
		return 0, fmt.Errorf("at %#x: %w", off, err)
	}
	n := int(i.Len)
	inst := code[off:][:n]
	from := p.lo + guest.GVA(off)
	to, _ := c.copyAddr(from)
	why := c.v.FixedReason(from, from+guest.GVA(n))
	trap := why == StaticCall.String() && i.Map == x86.Map0F && i.Opcode == 0xb9 // ud1: a warning with arguments, since 7.0
	switch {
	case why == Bug.String(), trap:
		fill := 0
		if !trap && !c.v.warns(from) && n >= len(spin) {
			fill = copy(inst, spin)
		}
		for ; fill < n; fill++ {
			inst[fill] = nop
		}
		return n, nil
	case why != "" && (why != StaticCall.String() || !isStaticCall(inst, &i)):
		return 0, fmt.Errorf("at %#x, % x: the kernel patches it (%s)", off, inst, why)
	}
	t, direct := i.Target(uint64(from))
	target := guest.GVA(t)
	within, own := c.copyAddr(target)
	class := i.Class()
	displace := func(to, target guest.GVA) error {
		disp := int64(target) - int64(to) - int64(n)
		if int64(int32(disp)) != disp {
			return fmt.Errorf("%v is out of reach", target)
		}
		binary.LittleEndian.PutUint32(inst[n-4:], uint32(disp))
		return nil
	}
	switch {
	case direct && own && target >= p.lo && target < p.hi:
		return n, nil
	case direct && own && n >= x86.JmpLen:
		return n, displace(to, within)
	case class == x86.ClassCall, direct && inst[0] == 0xe9 && c.v.returns(target):
		if instead, ours := c.instead[target]; ours {
			target = instead
			c.calls++
		}
		return n, displace(to, target)
	case class == x86.ClassCallInd && i.RIPRelative():
		return n, displace(to, guest.GVA(i.RIPTarget(uint64(from))))
	case class == x86.ClassCallInd:
		return n, nil
	case direct, class == x86.ClassJumpInd:
		return 0, fmt.Errorf("it leaves its code at %#x", off)
	}
	var moved [x86.MaxRelocated]byte
	k, err := x86.Relocate(moved[:], &i, uint64(from), uint64(to))
	if err == nil && k != n {
		err = errors.New("the copy has another length")
	}
	if err != nil {
		return 0, fmt.Errorf("at %#x: %w", off, err)
	}
	copy(inst, moved[:k])
	return n, nil
}

// spin is a jump to itself. A call from a hit has bounded time.
var spin = []byte{0xeb, 0xfe}

const nop = 0x90

// isStaticCall reports whether code, the instruction i, is a static call that is on,
// off, or a clearing of EAX in place of a call that returns 0
// (arch/x86/kernel/static_call.c). The copy keeps its current form: in these
// functions it is a call of the kernel's scheduler, which returns at once if
// interrupts are off.
func isStaticCall(code []byte, i *x86.Inst) bool {
	return code[0] == 0xe8 || code[0] == 0x0f && code[1] == 0x1f || i.Opcode == 0x31 && i.HasModRM && i.ModRM == 0xc0
}

// returns reports whether addr is the kernel's own return (CONFIG_RETHUNK).
func (v Tracing) returns(addr guest.GVA) bool {
	s, ok := v.core.Find(addr)
	return ok && s.Addr == addr && strings.HasSuffix(s.Name, "return_thunk")
}

// warns reports whether the instruction at addr is a WARN of the kernel's.
func (v *View) warns(addr guest.GVA) bool {
	p := v.now.Load().piece(addr)
	return p != nil && p.sites.warns(uint64(addr-p.slide))
}
