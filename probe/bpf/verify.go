package bpf

import (
	"math"
	"math/bits"
	"slices"
)

// The verifier finds out what a program certainly does, whatever it is run on: it
// follows every path through the program with what is known of the registers and
// of the frame, joins what is known where paths meet, and goes on until nothing
// changes. The compiler drops each check that is proven not to be needed, so what is
// proven must be true; what is not is checked as the program runs. What certainly is a
// mistake is a warning.

// jumpChoice says which ways a conditional jump can go.
type jumpChoice uint8

const (
	eitherWay jumpChoice = iota
	alwaysTaken
	neverTaken
)

// fact is what is known of one operation.
type fact struct {
	reached bool
	open    bool // a record may be open
	jump    jumpChoice
	mem     access    // of a load, store or atomic operation
	call    *callFact // of a helper call
	test    base      // of a comparison of an address with 0: what it counts from
}

// verifier is the analysis of one program.
type verifier struct {
	p             *Program
	heads         []*state // what is known where blocks begin: at the program's start and where jumps go
	isHead, loops []bool   // where blocks begin, and of those where jumps back go
	visits        []uint16
	todo          []bool // heads to go on from
	joins         int
	stops         []int64
	sizes         map[int32][2]int64 // of records, by id: the least and the greatest they can have

	now, taken, falls state // scratch of block and branch

	final    bool // everything is known: facts and warnings are written down
	facts    []fact
	warnings []Warning
	steps    map[int]*loopSteps // by head of a loop

	escapes   bool // the context's address may be where it is not followed
	spilled   bool // it is in memory
	ends      bool // some record is ended that is not known
	untracked bool // something was loaded that may have been put there unseen
}

// Limits of the analysis.
const (
	widenAfter = 3       // joins at a loop's head before numbers grow fast
	maxVisits  = 64      // joins at one place, before what differs there is not known any more
	maxJoins   = 1 << 16 // the same for the whole program, and two for each of its slots: that is a second
	maxStops   = 64
)

// verify analyses a program.
func verify(p *Program) *verifier {
	a := &verifier{p: p, heads: make([]*state, len(p.ops)), isHead: make([]bool, len(p.ops)), loops: make([]bool, len(p.ops)),
		todo: make([]bool, len(p.ops)), visits: make([]uint16, len(p.ops)), facts: make([]fact, len(p.ops)), sizes: map[int32][2]int64{}, steps: map[int]*loopSteps{}}
	a.findBlocks()
	first := new(state)
	for r := range first.regs {
		first.regs[r] = constValue(0)
		first.regs[r].unset = true
	}
	first.regs[R1] = value{base: base{kind: inContext}, num: constant(0)}
	if !p.kind.hasRegs() {
		first.regs[R2] = value{num: between(0, offMask), vn: -1}
	}
	first.regs[R10] = value{base: base{kind: inFrame}, num: constant(0)}
	a.reach(0, first)
	for more := true; more; {
		more = false
		for pc, todo := range a.todo { // so most paths to a place have come before what follows it
			if todo {
				a.todo[pc], more = false, true
				a.block(pc)
			}
		}
	}
	a.final = true
	for pc := range a.heads {
		if a.heads[pc] != nil {
			a.block(pc)
		}
	}
	a.escapes = a.escapes || a.spilled && a.untracked
	return a
}

// findBlocks finds where jumps go, and the numbers that counting loops stop at.
func (a *verifier) findBlocks() {
	a.isHead[0] = true
	stops := map[int64]bool{-1: true, 0: true, nearest: true, math.MaxInt32: true, math.MaxUint32: true}
	stop := func(c int64) {
		for _, s := range []int64{c - 1, c, c + 1} {
			if len(stops) < maxStops {
				stops[s] = true
			}
		}
	}
	for _, m := range a.p.maps {
		stop(int64(m.spec.ValueSize))
	}
	for pc := range a.p.ops {
		o := &a.p.ops[pc]
		if i := a.p.slots[pc]; i != nil && i.IsLoadOfFunctionPointer() {
			a.isHead[target(i, pc)] = true
		}
		if !o.jumps() && o.code != opCallLocal {
			continue
		}
		a.isHead[o.off] = true
		if o.jumps() && o.cost != 0 {
			a.loops[o.off] = true
		}
		if o.conditional() && o.code&1 == 0 {
			stop(o.imm)
		}
		if o.conditional() || o.code == opCallLocal {
			a.isHead[pc+1] = true
		}
	}
	for s := range stops {
		a.stops = append(a.stops, s)
	}
	slices.Sort(a.stops)
}

// conditional reports whether o is a conditional jump.
func (o *op) conditional() bool { return o.code >= opJeq && o.code < opSingles }

// jumps reports whether o is a jump.
func (o *op) jumps() bool { return o.conditional() || o.code == opJa }

// phi is the number of register r's value where the block at pc begins.
func (a *verifier) phi(pc, r int) int32 { return int32((r+1)*len(a.p.ops) + pc + 1) }

