package bpf

// A small program has no loops, no local calls, and makes no access whose place
// is not known before it runs. Nothing can go wrong in it, so its code needs
// neither budget nor bounds checks, and nothing of its run block but the
// counters: its stack is the machine's. When what it does to values of maps is
// one instruction each, it can run again before it has returned, and a hit is
// never missed; else it claims its block as all others do. Jumps in it only go
// forward, so one pass over the slots finds out everything.

// smallKind is what is known of a register in a small program.
type smallKind uint8

const (
	sNum         smallKind = iota // some number
	sConst                        // the number off
	sContext                      // address in the context
	sFrame                        // address relative to the frame pointer
	sMap                          // handle of map m
	sValue                        // address in a value of map m, for this vCPU: of element elem, or with -1 of the one in the register
	sMaybeValue                   // the same, or 0
	sRecord                       // address in the record that the call at slot id reserved
	sMaybeRecord                  // the same, or 0
)

// smallValue is a kind with its details.
type smallValue struct {
	kind smallKind
	m    int32 // map
	elem int32
	id   int32 // slot of the call that it comes from
	off  int64
}

// frameWord is what is known of a place in the frame: a constant, or in 8
// bytes an address.
type frameWord struct {
	off, size int32 // size 0: nothing
	v         smallValue
}

// frameBytes is a set of bytes of the frame: byte -FrameSize+i is bit i.
type frameBytes [FrameSize / 64]uint64

func (f *frameBytes) set(off int64, n int, to bool) {
	for i := off + FrameSize; i < off+FrameSize+int64(n); i++ {
		f[i/64] &^= 1 << (i % 64)
		if to {
			f[i/64] |= 1 << (i % 64)
		}
	}
}

// count returns how many of the n bytes at off are in the set.
func (f *frameBytes) count(off int64, n int) (k int) {
	for i := off + FrameSize; i < off+FrameSize+int64(n); i++ {
		k += int(f[i/64] >> (i % 64) & 1)
	}
	return k
}

// smallState is what is known before one operation.
type smallState struct {
	reached bool
	regs    [numRegs]smallValue
	written frameBytes    // bytes that were certainly written
	words   [12]frameWord // some places in the frame
	open    int32         // 1 + the slot of the call whose record is open, 0 = none
}

// join adds what another path knows. It reports whether the two agree on the
// open record.
func (s *smallState) join(o *smallState) bool {
	if !s.reached {
		*s = *o
		return true
	}
	for i := range s.regs {
		a, b := &s.regs[i], &o.regs[i]
		switch {
		case *a == *b:
		case a.kind == sValue && b.kind == sValue && a.m == b.m && a.off == b.off:
			a.elem, a.id = -1, 0
		default:
			*a = smallValue{}
		}
	}
	for i := range s.written {
		s.written[i] &= o.written[i]
	}
	for i, w := range s.words {
		if o.word(w.off, w.size) != w {
			s.words[i] = frameWord{}
		}
	}
	return s.open == o.open
}

// word returns what is known of exactly that place.
func (s *smallState) word(off, size int32) frameWord {
	for _, w := range s.words {
		if w.off == off && w.size == size {
			return w
		}
	}
	return frameWord{}
}

// constant returns the constant that stands in exactly that place.
func (s *smallState) constant(off int64, size int32) (uint64, bool) {
	w := s.word(int32(off), size)
	return uint64(w.v.off), w.size != 0 && w.v.kind == sConst
}

// store notes a write of n bytes to the frame, with the value if it is known.
func (s *smallState) store(off int64, n int, v smallValue) {
	s.written.set(off, n, true)
	free := -1
	for i, w := range s.words {
		if w.size != 0 && int64(w.off) < off+int64(n) && off < int64(w.off+w.size) {
			s.words[i] = frameWord{}
		}
		if s.words[i].size == 0 {
			free = i
		}
	}
	if v.kind == sConst {
		v.off = int64(uint64(v.off) & (1<<(8*n) - 1))
	}
	if free >= 0 && (v.kind == sConst || v.kind != sNum && n == 8) {
		s.words[free] = frameWord{int32(off), int32(n), v}
	}
}

