package evbpf

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// naive evaluates definitions and filters the obvious way: straight from the
// syntax tree, one byte of memory at a time, into ftrace's text. It shares nothing
// with Compile and Decode but the tree.
type naive struct {
	mem   memory
	regs  *probe.Regs // at the hit
	entry *probe.Regs // of a return: at the entry, for $argN
	cpl   uint8
	hit   *hit
}

// load reads n bytes, little endian.
func (e *naive) load(addr uint64, n int) (v uint64, ok bool) {
	for i := range n {
		var b [1]byte
		if e.mem.read(guest.GVA(addr+uint64(i)), b[:], e.cpl) != nil {
			return 0, false
		}
		v |= uint64(b[0]) << (8 * i)
	}
	return v, true
}

func (e *naive) register(name string) uint64 {
	r := e.regs
	selectors := map[string]uint64{"cs": 0x08, "ss": 0x10}
	if e.cpl != 0 {
		selectors = map[string]uint64{"cs": 0x23, "ss": 0x1b}
	}
	v, ok := map[string]uint64{
		"ax": r.RAX, "bx": r.RBX, "cx": r.RCX, "dx": r.RDX, "si": r.RSI, "di": r.RDI, "sp": r.RSP, "bp": r.RBP,
		"r8": r.R8, "r9": r.R9, "r10": r.R10, "r11": r.R11, "r12": r.R12, "r13": r.R13, "r14": r.R14, "r15": r.R15,
		"ip": r.RIP, "flags": r.RFLAGS, "orig_ax": 1<<64 - 1, "cs": selectors["cs"], "ss": selectors["ss"],
	}[name]
	if !ok {
		panic("no register " + name)
	}
	return v
}

func (e *naive) fetch(f event.Fetch) (uint64, bool) {
	switch f := f.(type) {
	case event.Register:
		return e.register(f.Reg.String()), true
	case event.StackPointer:
		return e.regs.RSP, true
	case event.StackSlot:
		return e.load(e.regs.RSP+uint64(f.N)*8, 8)
	case event.FuncArg:
		r := e.regs
		if e.entry != nil {
			r = e.entry
		}
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
	case event.RetVal:
		return e.regs.RAX, true
	case event.Immediate:
		return f.Value, true
	case event.SymbolAddr:
		s, _ := kernel.Lookup(f.Name)
		return uint64(s.Addr) + uint64(f.Offset), true
	case event.Access:
		return map[string]uint64{"0": e.hit.old, "1": e.hit.new, "2": map[bool]uint64{true: 1}[e.hit.write]}[fmt.Sprint(f.Which)], true
	case event.Deref:
		a, ok := e.address(f)
		if !ok {
			return 0, false
		}
		return e.load(a, 8)
	}
	panic(fmt.Sprintf("no value in %T", f))
}

func (e *naive) address(f event.Deref) (uint64, bool) {
	a, ok := e.fetch(f.Of)
	return a + uint64(f.Offset), ok
}

// str reads a string.
func (e *naive) str(addr uint64) (string, bool) {
	var s []byte
	for len(s) < event.MaxText-1 {
		c, ok := e.load(addr+uint64(len(s)), 1)
		if !ok {
			return "", false
		}
		if c == 0 {
			return string(s), true
		}
		s = append(s, byte(c))
	}
	_, ok := e.load(addr+uint64(len(s)), 1)
	return string(s), ok
}

// text returns the text at an address, if any.
func (e *naive) text(f event.Fetch) (string, bool) {
	switch f := f.(type) {
	case event.Literal:
		return f.Text, true
	case event.Comm:
		_, comm := e.hit.task()
		return comm, comm != ""
	case event.Deref:
		a, ok := e.address(f)
		if !ok {
			return "", false
		}
		return e.str(a)
	}
	v, ok := e.fetch(f)
	if !ok {
		return "", false
	}
	return e.str(v)
}

// quote writes bytes other than printable ASCII as \xNN, and quotes and backslashes
// after a backslash: the memory of these tests has no valid UTF-8 beyond that.
func quote(s string, ok bool) string {
	if !ok {
		return "(fault)"
	}
	return `"` + escape(s, '"') + `"`
}

func escape(s string, quote byte) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		case c == '\\' || c == quote:
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteByte(c)
		}
	}
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

// lowBytes keeps the low n bytes.
func lowBytes(v uint64, n int) uint64 { return v & (1<<(8*n-1)<<1 - 1) }

// bits cuts a bit field out, with the kernel's shifts, in a variable of the
// container's size.
func bits(t event.Type, v uint64) uint64 {
	if t.Width == 0 {
		return v
	}
	s := 8 * t.Size
	if top := lowBytes(v<<(s-t.Width-t.Offset), t.Size); t.Format == event.Signed {
		return lowBytes(uint64(extend(top, t.Size)>>(s-t.Width)), t.Size)
	} else {
		return top >> (s - t.Width)
	}
}

// extend gives the low n bytes of v a sign.
func extend(v uint64, n int) int64 {
	switch n {
	case 1:
		return int64(int8(v))
	case 2:
		return int64(int16(v))
	case 4:
		return int64(int32(v))
	}
	return int64(v)
}

