package evbpf

import (
	"strings"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpfgen"
	"github.com/guestprobe/guestprobe/probe/event"
)

// pattern is a glob: runs of bytes with anything between them (the kernel's
// lib/glob.c). A bracket that is not closed is literal.
type pattern struct {
	parts      []run
	head, tail bool // the first run is at the beginning of the text, the last one at its end
}

// run is a sequence of bytes.
type run []set

// set is the set of values of one byte: the ranges, or their complement if not is
// set.
type set struct {
	ranges [][2]byte
	not    bool
}

func setOf(c byte) set { return set{ranges: [][2]byte{{c, c}}} }

// literal returns the only byte in s, if there is only one.
func (s set) literal() (byte, bool) {
	return s.ranges[0][0], !s.not && len(s.ranges) == 1 && s.ranges[0][0] == s.ranges[0][1]
}

func literalRun(text string) (r run) {
	for i := range len(text) {
		r = append(r, setOf(text[i]))
	}
	return r
}

// parsePattern reads a glob.
func parsePattern(text string) pattern {
	p := pattern{parts: []run{nil}, head: true, tail: true}
	add := func(s set) { p.parts[len(p.parts)-1] = append(p.parts[len(p.parts)-1], s) }
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '*':
			p.parts = append(p.parts, nil)
		case '?':
			add(set{ranges: [][2]byte{{0, 255}}})
		case '[':
			s, n := parseSet(text[i:])
			add(s)
			i += n - 1
		case '\\':
			if i+1 < len(text) {
				i++
			}
			add(setOf(text[i]))
		default:
			add(setOf(c))
		}
	}
	// Empty runs are meaningless, except at the beginning and the end of the text.
	last := len(p.parts) - 1
	p.head, p.tail = last == 0 || len(p.parts[0]) > 0, last == 0 || len(p.parts[last]) > 0
	if last > 0 {
		var parts []run
		for _, r := range p.parts {
			if len(r) > 0 {
				parts = append(parts, r)
			}
		}
		p.parts = parts
	}
	return p
}

// parseSet reads the bracket at the beginning of text, and returns its length. A ] or
// a - in the first place is an element.
func parseSet(text string) (s set, n int) {
	i := 1
	if s.not = strings.HasPrefix(text[i:], "!"); s.not {
		i++
	}
	for first := true; i < len(text); first = false {
		a := text[i]
		if a == ']' && !first {
			return s, i + 1
		}
		b := a
		i++
		if i+1 < len(text) && text[i] == '-' && text[i+1] != ']' {
			b = text[i+1]
			i += 2
		}
		s.ranges = append(s.ranges, [2]byte{a, b})
	}
	return setOf('['), 1
}

// match compares the text at rVal, of R0 bytes with its NUL. It ends by jumping to
// yes or no, and never falls through.
func (c *compiler) match(p pattern, yes, no bpfgen.Label) {
	c.Emit(asm.Add.Imm(asm.R0, -1))
	parts := p.parts
	if p.head && p.tail && len(parts) == 1 {
		c.If(asm.JNE, asm.R0, uint64(len(parts[0])), no)
		c.compare(parts[0], no)
		c.GoTo(yes)
		return
	}
	if p.head {
		c.If(asm.JLT, asm.R0, uint64(len(parts[0])), no)
		c.compare(parts[0], no)
		c.step(len(parts[0]))
		parts = parts[1:]
	}
	var end run
	if p.tail {
		end, parts = parts[len(parts)-1], parts[:len(parts)-1]
	}
	for _, r := range parts {
		// The first match is the best one: it leaves the most text.
		loop, next, found := c.NewLabel(), c.NewLabel(), c.NewLabel()
		start := len(c.Insns)
		c.Place(loop)
		c.If(asm.JLT, asm.R0, uint64(len(r)), no)
		c.compare(r, next)
		c.GoTo(found)
		c.Place(next)
		c.step(1)
		c.GoTo(loop)
		c.NoteRepeats(start, event.MaxText)
		c.Place(found)
		c.step(len(r))
	}
	if p.tail {
		c.If(asm.JLT, asm.R0, uint64(len(end)), no)
		c.Emit(asm.Add.Reg(rVal, asm.R0))
		c.Add(rVal, -int64(len(end)))
		c.compare(end, no)
	}
	c.GoTo(yes)
}

// step skips n bytes of the text.
func (c *compiler) step(n int) {
	c.Add(rVal, int64(n))
	c.Add(asm.R0, -int64(n))
}

// compare jumps to differs unless r is at rVal.
func (c *compiler) compare(r run, differs bpfgen.Label) {
	for at := 0; at < len(r); {
		n := 0
		text := ""
		for at+n < len(r) && n < 8 {
			b, ok := r[at+n].literal()
			if !ok {
				break
			}
			text += string([]byte{b})
			n++
		}
		if n > 0 {
			n = bpfgen.Chunk(n)
			c.Emit(bpfgen.Load(n, asm.R1, rVal, at))
			c.If(asm.JNE, asm.R1, bpfgen.BytesAt(text, n), differs)
			at += n
			continue
		}
		c.jumpUnlessIn(r[at], at, differs)
		at++
	}
}

// jumpUnlessIn jumps to differs unless the byte at rVal + off is in s.
func (c *compiler) jumpUnlessIn(s set, off int, differs bpfgen.Label) {
	if !s.not && s.ranges[0] == [2]byte{0, 255} {
		return
	}
	in := c.NewLabel()
	hit := in
	if s.not {
		hit = differs
	}
	c.Emit(bpfgen.Load(1, asm.R1, rVal, off))
	for _, r := range s.ranges {
		if r[0] > r[1] {
			continue // it is empty
		}
		above := c.NewLabel()
		c.If(asm.JLT, asm.R1, uint64(r[0]), above)
		c.If(asm.JLE, asm.R1, uint64(r[1]), hit)
		c.Place(above)
	}
	if !s.not {
		c.GoTo(differs)
	}
	c.Place(in)
}
