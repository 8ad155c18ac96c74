package bpf

// need is what stands behind an operation may look at: numbers in registers, and
// bytes of the frame.
type need struct {
	regs  uint16
	bytes frameBytes
}

func (n *need) add(o *need) {
	n.regs |= o.regs
	for i := range n.bytes {
		n.bytes[i] |= o.bytes[i]
	}
}

func bit(r uint8) uint16 { return 1 << r }

// smallLive finds out, from the end, what is needed and what is not. A register
// whose content is known where it is used does not have to hold it.
func (s *small) smallLive() {
	ops := s.p.ops
	before := make([]need, len(ops))
	s.live, s.dead, s.fused = make([]uint16, len(ops)), make([]bool, len(ops)), make([]bool, len(ops)+2)
	targets := s.targets()
	for pc := len(ops) - 1; pc >= 0; pc-- {
		o := &ops[pc]
		if !s.at[pc].reached {
			continue
		}
		n := &before[pc]
		switch {
		case o.code == opExit:
		case o.code == opJa:
			n.add(&before[o.off])
		case o.code == opLoadImm:
			n.add(&before[pc+2])
		case o.code >= opJeq && o.code < opSingles:
			if s.jumps[pc] != neverTaken {
				n.add(&before[o.off])
			}
			if s.jumps[pc] != alwaysTaken {
				n.add(&before[pc+1])
			}
		default:
			n.add(&before[pc+1])
		}
		s.live[pc] = n.regs
		if s.fused[pc+1] || s.fused[pc+2] {
			s.dead[pc] = true
			continue
		}
		s.fused[pc] = s.fuses(pc, n.regs, targets)
		s.needs(pc, n)
	}
	s.entry = before[0].regs
}

// targets returns which slots are jumped to.
func (s *small) targets() []bool {
	t := make([]bool, len(s.p.ops))
	for pc := range s.p.ops {
		if o := &s.p.ops[pc]; o.code == opJa || o.code >= opJeq && o.code < opSingles {
			t[o.off] = true
		}
	}
	return t
}

// fuses reports whether a store is the last of three operations that add to a
// value, of whose sum nothing else is needed: they become one instruction.
func (s *small) fuses(pc int, live uint16, targets []bool) bool {
	store := &s.p.ops[pc]
	if pc < 2 || store.code != opStoreX || store.size < 4 || targets[pc] || targets[pc-1] || !s.at[pc-2].reached {
		return false
	}
	load, add := &s.p.ops[pc-2], &s.p.ops[pc-1]
	place := s.at[pc].regs[store.dst]
	sum := store.src
	return place.kind == sValue && place == s.at[pc-2].regs[load.src] && load.off == store.off && load.size == store.size &&
		(load.code == opLoad32 || load.code == opLoad64) && load.dst == sum && add.dst == sum && live&bit(sum) == 0 &&
		(place.elem >= 0 || load.src == store.dst && store.dst != sum) &&
		(add.code == opAdd+form64K || add.code == opAdd+form64X && add.src != sum ||
			store.size == 4 && (add.code == opAdd+form32K || add.code == opAdd+form32X && add.src != sum))
}

// uses notes that the frame reaches down to off, where something is written.
func (s *small) uses(off int64) { s.frame = max(s.frame, int(-off+7)&^7) }

// needs turns what is needed behind an operation into what is needed before it.
func (s *small) needs(pc int, n *need) {
	o := &s.p.ops[pc]
	st := &s.at[pc]
	f := o.code & 3
	x := f == form64X || f == form32X
	pure := func(uses uint16) {
		if n.regs&bit(o.dst) == 0 {
			s.dead[pc] = true
			return
		}
		n.regs = n.regs&^bit(o.dst) | uses
	}
	operand := func(r uint8) (uses uint16) {
		if v := st.regs[r]; v.kind == sValue && v.elem < 0 {
			uses = bit(r)
		}
		return uses
	}
	switch {
	case o.code >= opAdd && o.code < opJeq:
		uses := bit(o.dst)
		if o.code&^3 == opMov {
			uses = 0
		}
		if x {
			uses |= bit(o.src)
		}
		pure(uses)
	case o.code >= opJeq && o.code < opSingles:
		if s.jumps[pc] != eitherWay || st.regs[o.dst].kind == sMaybeRecord && s.nullCheck(pc) {
			return
		}
		n.regs |= bit(o.dst)
		if x {
			n.regs |= bit(o.src)
		}
	case o.code >= opLoad8 && o.code <= opLoads32:
		pure(operand(o.src))
		if v := st.regs[o.src]; v.kind == sFrame && !s.dead[pc] {
			n.bytes.set(v.off+int64(o.off), int(o.size), true)
		}
	case o.code == opStoreK || o.code == opStoreX:
		if v := st.regs[o.dst]; v.kind == sFrame {
			at := v.off + int64(o.off)
			if n.bytes.count(at, int(o.size)) == 0 {
				s.dead[pc] = true
				return
			}
			n.bytes.set(at, int(o.size), false)
			s.uses(at)
		}
		n.regs |= operand(o.dst)
		switch {
		case s.fused[pc]:
			if add := &s.p.ops[pc-1]; add.code&1 != 0 {
				n.regs |= bit(add.src)
			}
			return
		case o.code == opStoreX:
			n.regs |= bit(o.src)
		}
		s.claims = s.claims || st.regs[o.dst].kind == sValue
	case o.code == opAtomic:
		n.regs |= bit(o.src) | operand(o.dst)
		if o.imm == atomicCmpXchg {
			n.regs |= bit(uint8(R0))
		}
	case o.code == opCall:
		s.callNeeds(pc, n)
	case o.code == opExit:
		n.regs = bit(uint8(R0))
	case o.code == opLoadImm:
		pure(0)
	case o.code >= opMovs8 && o.code <= opMovs16w:
		pure(bit(o.src))
	case o.code == opNop, o.code == opJa:
	default:
		pure(bit(o.dst))
	}
}

// nullCheck reports whether the jump at pc compares with zero.
func (s *small) nullCheck(pc int) bool {
	o := &s.p.ops[pc]
	return (o.code == opJeq+form64K || o.code == opJne+form64K) && o.imm == 0
}

// callNeeds is needs for a helper call, all of whose arguments that matter are
// known.
func (s *small) callNeeds(pc int, n *need) {
	args := &s.at[pc].regs
	h := Helper(s.p.ops[pc].imm)
	r0 := n.regs&bit(uint8(R0)) != 0
	n.regs &^= 1<<(R5+1) - 1
	switch h {
	case HelperGetComm:
		s.claims = s.claims || args[R1].kind == sValue
		if args[R1].kind == sFrame {
			n.bytes.set(args[R1].off, commSize, false)
			s.uses(args[R1].off)
		} else if args[R1].kind == sValue && args[R1].elem < 0 {
			n.regs |= bit(uint8(R1))
		}
	case HelperMapLookup:
		if _, ok := s.at[pc].constant(args[R2].off, 4); !ok && r0 {
			n.bytes.set(args[R2].off, 4, true)
		}
		s.dead[pc] = !r0
	case HelperRingOutput, HelperPerfEventOutput:
		_, data, size := outputArgs(h, args)
		switch {
		case data.kind == sFrame:
			n.bytes.set(data.off, int(size.off), true)
		case data.kind == sValue && data.elem < 0 && h == HelperRingOutput:
			n.regs |= bit(uint8(R2))
		case data.kind == sValue && data.elem < 0:
			n.regs |= bit(uint8(R4))
		}
	case HelperRingReserve, HelperRingSubmit, HelperRingDiscard:
	default:
		s.dead[pc] = !r0
	}
}