// element prints one number.
func element(t event.Type, v uint64) string {
	switch t.Format {
	case event.Char:
		return "'" + escape(string([]byte{byte(v)}), '\'') + "'"
	case event.Symbol:
		return pointer(v)
	case event.SymStr:
		return `"` + pointer(v) + `"`
	}
	switch t.String()[0] {
	case 'u', 'b':
		return fmt.Sprint(v)
	case 's':
		return fmt.Sprint(extend(v, t.Size))
	}
	return fmt.Sprintf("%#x", v)
}

// number evaluates a field that is one number.
func (e *naive) number(a event.Arg) (uint64, bool) {
	size := a.Type.Size
	if a.Type.Format == event.SymStr {
		size = 8
	}
	v, ok := uint64(0), true
	if d, memory := a.Fetch.(event.Deref); memory && a.Type.Format != event.SymStr {
		addr, found := e.address(d)
		v, ok = e.load(addr, size)
		ok = ok && found
	} else {
		v, ok = e.fetch(a.Fetch)
	}
	return bits(a.Type, lowBytes(v, size)), ok
}

// value prints a field.
func (e *naive) value(a event.Arg) string {
	text := a.Type.Format == event.String || a.Type.Format == event.UString
	if a.Type.Count == 0 {
		if text {
			return quote(e.text(a.Fetch))
		}
		v, ok := e.number(a)
		if !ok {
			return "(fault)"
		}
		return element(a.Type, v)
	}
	base, ok := uint64(0), true
	if d, memory := a.Fetch.(event.Deref); memory {
		base, ok = e.address(d)
	} else {
		base, ok = e.fetch(a.Fetch)
	}
	one := a.Type
	one.Count = 0
	var all []string
	faulted := false
	for i := range a.Type.Count {
		s := "(fault)"
		if text {
			if p, loaded := e.load(base+uint64(8*i), 8); ok && loaded {
				s = quote(e.str(p))
			}
		} else if v, loaded := e.load(base+uint64(i*a.Type.Size), a.Type.Size); ok && loaded && !faulted {
			s = element(one, bits(one, v))
		} else {
			faulted = true
		}
		all = append(all, s)
	}
	return "{" + strings.Join(all, ",") + "}"
}

// event prints all fields as AppendArgs does after the place.
func (e *naive) event(l *event.Layout) string {
	var b strings.Builder
	for _, x := range l.Fields {
		fmt.Fprintf(&b, " %s=%s", x.Name, e.value(x.Arg))
	}
	return b.String()
}

// passes evaluates a filter.
func (e *naive) passes(n *event.FilterNode, l *event.Layout) bool {
	switch n.Op {
	case event.FilterNot:
		return !e.passes(n.X, l)
	case event.FilterAnd:
		return e.passes(n.X, l) && e.passes(n.Y, l)
	case event.FilterOr:
		return e.passes(n.X, l) || e.passes(n.Y, l)
	}
	t := n.Term
	pid, _ := e.hit.task()
	a := event.Arg{Type: event.Type{Size: 8}}
	var v uint64
	ok := true
	switch t.Field {
	case event.FieldComm:
		a.Fetch = event.Comm{}
	case event.FieldCPU:
		v = 1
	case event.FieldPID:
		v, a.Type.Size = uint64(uint32(pid)), 4
	case event.FieldFlags:
		v = map[bool]uint64{true: 1}[e.regs.RFLAGS&(1<<9) == 0]
	case event.FieldPreempt:
	case event.FieldAddr:
		v = uint64(text)
	case event.FieldRet:
		v = e.regs.RIP
	default:
		if a = l.Fields[t.Value].Arg; !t.IsText {
			v, ok = e.number(a)
		}
	}
	if t.IsText {
		s, ok := e.text(a.Fetch)
		return ok && holds(t.Is, t.Text, s)
	}
	sign := 0
	switch a, b := extend(v, a.Type.Size), int64(t.Num); {
	case t.Signed && a < b, !t.Signed && v < t.Num:
		sign = -1
	case t.Signed && a > b, !t.Signed && v > t.Num:
		sign = 1
	}
	if t.Signed {
		v = uint64(extend(v, a.Type.Size))
	}
	return ok && map[event.Comparison]bool{
		event.Equal: sign == 0, event.NotEqual: sign != 0, event.Less: sign < 0, event.LessEqual: sign <= 0, event.Greater: sign > 0,
		event.GreaterEqual: sign >= 0, event.AnyBit: v&t.Num != 0,
	}[t.Is]
}

func holds(is event.Comparison, want, s string) bool {
	switch is {
	case event.Equal:
		return s == want
	case event.NotEqual:
		return s != want
	}
	return globRegexp(want).MatchString(s)
}

// globRegexp translates a pattern that has no backslash and no bracket without end.
func globRegexp(pattern string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '*':
			b.WriteString(".*")
		case c == '?':
			b.WriteString(".")
		case c == '[':
			end := strings.IndexByte(pattern[i+1:], ']') + i + 1
			b.WriteString("[" + strings.Replace(pattern[i+1:end], "!", "^", 1) + "]")
			i = end
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	return regexp.MustCompile(b.String() + `\z`)
}
