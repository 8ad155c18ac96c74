package bpf

// bits32 is a set of small numbers.
type bits32 uint32

func (b bits32) has(i uint8) bool { return b>>i&1 != 0 }
func (b *bits32) add(i uint8)     { *b |= 1 << i }
func (b *bits32) remove(i uint8)  { *b &^= 1 << i }

// need is what the operations from a point on may read: numbers in registers, machine
// addresses of calls' results, and bytes of the frame.
type need struct {
	regs, shadows bits32
	bytes         frameBytes
}

func (n *need) add(o *need) {
	n.regs |= o.regs
	n.shadows |= o.shadows
	for i := range n.bytes {
		n.bytes[i] |= o.bytes[i]
	}
}

// liveness is the need at each point. A register whose contents are known where it is
// used does not have to hold them.
type liveness struct {
	after         []need // after each operation
	entry         bits32 // registers needed before the first operation
	needed        bits32 // registers needed anywhere
	neededShadows bits32 // by number
	conflicts     []bits32
	dead          []bool  // operations whose results are not needed
	fused         []bool  // stores that are one addition to memory, together with the two operations before
	clock         bool    // the clock is read
	ids           []int32 // the calls whose results may have a machine address, by number
	number        map[int32]uint8
}

// maxShadows bounds the calls that can have a machine address.
const maxShadows = 32

// findLive determines the needs, from the end to the beginning.
func (pl *plan) findLive() {
	ops := pl.p.ops
	pl.liveness = liveness{after: make([]need, len(ops)), number: map[int32]uint8{}}
	pl.findShadows()
	before := make([]need, len(ops)+2)
	targets := make([]bool, len(ops))
	for pc := range ops {
		if o := &ops[pc]; o.jumps() && pl.facts[pc].reached {
			targets[o.off] = true
		}
	}
	for changed := true; changed; {
		changed = false
		pl.dead, pl.fused = make([]bool, len(ops)), make([]bool, len(ops)+2)
		for pc := len(ops) - 1; pc >= 0; pc-- {
			o, f := &ops[pc], &pl.facts[pc]
			if !f.reached {
				continue
			}
			var n need
			switch {
			case o.code == opExit:
			case o.code == opJa:
				n = before[o.off]
			case o.code == opMayGoto:
				n.add(&before[o.off])
				n.add(&before[pc+1])
			case o.conditional():
				if f.jump != neverTaken {
					n.add(&before[o.off])
				}
				if f.jump != alwaysTaken {
					n.add(&before[pc+1])
				}
			case o.code == opLoadImm:
				n = before[pc+2]
			default:
				n = before[pc+1]
			}
			pl.after[pc] = n
			if pl.fused[pc+1] || pl.fused[pc+2] {
				pl.dead[pc] = true
			} else {
				pl.fused[pc] = pl.fuses(pc, &n, targets)
				pl.addNeeds(pc, &n)
			}
			if n != before[pc] {
				before[pc], changed = n, true
			}
		}
	}
	pl.entry = before[0].regs
	pl.needed = pl.entry
	pl.frame = 0
	for pc := range ops {
		if !pl.facts[pc].reached {
			continue
		}
		n := &pl.after[pc]
		pl.needed |= n.regs | before[pc].regs
		pl.neededShadows |= n.shadows
		for i := range pl.conflicts {
			if n.shadows.has(uint8(i)) {
				pl.conflicts[i] |= n.shadows &^ (1 << i)
			}
		}
		if pl.dead[pc] {
			continue
		}
		pl.clock = pl.clock || ops[pc].code == opCall && Helper(ops[pc].imm).IsClock()
		pl.storesShared(pc)
	}
}

// findShadows numbers the calls whose results may have a machine address: values of
// arrays whose element is not known, other values, and records that are tracked. All
// of these records have one number, the first, because only one is open at a time.
func (pl *plan) findShadows() {
	for pc := range pl.p.ops {
		if o := &pl.p.ops[pc]; pl.tracked && o.code == opCall && Helper(o.imm) == HelperRingReserve && pl.facts[pc].reached {
			pl.number[def(pc)] = 0
			if len(pl.ids) == 0 {
				pl.ids = append(pl.ids, def(pc))
			}
		}
	}
	for pc := range pl.p.ops {
		o, f := &pl.p.ops[pc], &pl.facts[pc]
		if o.code != opCall || !f.reached || len(pl.ids) == maxShadows || pl.full {
			continue
		}
		id := def(pc)
		if Helper(o.imm) == HelperMapLookup && f.call.m >= 0 && f.call.key < 0 && !pl.weak[id] && !pl.locals {
			pl.number[id] = uint8(len(pl.ids))
			pl.ids = append(pl.ids, id)
		}
	}
	pl.conflicts = make([]bits32, len(pl.ids))
}