// def is the number of the value that the operation at pc makes.
func def(pc int) int32 { return int32(pc) + 1 }

// reach says that a path with that state comes to the block at pc.
func (a *verifier) reach(pc int, st *state) {
	if a.final {
		return
	}
	if a.heads[pc] == nil {
		s := *st
		a.heads[pc] = &s
		a.todo[pc] = true
		return
	}
	a.visits[pc]++
	a.joins++
	changed, escapes := a.heads[pc].join(st, meeting{
		phi:   func(r int) int32 { return a.phi(pc, r) },
		widen: a.loops[pc] && a.visits[pc] > widenAfter, stops: a.stops,
		tired: a.visits[pc] > maxVisits || a.joins > maxJoins+2*len(a.p.ops),
	})
	a.escapes = a.escapes || escapes
	a.todo[pc] = a.todo[pc] || changed
}

// block follows the operations from the head at pc to where the next block begins.
func (a *verifier) block(pc int) {
	st := &a.now
	*st = *a.heads[pc]
	for {
		o, f := &a.p.ops[pc], &a.facts[pc]
		if a.final {
			f.reached, f.open = true, len(st.open) > 0
			a.reads(pc, st)
		}
		switch {
		case o.code == opMissing:
			return
		case o.code == opExit:
			if a.final && len(st.open) > 0 && !a.ends {
				a.warn(pc, "the record that instruction %d reserves may not have been submitted or discarded", st.open[0]-1)
			}
			return
		case o.code == opJa:
			a.loopStep(pc, st)
			a.reach(int(o.off), st)
			return
		case o.conditional():
			a.branch(pc, st)
			return
		case o.code == opCallLocal:
			a.callLocal(pc, st)
			return
		}
		a.exec(pc, st)
		next := pc + 1
		if o.code == opLoadImm {
			next++
		}
		if pc = next; a.isHead[pc] {
			a.reach(pc, st)
			return
		}
	}
}

// enter follows a function whose address is taken: it may be called with anything.
func (a *verifier) enter(pc int) {
	in := new(state)
	for r := range in.regs {
		in.regs[r] = scalar(anyNumber)
	}
	in.regs[R10] = value{base: base{kind: inFrame}, num: constant(0)}
	a.reach(pc, in)
}

// callLocal follows a call of a function of the program.
func (a *verifier) callLocal(pc int, st *state) {
	o := &a.p.ops[pc]
	in := *st
	in.words, in.written = nil, frameBytes{}
	for r := range in.regs {
		v := &in.regs[r]
		if v.kind == inContext && r > int(R5) {
			a.escapes = true
		}
		if v.kind == inFrame || v.kind == inRecord || r > int(R5) {
			*v = scalar(anyNumber)
		}
		v.vn, v.delta, v.from, v.id = 0, 0, product{}, 0
	}
	in.regs[R10] = value{base: base{kind: inFrame}, num: constant(0)}
	a.reach(int(o.off), &in)
	st.words = nil
	st.define(def(pc))
	for r := R0; r <= R5; r++ {
		st.regs[r] = scalar(anyNumber)
	}
	st.regs[R0].vn = def(pc)
	a.reach(pc+1, st)
}

// exec is the effect of an operation that goes on to the next one.
func (a *verifier) exec(pc int, st *state) {
	o := &a.p.ops[pc]
	switch {
	case o.code < opJeq:
		a.set(pc, st, o.dst, a.alu(pc, st, o))
	case o.code >= opLoad8 && o.code <= opLoads32:
		a.set(pc, st, o.dst, a.load(pc, st, o))
	case o.code == opStoreK, o.code == opStoreX:
		v := constValue(uint64(o.imm))
		if o.code == opStoreX {
			v = st.regs[o.src]
		}
		a.store(pc, st, o, v)
	case o.code == opAtomic:
		if st.regs[o.src].kind == inContext {
			a.escapes = true
		}
		a.store(pc, st, o, scalar(anyNumber))
		if o.imm == atomicCmpXchg {
			a.set(pc, st, uint8(R0), scalar(ofSize(int(o.size))))
		} else if o.imm&atomicFetch != 0 {
			a.set(pc, st, o.src, scalar(ofSize(int(o.size))))
		}
		a.untracked = true
	case o.code == opLoadImm:
		a.set(pc, st, o.dst, a.loadImm(pc))
	case o.code == opCall:
		a.call(pc, st)
	case o.code == opNop:
	default:
		a.set(pc, st, o.dst, a.single(st, o))
	}
}

// set puts what the operation at pc makes into a register.
func (a *verifier) set(pc int, st *state, r uint8, v value) {
	if v.vn == 0 && v.kind != aMap {
		if _, ok := v.num.is(); !ok {
			st.define(def(pc))
			v.vn = def(pc)
		}
	}
	st.regs[r] = v
}

// ofSize is what a load of size bytes without sign may give.
func ofSize(size int) number { return between(0, ^uint64(0)>>(64-8*size)) }

