package bpf

import (
	"math"
	"math/bits"
	"slices"
)

// The verifier determines facts about a program that hold in any environment: it
// follows every path through the program with knowledge about the registers and the
// frame, joins the knowledge where paths meet, and continues until nothing changes.
// The compiler drops each check that is proven to be unnecessary, so proofs must be
// true; everything else is checked at run time. A certain mistake is a warning.

// jumpChoice is the set of ways that a conditional jump can go.
type jumpChoice uint8

const (
	eitherWay jumpChoice = iota
	alwaysTaken
	neverTaken
)

// fact is the knowledge about one operation.
type fact struct {
	reached bool
	open    bool // a record may be open
	jump    jumpChoice
	mem     access    // of a load, store or atomic operation
	call    *callFact // of a helper call
	follows bool      // a load that may be of the guest's memory
	test    base      // of a comparison of an address with 0: its base
}

// verifier is the analysis of one program.
type verifier struct {
	p             *Program
	heads         []*state // the state where paths meet: at the starts of functions and at jump targets
	isHead, loops []bool   // where paths meet, and which of those are targets of jumps back
	outer         []int32  // the outermost loop that a slot is in, from 1 on: see findLoops
	visits        []uint16
	todo          []bool // heads to continue from
	lowest        int    // no head before this one is to do
	joins, work   int
	noResult      []bool // functions that may end without writing R0
	stops         []int64
	sizes         map[int32][2]int64 // of records, by id: the least and the greatest possible
	live          int                // heads that are kept
	free          []*state           // of heads that are not kept any more

	now, taken, falls state // scratch of block and branch

	final    bool // the analysis is complete: facts and warnings are recorded
	closed   bool // nothing changes any more
	tell     bool // warnings are wanted
	facts    []fact
	warnings []Warning
	unended  []Warning          // about records, unless an unknown record is ended
	more     int                // warnings that are omitted
	gaveUp   bool               // the program is too complex: nothing is known
	steps    map[int]*loopSteps // by head of a loop

	escapes   bool // the context's address may be where it is not tracked
	spilled   bool // it is in memory
	ends      bool // an unknown record is ended
	untracked bool // a value was loaded whose store may have been missed

	constants map[int]uint64 // results of loads from frozen maps, by slot; nil: they are not known

	*walker // it follows each path by itself; nil: it joins them
}

// Limits of the analysis.
const (
	widenAfter = 3       // joins at a loop's head before numbers grow fast
	maxVisits  = 64      // joins at one place, before values that differ there become unknown
	maxJoins   = 1 << 16 // the same for the whole program, and two for each of its slots: that takes a second
	maxStops   = 64

	maxHeads = 1 << 14 // heads that are kept at a time
	maxFree  = 64
	joinWork = 4 // a join counts as that many instructions
)

// workFloor is maxWork for a program without instructions; only tests change it.
var workFloor = 1 << 20

// maxWork bounds the work of analyzing a program, in instructions followed: a
// fraction of a second.
func maxWork(slots int) int { return workFloor + 16*slots }

// verify analyzes a program. It gives up if that takes more work than maxWork, or
// more than maxHeads at a time: then nothing is proven, and there are no warnings.
func verify(p *Program, tell bool) *verifier {
	a := newVerifier(p, tell)
	a.run()
	return a
}

func (a *verifier) run() {
	a.findLoops()
	a.reach(0, a.firstState())
	a.follow()
	if a.gaveUp {
		a.assumeNothing()
		return
	}
	if a.final = true; !a.ends {
		a.warnings = append(a.warnings, a.unended...)
	}
	a.escapes = a.escapes || a.spilled && a.untracked
}

func newVerifier(p *Program, tell bool) *verifier {
	n := len(p.ops)
	a := &verifier{p: p, tell: tell, heads: make([]*state, n), isHead: make([]bool, n), loops: make([]bool, n), outer: make([]int32, n), todo: make([]bool, n),
		visits: make([]uint16, n), facts: make([]fact, n), noResult: make([]bool, len(p.fns.starts)), sizes: map[int32][2]int64{}, steps: map[int]*loopSteps{}}
	a.findBlocks()
	return a
}

