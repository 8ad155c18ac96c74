package bpf

// branch follows a conditional jump both ways, or the only one. It reports whether a
// path continues after the jump, and makes st the state there.
func (a *verifier) branch(pc int, st *state) bool {
	o := &a.p.ops[pc]
	taken, falls := &a.taken, &a.falls
	*taken, *falls = *st, *st
	canJump, canFall := a.compare(o, taken, true), a.compare(o, falls, false)
	if a.final {
		f := &a.facts[pc]
		switch {
		case !canFall:
			f.jump = alwaysTaken
		case !canJump:
			f.jump = neverTaken
		case isNullCheck(st, o):
			f.test = st.regs[o.dst].base
		}
	}
	if canJump {
		a.loopStep(pc, taken)
		a.reach(int(o.off), taken)
	}
	*st = *falls
	return canFall
}

// isNullCheck reports whether a jump compares an address that may be 0 with 0.
func isNullCheck(st *state, o *op) bool {
	d := &st.regs[o.dst]
	c, ok := d.num.singleValue()
	return (o.code == opJeq+form64K || o.code == opJne+form64K) && o.imm == 0 && d.null && ok && c == 0
}

// compare adds the knowledge that a comparison holds, or that it does not. It returns
// false if that is impossible.
func (a *verifier) compare(o *op, st *state, holds bool) bool {
	d, s := st.regs[o.dst], constValue(uint64(o.imm))
	byReg := o.code&1 != 0
	if byReg {
		s = st.regs[o.src]
	}
	kind, long := o.code&^3, o.code&3 < form32K
	switch {
	case isNullCheck(st, o):
		st.decideNull(o.dst, holds == (kind == opJeq))
		return true
	case d.kind == noBase && s.kind == noBase:
	case long && s.isConst(0) && (kind == opJeq || kind == opJne) && d.kind != noBase && !d.null && d.near():
		return holds == (kind == opJne) // no address is 0
	case long && kind != opJset && samePlace(d.base, s.base) && d.near() && s.near():
		kind = signedKind[kind] // addresses close to their base are ordered like their offsets
	default:
		return true
	}
	x, y := d.num, s.num
	if !long {
		if x, y = x.truncate32(), y.truncate32(); kind >= opJsgt && kind <= opJsle {
			x, y = x.signExtend(4), y.signExtend(4)
		}
	}
	if !order(kind, holds, &x, &y) {
		return false
	}
	if !long {
		x, y = lowerOf(x), lowerOf(y)
	}
	ok := st.refine(o.dst, x)
	if byReg {
		ok = st.refine(o.src, y) && ok
	}
	return ok
}

// samePlace reports whether two addresses with these bases count from the same place.
func samePlace(b, o base) bool {
	if b != o || b.null {
		return false
	}
	switch b.kind {
	case inContext, inFrame:
		return true
	case inValue:
		return b.elem >= 0 || b.id != 0
	}
	return b.kind == inRecord
}

// signedKind has the signed form of each comparison.
var signedKind = map[opc]opc{opJeq: opJeq, opJne: opJne, opJgt: opJsgt, opJge: opJsge, opJlt: opJslt, opJle: opJsle,
	opJsgt: opJsgt, opJsge: opJsge, opJslt: opJslt, opJsle: opJsle, opJset: opJset}

// opposite has, for each ordering comparison, the one that holds if it does not.
var opposite = map[opc]opc{opJeq: opJne, opJne: opJeq, opJgt: opJle, opJle: opJgt, opJge: opJlt, opJlt: opJge,
	opJsgt: opJsle, opJsle: opJsgt, opJsge: opJslt, opJslt: opJsge}

// order adds the knowledge from a comparison to two numbers. It returns false if no
// numbers satisfy it.
func order(kind opc, holds bool, x, y *number) bool {
	if kind == opJset {
		return orderBits(holds, x, y)
	}
	if !holds {
		kind = opposite[kind]
	}
	switch kind {
	case opJgt, opJge, opJsgt, opJsge:
		x, y = y, x
		kind = map[opc]opc{opJgt: opJlt, opJge: opJle, opJsgt: opJslt, opJsge: opJsle}[kind]
	}
	switch kind {
	case opJeq:
		ok := x.meet(*y)
		*y = *x
		return ok
	case opJne:
		return x.exclude(y) && y.exclude(x)
	case opJlt:
		if x.ulo == ^uint64(0) || y.uhi == 0 {
			return false
		}
		x.uhi, y.ulo = min(x.uhi, y.uhi-1), max(y.ulo, x.ulo+1)
	case opJle:
		x.uhi, y.ulo = min(x.uhi, y.uhi), max(y.ulo, x.ulo)
	case opJslt:
		if x.lo == 1<<63-1 || y.hi == -1<<63 {
			return false
		}
		x.hi, y.lo = min(x.hi, y.hi-1), max(y.lo, x.lo+1)
	case opJsle:
		x.hi, y.lo = min(x.hi, y.hi), max(y.lo, x.lo)
	}
	return x.ulo <= x.uhi && y.ulo <= y.uhi && x.lo <= x.hi && y.lo <= y.hi && x.tidy() && y.tidy()
}

// exclude removes y, if it is a single number, from the ends of the range of n. It
// returns false if nothing is left.
func (n *number) exclude(y *number) bool {
	c, ok := y.singleValue()
	if !ok {
		return true
	}
	if v, one := n.singleValue(); one {
		return v != c
	}
	if n.ulo == c {
		n.ulo++
	}
	if n.uhi == c {
		n.uhi--
	}
	if n.lo == int64(c) {
		n.lo++
	}
	if n.hi == int64(c) {
		n.hi--
	}
	return n.tidy()
}

// orderBits is order for the test of bits.
func orderBits(holds bool, x, y *number) bool {
	c, ok := y.singleValue()
	switch {
	case !ok:
		return true
	case !holds:
		return x.meet(numberOfBits(0, ^c))
	case c&(c-1) == 0 && c != 0:
		return x.meet(numberOfBits(c, ^c))
	}
	return (x.val|x.unk)&c != 0
}
