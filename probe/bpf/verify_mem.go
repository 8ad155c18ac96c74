package bpf

// accessClass says which checks an access needs at run time.
type accessClass uint8

const (
	generic accessClass = iota // everything: the address may be any
	guessed                    // check that it is at its base; if not, everything
	bounded                    // only its offset
	direct                     // nothing
)

// access is a place in memory, as an operation or a helper uses it.
type access struct {
	class accessClass
	base  base
	size  int   // bytes; 0 = not known in advance
	end   int64 // of bounded and guessed: the end of the bytes that may be accessed
	low   uint8 // which of the lowest three bits of the address may be set
	wet   bool  // it is not in the frame, or all its possible bytes there were written

	// The place is disp bytes after the address in register ptr. Relative to its base
	// it is at off; with byIndex, at off plus the number in register index.
	ptr   uint8
	disp  int64
	by    locator
	index uint8
	off   int64
	ahead bool // the number added to off, or to disp, is not negative
}

// locator says how a place is found from its base.
type locator uint8

const (
	byAddress locator = iota // by the address only
	byOffset
	byIndex
)

// extent returns the range of offsets from a base that may be accessed.
func (a *verifier) extent(b base, write bool) (lo, hi int64, ok bool) {
	switch b.kind {
	case inContext:
		return 0, int64(a.p.contextSize()), !write && a.p.kind.hasRegs()
	case inFrame:
		return -FrameSize, 0, true
	case inValue:
		s := &a.p.maps[b.m].spec
		return 0, int64(s.ValueSize), !(write && s.ReadOnly)
	case inRecord:
		return 0, a.sizes[b.id][0], true
	}
	return 0, 0, false
}

// access analyzes an access of n bytes, off from register r, and records the
// consequences of its success.
func (a *verifier) access(pc int, st *state, r uint8, off int64, n int, write bool) access {
	acc := a.classify(pc, st, r, off, n, write)
	if v := &st.regs[r]; v.null && v.near() {
		st.decideNull(r, false) // there is nothing at 0
	}
	if lo, hi, ok := a.extent(acc.base, write); ok && acc.class >= bounded {
		st.refine(r, numberBetweenSigned(lo-off, hi-off-int64(n)))
	}
	return acc
}

// classify determines the class of an access.
func (a *verifier) classify(pc int, st *state, r uint8, off int64, n int, write bool) access {
	v := st.regs[r]
	acc := access{base: v.base, size: n, ptr: r, disp: off, wet: v.kind != inFrame}
	if acc.low = 7; v.kind != noBase { // they are all aligned to 8
		at := v.num.plus(constant(uint64(off)))
		acc.low = uint8(at.val|at.unk) & 7
	}
	lo, hi, ok := a.extent(v.base, write)
	inMain := a.p.fns.indexOf(pc) == 0
	ok = ok && int64(n) <= hi-lo
	canGuess := ok && !v.null && v.fixed(a.p) && (v.kind != inFrame || inMain)
	acc.end = hi
	if !ok || v.null || !v.near() {
		if canGuess {
			acc.class = guessed
		}
		a.warnAccess(pc, &v, off, n, write)
		return acc
	}
	first, last := v.num.lo+off, v.num.hi+off
	switch {
	case first >= lo && last+int64(n) <= hi:
		acc.class = direct
		if v.kind == inFrame {
			all := int(last-first) + n
			acc.wet = st.written.count(first, all) == all
		}
	case last < lo || first+int64(n) > hi: // generic, whose check will report the error
		a.warnAccess(pc, &v, off, n, write)
		return acc
	case v.kind != inFrame:
		acc.class = bounded
	case canGuess:
		acc.class = guessed
	}
	acc.ahead = v.num.lo >= 0
	if c, ok := v.num.singleValue(); ok {
		acc.by, acc.off = byOffset, int64(c)+off
		return acc
	}
	if v.kind == inFrame && !inMain {
		acc.class = generic
		return acc
	}
	// A register with the offset saves computing the address.
	for q := R0; q <= R9; q++ {
		x := &st.regs[q]
		if d := v.delta - x.delta + off; x.kind == noBase && x.vn == v.vn && v.vn != 0 && d == int64(int32(d)) {
			acc.by, acc.index, acc.off, acc.ahead = byIndex, uint8(q), d, x.num.lo >= 0
			break
		}
	}
	return acc
}