// loadImm is the value of a 64-bit immediate.
func (a *verifier) loadImm(pc int) value {
	n, isValue, off, ok := mapImm(a.p.slots[pc])
	if i := a.p.slots[pc]; i.IsLoadOfFunctionPointer() {
		a.enter(target(i, pc))
	}
	switch {
	case !ok:
		return constValue(uint64(a.p.ops[pc].imm))
	case !isValue:
		return value{base: base{kind: aMap, m: int16(n)}, num: constant(0)}
	}
	return value{base: base{kind: inValue, m: int16(n)}, num: constant(uint64(off))}
}

// alu is the result of an operation that comes in fours.
func (a *verifier) alu(pc int, st *state, o *op) value {
	d, s := st.regs[o.dst], constValue(uint64(o.imm))
	if o.code&1 != 0 {
		s = st.regs[o.src]
	}
	long := o.code&3 < form32K
	kind := o.code &^ 3
	switch {
	case kind == opMov && long:
		s.unset = false
		return s
	case long && kind == opAdd && (d.kind == noBase || s.kind == noBase):
		return sum(d, s)
	case long && kind == opSub && s.kind == noBase:
		if c, ok := s.num.is(); ok {
			return sum(d, constValue(-c))
		}
		return value{base: d.base, num: d.num.minus(s.num)}
	case long && kind == opSub && samePlace(d.base, s.base):
		return scalar(d.num.minus(s.num)) // how far apart two addresses are
	}
	if d.kind != noBase && d.kind != aMap && kind != opMov || s.kind != noBase && s.kind != aMap {
		a.escapes = a.escapes || kind != opMov && d.kind == inContext || s.kind == inContext
		d, s = value{num: anyNumber}, value{num: anyNumber}
	}
	x, y := d.number(), s.number()
	if !long {
		x, y = x.as32(), y.as32()
	}
	n := combine(kind, long, x, y)
	if !long {
		n = n.as32()
	}
	v := scalar(n)
	if c, ok := y.is(); ok && long && d.kind == noBase && d.vn != 0 && d.vn != def(pc) && (kind == opLsh || kind == opMul) {
		if kind == opLsh {
			c = 1 << (c & 63)
		}
		if over, _ := bits.Mul64(x.uhi, c); over == 0 {
			v.from = product{d.vn, d.delta, c}
		}
	}
	return v
}

// sum is an address and a number, or two numbers.
func sum(d, s value) value {
	if s.kind != noBase {
		d, s = s, d
	}
	r := value{base: d.base, num: d.num.plus(s.num)}
	if c, ok := s.num.is(); ok {
		r.vn, r.delta, r.from = d.vn, d.delta+int64(c), d.from
	} else if c, ok := d.num.is(); ok {
		r.vn, r.delta, r.from = s.vn, s.delta+int64(c), s.from
	}
	return r
}

var numberOps = map[opc]func(x, y number) number{
	opAdd: number.plus, opSub: number.minus, opMul: number.times, opAnd: number.and, opOr: number.or, opXor: number.xor,
}

// combine is the result of an operation on numbers.
func combine(kind opc, long bool, x, y number) number {
	width := uint64(64)
	if !long {
		width = 32
	}
	if f := numberOps[kind]; f != nil {
		return f(x, y)
	}
	c, isConst := y.is()
	switch kind {
	case opMov:
		return y
	case opLsh, opRsh, opArsh:
		if !isConst {
			if kind == opRsh {
				return between(0, x.uhi)
			}
			return anyNumber
		}
		n := int(c & (width - 1))
		switch {
		case kind == opLsh:
			return x.shifted(n)
		case kind == opRsh:
			return x.shifted(-n)
		case !long:
			return x.extended(4).shiftedSigned(n)
		}
		return x.shiftedSigned(n)
	case opDiv:
		if isConst && c != 0 {
			return between(x.ulo/c, x.uhi/c)
		}
		return between(0, x.uhi)
	case opMod:
		if isConst && c != 0 {
			return between(0, min(x.uhi, c-1))
		}
		return between(0, x.uhi)
	}
	return anyNumber
}

// single is the result of an operation that comes in no fours.
func (a *verifier) single(st *state, o *op) value {
	d, s := st.regs[o.dst], st.regs[o.src]
	if d.kind == inContext || s.kind == inContext {
		a.escapes = true
	}
	x, y := d.number(), s.number()
	switch o.code {
	case opNeg64:
		return scalar(x.negated())
	case opNeg32:
		return scalar(x.as32().negated().as32())
	case opMovs8:
		return scalar(y.extended(1))
	case opMovs16:
		return scalar(y.extended(2))
	case opMovs32:
		return scalar(y.extended(4))
	case opMovs8w:
		return scalar(y.extended(1).as32())
	case opMovs16w:
		return scalar(y.extended(2).as32())
	case opLe16:
		return scalar(x.and(constant(math.MaxUint16)))
	case opLe32:
		return scalar(x.as32())
	case opSwap16:
		return scalar(ofSize(2))
	case opSwap32:
		return scalar(ofSize(4))
	}
	return scalar(anyNumber)
}