// firstState is the state at the beginning of the program.
func (a *verifier) firstState() *state {
	first := new(state)
	for r := range first.regs {
		first.regs[r] = constValue(0)
		first.regs[r].unset = true
	}
	first.regs[R1] = value{base: base{kind: inContext}, num: constant(0)}
	if !a.p.kind.hasRegs() {
		first.regs[R2] = value{num: numberBetween(0, offMask), vn: -1}
	}
	first.regs[R10] = value{base: base{kind: inFrame}, num: constant(0)}
	return first
}

// findBlocks finds jump targets, and the numbers that counting loops stop at.
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
		if i := a.p.slots[pc]; o.code == opLoadImm && i.IsLoadOfFunctionPointer() {
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
	}
	for s := range stops {
		a.stops = append(a.stops, s)
	}
	slices.Sort(a.stops)
}

// conditional reports whether o is a conditional jump.
func (o *op) conditional() bool { return o.code >= opJeq && o.code < opSingles }

// jumps reports whether o is a jump.
func (o *op) jumps() bool { return o.conditional() || o.code == opJa || o.code == opMayGoto }

// phi is the number of register r's value where the block at pc begins.
func (a *verifier) phi(pc, r int) int32 { return int32((r+1)*len(a.p.ops) + pc + 1) }

// def is the number of the value that the operation at pc makes.
func def(pc int) int32 { return int32(pc) + 1 }

// reach records that a path with that state reaches the block at pc.
func (a *verifier) reach(pc int, st *state) {
	if a.closed {
		return
	}
	if a.walker != nil {
		a.walkTo(pc, st)
		return
	}
	if a.heads[pc] == nil {
		var s *state
		if n := len(a.free); n > 0 {
			s, a.free = a.free[n-1], a.free[:n-1]
		} else {
			s = new(state)
		}
		*s = *st
		a.heads[pc] = s
		a.live++
		a.addHead(pc)
		return
	}
	a.visits[pc]++
	a.joins++
	a.work += joinWork
	changed, escapes := a.heads[pc].join(st, meeting{
		phi:   func(r int) int32 { return a.phi(pc, r) },
		widen: a.loops[pc] && a.visits[pc] > widenAfter, stops: a.stops,
		tired: a.visits[pc] > maxVisits || a.joins > maxJoins+2*len(a.p.ops),
	})
	a.escapes = a.escapes || escapes
	if changed {
		a.addHead(pc)
	}
}

// addHead adds a head to the list of those to continue from.
func (a *verifier) addHead(pc int) {
	a.todo[pc] = true
	a.lowest = min(a.lowest, pc)
}

// block follows the operations from the head at pc to the beginning of the next
// block.
func (a *verifier) block(pc int) {
	st := &a.now
	*st = *a.heads[pc]
	for {
		o, f := &a.p.ops[pc], &a.facts[pc]
		a.work++
		if a.final {
			f.reached, f.open = true, len(st.open) > 0
			a.warnUnsetReads(pc, st)
		}
		next := pc + 1
		switch {
		case o.code == opMissing:
			return
		case o.code == opExit:
			a.exit(pc, st)
			return
		case o.code == opJa:
			a.loopStep(pc, st)
			a.reach(int(o.off), st)
			return
		case o.conditional():
			if !a.branch(pc, st) {
				return
			}
		case o.code == opMayGoto:
			a.loopStep(pc, st)
			a.reach(int(o.off), st)
		case o.code == opCallLocal:
			a.callLocal(pc, st)
		default:
			a.exec(pc, st)
			if o.code == opLoadImm {
				next++
			}
		}
		if pc = next; a.isHead[pc] {
			a.reach(pc, st)
			return
		}
	}
}