// replace puts with in the place of everything that is like old.
func (s *smallState) replace(old smallKind, id int32, with func(smallValue) smallValue) {
	for i, v := range s.regs {
		if v.kind == old && v.id == id {
			s.regs[i] = with(v)
		}
	}
	for i, w := range s.words {
		if w.size != 0 && w.v.kind == old && w.v.id == id {
			if s.words[i].v = with(w.v); s.words[i].v.kind == sNum {
				s.words[i] = frameWord{}
			}
		}
	}
}

// jumpChoice says which ways a conditional jump can go.
type jumpChoice uint8

const (
	eitherWay jumpChoice = iota
	alwaysTaken
	neverTaken
)

// small is what is known of a small program.
type small struct {
	p      *Program
	layout Layout
	at     []smallState
	jumps  []jumpChoice // of conditional jumps
	sizes  []int64      // of what the call at a slot reserves
	// From smallLive: registers whose number is needed behind an operation, and
	// operations that nothing needs.
	live  []uint16
	dead  []bool
	entry uint16 // registers needed before the first operation
	frame int    // bytes of the frame in use
	fused []bool // stores that are one addition to memory with the two operations before
	// claims says that it writes values in ways in which a run in the middle of
	// another one would not do.
	claims bool
}

// maxSmall is how many slots a small program can have.
const maxSmall = 1024

// newSmall analyses a program; nil means that it is not a small one.
func newSmall(p *Program, l Layout) *small {
	if !p.kind.hasRegs() || len(p.ops) > maxSmall || l.Full {
		return nil
	}
	for i := range p.ops {
		if p.ops[i].cost != 0 || p.ops[i].code == opCallLocal {
			return nil
		}
	}
	s := &small{p: p, layout: l, at: make([]smallState, len(p.ops)), jumps: make([]jumpChoice, len(p.ops)), sizes: make([]int64, len(p.ops))}
	first := &s.at[0]
	first.reached = true
	for r := range first.regs {
		first.regs[r].kind = sConst
	}
	first.regs[R1] = smallValue{kind: sContext}
	first.regs[R10] = smallValue{kind: sFrame}
	for pc := range p.ops {
		if s.at[pc].reached && !s.step(pc) {
			return nil
		}
	}
	s.smallLive()
	return s
}

// step follows one operation to its successors.
func (s *small) step(pc int) bool {
	o := &s.p.ops[pc]
	st := s.at[pc] // a copy
	dst, src := &st.regs[o.dst], st.regs[o.src]
	kind, f := o.code&^3, o.code&3
	switch {
	case o.code == opMov+form64X:
		*dst = src
	case o.code == opMov+form64K || o.code == opMov+form32K:
		*dst = smallValue{kind: sConst, off: o.imm}
	case o.code == opAdd+form64K && dst.kind >= sContext && dst.kind != sMap && dst.kind != sMaybeValue && dst.kind != sMaybeRecord && near(dst.off+o.imm):
		dst.off += o.imm
	case o.code >= opAdd && o.code < opJeq:
		*dst = smallValue{}
	case o.code >= opJeq && o.code < opSingles:
		return s.branch(pc, &st, kind, f)
	case o.code >= opLoad8 && o.code <= opLoads32:
		if !s.canAccess(&st, src, int64(o.off), int(o.size), false) {
			return false
		}
		*dst = smallValue{}
		if src.kind == sFrame && o.code == opLoad64 {
			*dst = st.word(int32(src.off+int64(o.off)), 8).v
		}
	case o.code == opStoreK || o.code == opStoreX:
		val := src
		if o.code == opStoreK {
			val = smallValue{kind: sConst, off: o.imm}
		}
		if !s.canAccess(&st, *dst, int64(o.off), int(o.size), true) {
			return false
		}
		if dst.kind == sFrame {
			st.store(dst.off+int64(o.off), int(o.size), val)
		}
	case o.code == opAtomic:
		if dst.kind != sValue && dst.kind != sRecord || (dst.off+int64(o.off))%int64(o.size) != 0 ||
			!s.canAccess(&st, *dst, int64(o.off), int(o.size), true) {
			return false
		}
		if o.imm == atomicCmpXchg {
			st.regs[R0] = smallValue{}
		} else if o.imm&atomicFetch != 0 {
			st.regs[o.src] = smallValue{}
		}
	case o.code == opLoadImm:
		*dst = s.loadImm(pc)
		return s.at[pc+2].join(&st)
	case o.code == opCall:
		if !s.call(pc, &st) {
			return false
		}
	case o.code == opJa:
		return s.at[o.off].join(&st)
	case o.code == opExit:
		return st.open == 0
	case o.code == opNop:
	default:
		*dst = smallValue{}
	}
	return s.at[pc+1].join(&st)
}