// shadow returns the number of the call that b comes from, if its result has a
// machine address.
func (pl *plan) shadow(b base) (uint8, bool) {
	if b.id == 0 {
		return 0, false
	}
	i, ok := pl.number[b.id]
	return i, ok
}

// fuses reports whether a store is the last of three operations that add to a value,
// with no other use of the sum: they become one instruction.
func (pl *plan) fuses(pc int, n *need, targets []bool) bool {
	store, f := &pl.p.ops[pc], &pl.facts[pc].mem
	if pc < 2 || store.code != opStoreX || store.size < 4 || targets[pc] || targets[pc-1] || !pl.facts[pc-2].reached {
		return false
	}
	load, add, g := &pl.p.ops[pc-2], &pl.p.ops[pc-1], &pl.facts[pc-2].mem
	sum := store.src
	same := f.class == direct && g.class == direct && f.base == g.base && f.base.kind == inValue && f.size == g.size && f.by == g.by && f.off == g.off &&
		(f.by != byIndex || f.index == g.index && f.index != sum)
	if _, ok := pl.shadow(f.base); same && (f.by == byAddress || f.base.elem < 0 && !ok) {
		same = load.src == store.dst && load.off == store.off && store.dst != sum
	}
	return same && (load.code == opLoad32 || load.code == opLoad64) && load.dst == sum && add.dst == sum && !n.regs.has(sum) &&
		(add.code == opAdd+form64K || add.code == opAdd+form64X && add.src != sum ||
			store.size == 4 && (add.code == opAdd+form32K || add.code == opAdd+form32X && add.src != sum))
}

// storesShared records whether an operation changes values of maps in a way that a
// run interrupting another one would see half done.
func (pl *plan) storesShared(pc int) {
	o, f := &pl.p.ops[pc], &pl.facts[pc]
	switch {
	case (o.code == opStoreK || o.code == opStoreX) && f.mem.base.kind == inValue && !pl.fused[pc],
		o.code == opCall && Helper(o.imm) == HelperGetComm && f.call.args[R1].base.kind == inValue:
		pl.claims = true
	}
	reach := func(a access) {
		if a.base.kind == inFrame && a.class == direct && pl.ownStack {
			low := int64(-FrameSize)
			if a.by == byOffset {
				low = a.off
			}
			pl.frame = max(pl.frame, int(-low+7)&^7)
		}
	}
	if o.code >= opLoad8 {
		reach(f.mem)
	}
	if f.call != nil {
		for _, a := range f.call.args {
			if a.size > 0 {
				reach(a)
			}
		}
	}
}

// addUses adds the needs of locating an access, for the operation at pc.
func (pl *plan) addUses(pc int, n *need, a access) {
	i, ok := pl.shadow(a.base)
	inElem := a.base.kind == inValue && a.base.elem < 0 || a.base.kind == inRecord
	switch {
	case a.class == generic, a.class == bounded && !a.base.fixed(pl.p), a.by == byAddress, inElem && !ok:
		n.regs.add(a.ptr)
	case a.by == byIndex:
		n.regs.add(a.index)
	}
	if inElem && ok && a.class != generic {
		n.shadows.add(i)
	}
	if a.base.kind == inFrame && pl.p.fns.indexOf(pc) != 0 {
		n.regs.add(uint8(R10))
	}
}

// addReads adds the bytes of the frame that an access may read.
func (pl *plan) addReads(n *need, a access) {
	switch {
	case a.base.kind != inFrame || a.class != direct || !pl.ownStack:
	case a.by == byOffset:
		n.bytes.set(a.off, a.size, true)
	default:
		n.bytes.set(-FrameSize, FrameSize, true)
	}
}