// exit is the end of a function.
func (a *verifier) exit(pc int, st *state) {
	fn := a.p.fns.indexOf(pc)
	for _, id := range st.open {
		// A caller may still end its own records.
		if reserve := int(id) - 1; fn == 0 || a.p.fns.indexOf(reserve) == fn {
			a.warnTo(&a.unended, pc, "the record that instruction %d reserves may not have been submitted or discarded", reserve)
			break
		}
	}
	if fn != 0 && st.regs[R0].kind == inFrame {
		a.warn(pc, "the function returns an address in its own stack frame, which ends here")
	}
	if fn != 0 && st.regs[R0].unset && !a.noResult[fn] && !a.closed {
		a.noResult[fn] = true // its callers must be analyzed again
		for pc := range a.heads {
			if a.heads[pc] != nil {
				a.addHead(pc)
			}
		}
	}
}

// enter follows a function whose address is taken: it may be called with anything.
func (a *verifier) enter(pc int) {
	in := new(state)
	for r := range in.regs {
		in.regs[r] = unknownValue()
		in.regs[r].unset = r == int(R0) || r > int(R5)
	}
	in.regs[R10] = value{base: base{kind: inFrame}, num: constant(0)}
	a.reach(pc, in)
}

// callLocal follows a call of a function of the program.
func (a *verifier) callLocal(pc int, st *state) {
	o := &a.p.ops[pc]
	in := *st
	in.words, in.written, in.touched = nil, frameBytes{}, frameBytes{}
	for r := range in.regs {
		v := &in.regs[r]
		if v.kind == inContext && r > int(R5) {
			a.escapes = true
		}
		arg := r >= int(R1) && r <= int(R5)
		if v.kind == inFrame || v.kind == inRecord || !arg {
			*v = unknownValue()
			v.unset = !arg
		}
		v.vn, v.delta, v.from, v.id = 0, 0, product{}, 0
	}
	in.regs[R10] = value{base: base{kind: inFrame}, num: constant(0)}
	a.reach(int(o.off), &in)
	if st.givesFrame() {
		st.touched.setAll()
	}
	st.words = nil
	st.define(def(pc))
	for r := R1; r <= R5; r++ {
		st.noteCompared(st.regs[r].base)
	}
	for r := R0; r <= R5; r++ {
		st.regs[r] = unknownValue()
		st.regs[r].unset = r != R0
	}
	st.regs[R0].vn = def(pc)
	st.regs[R0].unset = a.noResult[a.p.fns.indexOf(int(o.off))]
}

// exec is the effect of an operation that continues with the next one.
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
		to := st.regs[o.dst]
		a.store(pc, st, o, unknownValue())
		old := scalarValue(numberOfSize(int(o.size)))
		old.mixed = to.kind == noBase || to.kind == inFrame
		if o.imm == atomicCmpXchg {
			a.set(pc, st, uint8(R0), old)
		} else if o.imm&atomicFetch != 0 {
			a.set(pc, st, o.src, old)
		}
		a.untracked = true
	case o.code == opLoadImm:
		a.set(pc, st, o.dst, a.loadImm(pc))
	case o.code == opCall:
		a.call(pc, st)
	case o.code == opNop:
	default:
		a.warnSingle(pc, st, o)
		a.set(pc, st, o.dst, a.singleResult(st, o))
	}
}

// set puts the result of the operation at pc into a register.
func (a *verifier) set(pc int, st *state, r uint8, v value) {
	if v.vn == 0 && v.kind != aMap {
		if _, ok := v.num.singleValue(); !ok {
			st.define(def(pc))
			v.vn = def(pc)
		}
	}
	st.regs[r] = v
}

// numberOfSize is the possible result of an unsigned load of size bytes.
func numberOfSize(size int) number { return numberBetween(0, ^uint64(0)>>(64-8*size)) }

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

