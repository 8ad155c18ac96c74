package event

import (
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// naive evaluates definitions the obvious way: straight from the syntax tree,
// one byte of memory at a time, into ftrace's text. It shares nothing with
// Compile, Capture and Decode but the tree.
type naive struct {
	mem   *fakeTarget
	regs  *probe.Regs // at the hit
	entry *probe.Regs // at the entry, for $argN of return probes
	comm  string
}

// load reads n bytes, little endian.
func (e *naive) load(addr uint64, n int) (v uint64, ok bool) {
	for i := range n {
		var b [1]byte
		if e.mem.access(guest.GVA(addr+uint64(i)), b[:], false) != nil {
			return 0, false
		}
		v |= uint64(b[0]) << (8 * i)
	}
	return v, true
}

func (e *naive) fetch(f Fetch) (uint64, bool) {
	switch f := f.(type) {
	case Register:
		r := e.regs
		switch f.Reg.String() {
		case "orig_ax":
			return 1<<64 - 1, true
		case "cs":
			return 8, true
		case "ss":
			return 16, true
		}
		v, ok := map[string]uint64{
			"ax": r.RAX, "bx": r.RBX, "cx": r.RCX, "dx": r.RDX, "si": r.RSI, "di": r.RDI, "sp": r.RSP, "bp": r.RBP,
			"r8": r.R8, "r9": r.R9, "r10": r.R10, "r11": r.R11, "r12": r.R12, "r13": r.R13, "r14": r.R14, "r15": r.R15,
			"ip": r.RIP, "flags": r.RFLAGS,
		}[f.Reg.String()]
		if !ok {
			panic("no such register")
		}
		return v, true
	case StackPointer:
		return e.regs.RSP, true
	case StackSlot:
		return e.load(e.regs.RSP+uint64(f.N)*8, 8)
	case FuncArg:
		r := e.entry
		switch f.N {
		case 1:
			return r.RDI, true
		case 2:
			return r.RSI, true
		case 3:
			return r.RDX, true
		case 4:
			return r.RCX, true
		case 5:
			return r.R8, true
		case 6:
			return r.R9, true
		}
		return e.load(r.RSP+8*uint64(f.N-6), 8)
	case RetVal:
		return e.regs.RAX, true
	case Immediate:
		return f.Value, true
	case SymbolAddr:
		s, _ := kernel.Lookup(f.Name)
		return uint64(s.Addr) + uint64(f.Offset), true
	case Deref:
		a, ok := e.address(f)
		if !ok {
			return 0, false
		}
		return e.load(a, 8)
	}
	panic(fmt.Sprintf("no value in %T", f))
}

func (e *naive) address(f Deref) (uint64, bool) {
	a, ok := e.fetch(f.Of)
	return a + uint64(f.Offset), ok
}

// str reads a string and quotes it.
func (e *naive) str(addr uint64) string {
	var s []byte
	for len(s) < maxString-1 {
		c, ok := e.load(addr+uint64(len(s)), 1)
		if !ok {
			return "(fault)"
		}
		if c == 0 {
			break
		}
		s = append(s, byte(c))
	}
	return quote(string(s), '"')
}

// quote writes what is not printable ASCII as \xNN: the memory of these tests
// has no valid UTF-8 beyond it.
func quote(s string, mark byte) string {
	var b strings.Builder
	b.WriteByte(mark)
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		} else {
			b.WriteByte(s[i])
		}
	}
	b.WriteByte(mark)
	return b.String()
}

func pointer(v uint64) string {
	for _, s := range kernel {
		if v >= uint64(s.Addr) && v < uint64(s.Addr)+s.Size {
			return fmt.Sprintf("%s+%#x/%#x", s.Name, v-uint64(s.Addr), s.Size)
		}
	}
	return fmt.Sprintf("%#x", v)
}

// number prints the low bytes of v.
func number(t Type, v uint64) string {
	switch t.String()[0] {
	case 'u':
		return fmt.Sprint(v)
	case 's':
		switch t.Size {
		case 1:
			return fmt.Sprint(int8(v))
		case 2:
			return fmt.Sprint(int16(v))
		case 4:
			return fmt.Sprint(int32(v))
		}
		return fmt.Sprint(int64(v))
	case 'b':
		// The kernel's shifts, in a variable of the container's size.
		s := 8 * t.Size
		v = v << (s - t.Width - t.Offset)
		v &= 1<<(s-1)<<1 - 1
		return fmt.Sprint(v >> (s - t.Width))
	}
	return fmt.Sprintf("%#x", v)
}

func (e *naive) element(t Type, v uint64) string {
	switch t.Format {
	case Char:
		return quote(string([]byte{byte(v)}), '\'')
	case Symbol:
		return pointer(v)
	case SymStr:
		return `"` + pointer(v) + `"`
	}
	return number(t, v&(1<<(8*t.Size-1)<<1-1))
}

// value prints an argument.
func (e *naive) value(a Arg) string {
	one := a.Type
	one.Count = 0
	d, memory := a.Fetch.(Deref)
	text := a.Type.Format == String || a.Type.Format == UString
	switch f := a.Fetch.(type) {
	case Literal:
		return quote(f.Text, '"')
	case Comm:
		return quote(e.comm, '"')
	}
	if a.Type.Count == 0 {
		switch {
		case text && memory:
			addr, ok := e.address(d)
			if !ok {
				return "(fault)"
			}
			return e.str(addr)
		case memory && a.Type.Format != SymStr:
			addr, ok := e.address(d)
			v, ok2 := e.load(addr, a.Type.Size)
			if !ok || !ok2 {
				return "(fault)"
			}
			return e.element(one, v)
		}
		v, ok := e.fetch(a.Fetch)
		switch {
		case !ok:
			return "(fault)"
		case text:
			return e.str(v)
		}
		if a.Type.Format == SymStr {
			one.Size = 8
		}
		return e.element(one, v)
	}
	base, ok := uint64(0), true
	if memory {
		base, ok = e.address(d)
	} else {
		base, ok = e.fetch(a.Fetch)
	}
	var all []string
	faulted := false
	for i := range a.Type.Count {
		s := "(fault)"
		if text {
			if p, loaded := e.load(base+uint64(8*i), 8); ok && loaded {
				s = e.str(p)
			}
		} else if v, loaded := e.load(base+uint64(i*a.Type.Size), a.Type.Size); ok && loaded && !faulted {
			s = e.element(one, v)
		} else {
			faulted = true
		}
		all = append(all, s)
	}
	return "{" + strings.Join(all, ",") + "}"
}

// event prints all arguments as AppendArgs does behind the place.
func (e *naive) event(d *Def) string {
	var b strings.Builder
	for _, a := range d.Args {
		fmt.Fprintf(&b, " %s=%s", a.Name, e.value(a))
	}
	return b.String()
}