// near reports whether an offset is one that pointers are followed to.
func near(off int64) bool { return off == int64(int16(off)) }

// loadImm is the value of a 64-bit immediate.
func (s *small) loadImm(pc int) smallValue {
	n, value, off, ok := mapImm(s.p.slots[pc])
	switch {
	case !ok:
		return smallValue{kind: sConst, off: s.p.slots[pc].Constant}
	case !value:
		return smallValue{kind: sMap, m: int32(n)}
	case s.p.maps[n].perCPU || !near(int64(off)):
		return smallValue{}
	}
	return smallValue{kind: sValue, m: int32(n), off: int64(off)}
}

// canAccess reports whether an access is in bounds, and of a load from the
// frame whether all of it was written.
func (s *small) canAccess(st *smallState, v smallValue, off int64, n int, write bool) bool {
	off += v.off
	end := off + int64(n)
	switch v.kind {
	case sContext:
		return !write && off >= 0 && end <= int64(s.p.kind.ContextSize())
	case sFrame:
		return off >= -FrameSize && end <= 0 && (write || st.written.count(off, n) == n)
	case sValue:
		m := s.p.maps[v.m]
		return off >= 0 && end <= int64(m.spec.ValueSize) && !(write && m.spec.ReadOnly)
	case sRecord:
		return off >= 0 && end <= s.sizes[v.id]
	}
	return false
}

// branch follows a conditional jump both ways, or the only one.
func (s *small) branch(pc int, st *smallState, kind, f opc) bool {
	o := &s.p.ops[pc]
	d, taken := st.regs[o.dst], *st
	equal, other := &taken, st // where the register is 0
	if kind == opJne {
		equal, other = other, equal
	}
	if zero := f == form64K && o.imm == 0; kind == opJeq || kind == opJne {
		switch {
		case d.kind == sConst && (f == form64K || f == form32K):
			same := d.off == o.imm
			if f == form32K {
				same = uint32(d.off) == uint32(o.imm)
			}
			s.jumps[pc] = neverTaken
			if same == (kind == opJeq) {
				s.jumps[pc] = alwaysTaken
			}
		case zero && (d.kind == sValue || d.kind == sRecord):
			s.jumps[pc] = neverTaken
			if kind == opJne {
				s.jumps[pc] = alwaysTaken
			}
		case zero && d.kind == sMaybeValue, zero && d.kind == sMaybeRecord:
			equal.replace(d.kind, d.id, func(smallValue) smallValue { return smallValue{kind: sConst} })
			other.replace(d.kind, d.id, func(v smallValue) smallValue {
				v.kind-- // to the one without "maybe"
				return v
			})
			if d.kind == sMaybeRecord {
				equal.open = 0
			}
		}
	}
	return (s.jumps[pc] == neverTaken || s.at[o.off].join(&taken)) && (s.jumps[pc] == alwaysTaken || s.at[pc+1].join(st))
}