// alu is the result of an operation with four forms.
func (a *verifier) alu(pc int, st *state, o *op) value {
	d, s := st.regs[o.dst], constValue(uint64(o.imm))
	if o.code&1 != 0 {
		s = st.regs[o.src]
	}
	long := o.code&3 < form32K
	kind := o.code &^ 3
	a.warnALU(pc, kind, long, &d, &s)
	switch {
	case kind == opMov && (long || s.fits(4)):
		s.unset = false
		return s
	case long && kind == opAdd && (d.kind == noBase || s.kind == noBase):
		return a.warnMoved(pc, sum(d, s))
	case long && kind == opSub && s.kind == noBase:
		if c, ok := s.num.singleValue(); ok {
			return a.warnMoved(pc, sum(d, constValue(-c)))
		}
		return a.warnMoved(pc, value{base: d.base, num: d.num.minus(s.num), mixed: d.mixed || s.mixed})
	case long && kind == opSub && samePlace(d.base, s.base):
		return scalarValue(d.num.minus(s.num)) // the distance of two addresses
	}
	mixed := d.mixed && kind != opMov || s.mixed || d.kind != noBase && kind != opMov || s.kind != noBase
	if d.kind != noBase && d.kind != aMap && kind != opMov || s.kind != noBase && s.kind != aMap {
		a.escapes = a.escapes || kind != opMov && d.kind == inContext || s.kind == inContext
		d, s = value{num: anyNumber}, value{num: anyNumber}
	}
	x, y := d.number(), s.number()
	if !long {
		x, y = x.truncate32(), y.truncate32()
	}
	n := combine(kind, long, x, y)
	if !long {
		n = n.truncate32()
	}
	v := scalarValue(n)
	v.mixed = mixed
	if c, ok := y.singleValue(); ok && long && d.kind == noBase && d.vn != 0 && d.vn != def(pc) && (kind == opLsh || kind == opMul) {
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
	r := value{base: d.base, num: d.num.plus(s.num), mixed: d.mixed || s.mixed}
	if c, ok := s.num.singleValue(); ok {
		r.vn, r.delta, r.from = d.vn, d.delta+int64(c), d.from
	} else if c, ok := d.num.singleValue(); ok {
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
	c, isConst := y.singleValue()
	switch kind {
	case opMov:
		return y
	case opLsh, opRsh, opArsh:
		if !isConst {
			if kind == opRsh {
				return numberBetween(0, x.uhi)
			}
			return anyNumber
		}
		n := int(c & (width - 1))
		switch {
		case kind == opLsh:
			return x.shift(n)
		case kind == opRsh:
			return x.shift(-n)
		case !long:
			return x.signExtend(4).shiftSigned(n)
		}
		return x.shiftSigned(n)
	case opDiv:
		if isConst && c != 0 {
			return numberBetween(x.ulo/c, x.uhi/c)
		}
		return numberBetween(0, x.uhi)
	case opMod:
		if isConst && c != 0 {
			return numberBetween(0, min(x.uhi, c-1))
		}
		return numberBetween(0, x.uhi)
	}
	return anyNumber
}

// singleResult is the result of an operation with one form.
func (a *verifier) singleResult(st *state, o *op) value {
	d, s := st.regs[o.dst], st.regs[o.src]
	if d.kind == inContext || s.kind == inContext {
		a.escapes = true
	}
	v := scalarValue(singleResult(o.code, d.number(), s.number()))
	v.mixed = d.mixed || s.mixed || d.kind != noBase || s.kind != noBase
	return v
}

// singleResult is the result of such an operation on the numbers in its destination
// and its source.
func singleResult(code opc, x, y number) number {
	switch code {
	case opNeg64:
		return x.negate()
	case opNeg32:
		return x.truncate32().negate().truncate32()
	case opMovs8:
		return y.signExtend(1)
	case opMovs16:
		return y.signExtend(2)
	case opMovs32:
		return y.signExtend(4)
	case opMovs8w:
		return y.signExtend(1).truncate32()
	case opMovs16w:
		return y.signExtend(2).truncate32()
	case opLe16:
		return x.and(constant(math.MaxUint16))
	case opLe32:
		return x.truncate32()
	case opSwap16:
		return numberOfSize(2)
	case opSwap32:
		return numberOfSize(4)
	}
	return anyNumber
}
