package event

import (
	"bytes"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Match reports whether a hit of a p or w definition passes. It is for
// probe.Kprobe.Filter: it runs on the vCPU's thread, takes no lock and
// allocates nothing (the target may, to report memory that cannot be read).
// Only what the expression needs is fetched.
func (m *Filter) Match(c *probe.Context) bool { return m.match(c, nil) }

// MatchReturn is Match for the return handler of an r definition. Entry is what
// Source.Enter wrote for this activation.
func (m *Filter) MatchReturn(c *probe.Context, entry []byte) bool { return m.match(c, entry[8:]) }

func (m *Filter) match(c *probe.Context, entry []byte) bool {
	e := evaluation{f: m.fetcher, c: c, entry: entry, scratch: m.scratch[c.CPU]}
	return e.node(m.root)
}

// evaluation is the state of one Match.
type evaluation struct {
	f       *Fetcher
	c       *probe.Context
	entry   []byte
	scratch []byte // 8 bytes for words, CommSize for the task's name, then room for text
}

func (e *evaluation) node(n *FilterNode) bool {
	switch n.Op {
	case FilterNot:
		return !e.node(n.X)
	case FilterAnd:
		return e.node(n.X) && e.node(n.Y)
	case FilterOr:
		return e.node(n.X) || e.node(n.Y)
	}
	if n.Term.IsText {
		text, ok := e.text(n.Term)
		return ok && n.Term.compareText(text)
	}
	v, ok := e.number(n.Term)
	return ok && n.Term.compare(v)
}

// number returns the field of a term, extended to 64 bits.
func (e *evaluation) number(t *FilterTerm) (uint64, bool) {
	switch t.Field {
	case FieldCPU:
		return uint64(e.c.CPU), true
	case FieldPID:
		pid, ok := e.f.profile.Task(e.c, e.scratch[8:8+CommSize])
		if !ok {
			pid = 0 // as the record has it
		}
		return uint64(int64(pid)), true
	case FieldFlags:
		if e.c.Regs.RFLAGS&insn.FlagIF == 0 {
			return flagIRQsOff, true
		}
		return 0, true
	case FieldAddr:
		if e.f.args == returnArgs {
			return uint64(e.f.addr), true
		}
		return uint64(e.c.Addr), true
	case FieldRet:
		return e.c.Regs.RIP, true
	}
	o := &e.f.ops[t.Value]
	word := e.scratch[:8]
	v, ok := o.eval(e.c, e.entry, word)
	if !ok {
		return 0, false
	}
	if o.store == storeMemory {
		b := word[:o.size]
		if e.c.Read(guest.GVA(v+uint64(o.last)), b) != nil {
			return 0, false
		}
		v = getSized(b)
	}
	shift := 64 - 8*o.size
	v = o.extract(v) << shift
	if t.Signed {
		return uint64(int64(v) >> shift), true
	}
	return v >> shift, true
}

// text returns the field of a term. A filter sees at most maxFilterText bytes
// of a text that is longer.
func (e *evaluation) text(t *FilterTerm) ([]byte, bool) {
	comm := e.scratch[8 : 8+CommSize]
	store, o := storeComm, (*op)(nil)
	if t.Field == FieldValue {
		o = &e.f.ops[t.Value]
		store = o.store
	}
	switch store {
	case storeComm:
		clear(comm)
		if _, ok := e.f.profile.Task(e.c, comm); !ok || comm[0] == 0 {
			return nil, false
		}
		return commText(comm), true
	case storeLiteral:
		room := e.scratch[filterWordsRoom:]
		return room[:copy(room, o.literal)], true
	}
	v, ok := o.eval(e.c, e.entry, e.scratch[:8])
	if !ok {
		return nil, false
	}
	n, _, ok := readText(e.c, v+uint64(o.last), e.scratch[filterWordsRoom:][:filterTextRoom])
	return e.scratch[filterWordsRoom:][:min(n, maxFilterText)], ok
}

// compare applies the operator of a term to a number.
func (t *FilterTerm) compare(v uint64) bool {
	if t.Signed {
		return compare(t.Is, int64(v), int64(t.Num)) || t.Is == AnyBit && v&t.Num != 0
	}
	return compare(t.Is, v, t.Num) || t.Is == AnyBit && v&t.Num != 0
}

func compare[N int64 | uint64](is Comparison, a, b N) bool {
	switch is {
	case Equal:
		return a == b
	case NotEqual:
		return a != b
	case Less:
		return a < b
	case LessEqual:
		return a <= b
	case Greater:
		return a > b
	case GreaterEqual:
		return a >= b
	}
	return false
}

// Holds reports whether the comparison of a term holds for text.
func (t *FilterTerm) Holds(text string) bool { return t.compareText([]byte(text)) }

// compareText applies the operator of a term to text.
func (t *FilterTerm) compareText(b []byte) bool {
	switch t.Is {
	case Equal:
		return string(b) == t.Text
	case NotEqual:
		return string(b) != t.Text
	}
	return guest.Glob(t.Text, b)
}

// readText reads text in memory at addr into room until its NUL or until room
// but one byte is full, puts a NUL behind it, and returns its length and
// whether it was cut there; ok is false when the guest cannot read that far.
func readText(c *probe.Context, addr uint64, room []byte) (n int, cut, ok bool) {
	// Most texts are short, so begin small; never read past the page that the
	// text is known to reach, since the next one need not be mapped.
	limit, chunk := len(room)-1, 64
	for n < limit {
		here := addr + uint64(n)
		size := min(chunk, limit-n, pageSize-int(here%pageSize))
		if c.Read(guest.GVA(here), room[n:n+size]) != nil {
			return 0, false, false
		}
		if i := bytes.IndexByte(room[n:n+size], 0); i >= 0 {
			return n + i, false, true
		}
		n += size
		chunk *= 4
	}
	room[limit] = 0
	return limit, true, true
}