// addNeeds turns the need after an operation into the need before it.
func (pl *plan) addNeeds(pc int, n *need) {
	o, f := &pl.p.ops[pc], &pl.facts[pc]
	x := o.code&1 != 0 // one of those with four forms
	own := f.mem.base.kind == inFrame && f.mem.class == direct && f.mem.by == byOffset && pl.ownStack
	switch {
	case o.code < opJeq:
		if pl.dead[pc] = !n.regs.has(o.dst); pl.dead[pc] {
			return
		}
		if o.code&^3 == opMov {
			n.regs.remove(o.dst)
		}
		if x {
			n.regs.add(o.src)
		}
	case o.conditional():
		if i, ok := pl.shadow(f.test); ok && f.test.kind != noBase {
			n.shadows.add(i)
		} else if f.jump == eitherWay {
			n.regs.add(o.dst)
			if x {
				n.regs.add(o.src)
			}
		}
	case o.code >= opLoad8 && o.code <= opLoads32:
		if pl.dead[pc] = !n.regs.has(o.dst) && f.mem.class == direct; pl.dead[pc] {
			return
		}
		n.regs.remove(o.dst)
		pl.addUses(pc, n, f.mem)
		pl.addReads(n, f.mem)
	case o.code == opStoreK, o.code == opStoreX:
		if own {
			if pl.dead[pc] = n.bytes.count(f.mem.off, f.mem.size) == 0; pl.dead[pc] {
				return
			}
			n.bytes.set(f.mem.off, f.mem.size, false)
		}
		if pl.fused[pc] {
			if add := &pl.p.ops[pc-1]; add.code&1 != 0 {
				n.regs.add(add.src)
			}
		} else if o.code == opStoreX {
			n.regs.add(o.src)
		}
		pl.addUses(pc, n, f.mem)
	case o.code == opAtomic:
		n.regs.add(o.src)
		if o.imm == atomicCmpXchg {
			n.regs.add(uint8(R0))
		}
		pl.addUses(pc, n, f.mem)
		pl.addReads(n, f.mem)
	case o.code == opCall:
		pl.callNeeds(pc, n)
	case o.code == opCallLocal:
		n.regs = 1<<numRegs - 1
	case o.code == opExit:
		n.regs.add(uint8(R0))
		if pl.p.fns.indexOf(pc) != 0 {
			n.regs = 1<<numRegs - 1
		}
	case o.code == opLoadImm:
		if pl.dead[pc] = !n.regs.has(o.dst); !pl.dead[pc] {
			n.regs.remove(o.dst)
		}
	case o.code >= opMovs8 && o.code <= opMovs16w:
		if pl.dead[pc] = !n.regs.has(o.dst); !pl.dead[pc] {
			n.regs.remove(o.dst)
			n.regs.add(o.src)
		}
	case o.code == opNop, o.code == opJa, o.code == opMayGoto:
	default:
		pl.dead[pc] = !n.regs.has(o.dst)
	}
}

// callNeeds is addNeeds for a call of a helper.
func (pl *plan) callNeeds(pc int, n *need) {
	f := pl.facts[pc].call
	h := Helper(pl.p.ops[pc].imm)
	result := n.regs.has(uint8(R0))
	for r := R0; r <= R5; r++ {
		n.regs.remove(uint8(r))
	}
	if i, ok := pl.number[def(pc)]; ok {
		result = result || n.shadows.has(i)
		n.shadows.remove(i)
	}
	if !pl.inline[pc] {
		for i := range helperByID[h].args {
			n.regs.add(uint8(R1) + uint8(i))
		}
		for _, a := range f.args {
			if a.class == direct {
				pl.addUses(pc, n, a)
			}
		}
		return
	}
	switch h {
	case HelperGetComm:
		if a := f.args[R1]; a.base.kind == inFrame && a.by == byOffset && pl.ownStack {
			n.bytes.set(a.off, commSize, false)
		}
		pl.addUses(pc, n, f.args[R1])
	case HelperMapLookup:
		if pl.dead[pc] = !result; !result {
			return
		}
		if f.key < 0 {
			pl.addUses(pc, n, f.args[R2])
			pl.addReads(n, f.args[R2])
		}
	case HelperRingOutput, HelperPerfEventOutput:
		data := f.args[R2]
		if h == HelperPerfEventOutput {
			data = f.args[R4]
		}
		pl.addUses(pc, n, data)
		pl.addReads(n, data)
	case HelperRingReserve:
	case HelperRingSubmit, HelperRingDiscard:
		if i, ok := pl.number[f.record]; ok {
			n.shadows.add(i)
		}
	default:
		pl.dead[pc] = !result
	}
}