// fixed reports whether the program's address of a base is the same in every run.
func (b base) fixed(p *Program) bool {
	switch b.kind {
	case inContext, inFrame:
		return true
	case inValue:
		return b.elem >= 0 && !p.maps[b.m].perCPU
	}
	return false
}

// address is the program's address of a fixed base, in the first function.
func (b base) address() uint64 {
	switch b.kind {
	case inContext:
		return segPointer(segContext, 0, 0)
	case inFrame:
		return segPointer(segStack, 0, StackSize)
	}
	return segPointer(segMaps+int(b.m), int(b.elem), 0)
}

// load is the effect of a load, and its result.
func (a *verifier) load(pc int, st *state, o *op) value {
	v := st.regs[o.src]
	if a.p.follows && (v.kind == noBase || v.null) { // it may be the guest's memory
		a.untracked = true
		if a.final {
			a.facts[pc].follows = true
		}
		if o.code >= opLoads8 {
			return scalarValue(anyNumber.signExtend(int(o.size)))
		}
		return scalarValue(numberOfSize(int(o.size)))
	}
	acc := a.access(pc, st, o.src, int64(o.off), int(o.size), false)
	a.noteAccess(pc, acc)
	a.checkWritten(pc, st, &v, acc)
	a.warnAligned(pc, &v, o)
	exact := acc.class == direct && acc.by == byOffset && v.kind == inFrame
	if exact {
		if w, ok := st.word(acc.off, acc.size); ok {
			if o.code < opLoads8 {
				return w
			}
			return scalarValue(w.num.signExtend(acc.size))
		}
	}
	if v.kind == inFrame || acc.class <= guessed {
		a.untracked = true
	}
	if c, ok := a.constantAt(&v, &acc, o.code >= opLoads8); ok {
		if a.final {
			a.constants[pc] = c
		}
		return constValue(c)
	}
	n := numberOfSize(acc.size)
	if o.code >= opLoads8 {
		n = anyNumber.signExtend(acc.size)
	}
	return value{num: n, mixed: v.kind == inFrame || v.kind == noBase || a.p.kind == Raw}
}

// constantAt returns the result of a load from a frozen map, if it is known.
func (a *verifier) constantAt(v *value, acc *access, signed bool) (uint64, bool) {
	if a.constants == nil || v.kind != inValue || v.elem != 0 || acc.class != direct || acc.by != byOffset {
		return 0, false
	}
	return constantIn(&a.p.maps[v.m].spec, acc.off, acc.size, signed)
}

// store is the effect of a store of v.
func (a *verifier) store(pc int, st *state, o *op, v value) {
	to := st.regs[o.dst]
	acc := a.access(pc, st, o.dst, int64(o.off), int(o.size), true)
	if at := to.num.plus(constant(uint64(o.off))); o.code == opAtomic && (at.val|at.unk)&uint64(o.size-1) != 0 {
		acc.class = generic // it may not be aligned
		if at.val&^at.unk&uint64(o.size-1) != 0 && to.kind != noBase {
			a.warn(pc, "an atomic operation is not aligned")
		}
	} else if o.code != opAtomic {
		a.warnAligned(pc, &to, o)
	}
	a.noteAccess(pc, acc)
	a.spilled = a.spilled || v.kind == inContext
	if v.kind == inContext && (to.kind != inFrame || acc.class != direct || acc.by != byOffset) {
		a.untracked = true
	}
	a.overwrite(st, acc, to, v)
}

// overwrite is the effect on the frame of a write to a place.
func (a *verifier) overwrite(st *state, acc access, to value, v value) {
	switch {
	case acc.class <= guessed: // it may have gone anywhere
		st.words = nil
		if to.kind == noBase || to.kind == inFrame {
			st.touched.setAll()
		}
	case to.kind != inFrame:
	case acc.by == byOffset:
		st.put(acc.off, acc.size, v)
	default:
		st.words = nil
		first, n := acc.span(&to)
		st.touched.set(first, n, true)
	}
}

// span is the range of bytes in the frame that an access may touch; all must be
// proven to be in the frame.
func (acc *access) span(v *value) (first int64, n int) {
	first = v.num.lo + acc.disp
	return first, int(v.num.hi-v.num.lo) + acc.size
}

// noteAccess records the analysis of an operation's access.
func (a *verifier) noteAccess(pc int, acc access) {
	if a.final {
		a.facts[pc].mem = acc
	}
}
