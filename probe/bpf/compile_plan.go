package bpf

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// plan is the decisions of the compiler before it emits anything, from the results of
// the verifier.
type plan struct {
	*verifier
	full bool // nothing counts as proven

	inline   []bool // calls with inline code, which preserves all registers except RAX
	general  bool   // there are calls without
	locals   bool   // there are calls of functions of the program
	anywhere bool   // there are accesses at unknown places
	segments bool   // the segment table of the block must be correct
	tracked  bool   // the reservation and the end of each record are known
	reserves bool   // records are kept in the block
	charges  bool   // the budget must be counted
	ownStack bool   // the program's stack is the machine's
	fails    bool   // a run may fail
	aligned  bool   // all accesses to memory are aligned, if the stack is
	claims   bool   // a nested run would do harm

	liveness
	regs     [numRegs]reg64  // places of the program's registers; NoReg for those that are not needed
	blockReg reg64           // address of the run block
	ctxReg   reg64           // address of the context; NoReg: it is in the block
	budget   reg64           // NoReg: it is in the block
	shadows  map[int32]reg64 // machine addresses of calls' results, by id
	weak     map[int32]bool  // ids for which no register was left
	spare    []reg64         // remaining registers
	frame    int             // bytes of the program's stack, if it is on the machine's

	jumpsBack map[int][]int // by head
	depth     []int         // how many loops each slot is in
	backs     map[int]x86.Label
}

// newPlan makes the plan for a program.
func newPlan(p *Program, l Layout) *plan {
	a := verify(p, false)
	l.Full = l.Full || a.gaveUp
	pl := &plan{verifier: a, full: l.Full, inline: make([]bool, len(p.ops)), depth: make([]int, len(p.ops)), weak: map[int32]bool{}, jumpsBack: map[int][]int{}}
	if l.Full {
		pl.forgetFacts()
	}
	pl.placeWords()
	for pc := range p.ops {
		o := &p.ops[pc]
		if o.cost != 0 && pl.facts[pc].reached {
			if o.jumps() {
				pl.jumpsBack[int(o.off)] = append(pl.jumpsBack[int(o.off)], pc)
				pl.depth[o.off]++
				if pc+1 < len(pl.depth) {
					pl.depth[pc+1]--
				}
			}
			pl.charges = true
		}
		pl.charges = pl.charges || o.code == opCall && pl.facts[pc].reached && pl.facts[pc].call.cost != 0
		pl.locals = pl.locals || o.code == opCallLocal && pl.facts[pc].reached
	}
	for pc := 1; pc < len(pl.depth); pc++ {
		pl.depth[pc] += pl.depth[pc-1]
	}
	pl.charges = pl.charges && (l.Full || pl.asks() || !pl.bounded())
	pl.tracked = !l.Full && !pl.locals
	for {
		pl.decide(l)
		pl.findLive()
		if pl.assign() {
			return pl
		}
	}
}

// asks reports whether the program asks how much of its budget is left (may_goto).
func (pl *plan) asks() bool {
	for pc := range pl.facts {
		if pl.facts[pc].reached && pl.p.ops[pc].code == opMayGoto {
			return true
		}
	}
	return false
}

// forgetFacts discards the proofs of the verifier, except which map is accessed.
func (pl *plan) forgetFacts() {
	for pc := range pl.facts {
		f := &pl.facts[pc]
		f.jump, f.test = eitherWay, base{}
		if !pl.p.kind.typed() || f.mem.base.kind != inContext {
			f.mem.class = generic
		}
		if f.call != nil {
			f.call.key, f.call.record = -1, 0
			for r := range f.call.args {
				f.call.args[r].class = generic
			}
		}
	}
}

// decide determines the properties of the program.
func (pl *plan) decide(l Layout) {
	pl.tracked = pl.tracked && pl.recordsTracked(l)
	pl.general, pl.anywhere, pl.reserves = false, false, false
	wet := true
	pl.aligned = pl.p.kind.hasRegs() && !pl.locals
	pl.fails = pl.charges || pl.locals
	for pc := range pl.facts {
		f, o := &pl.facts[pc], &pl.p.ops[pc]
		if !f.reached {
			continue
		}
		if f.mem.base.kind == inRecord && !pl.tracked {
			f.mem.class = generic
		}
		switch {
		case o.code == opCall:
			for r := range f.call.args {
				arg := &f.call.args[r]
				if arg.base.kind == inRecord && !pl.tracked {
					arg.class = generic
				}
				wet = wet && (arg.wet || arg.size == 0)
			}
			h := Helper(o.imm)
			pl.inline[pc] = pl.isInline(h, f.call, l)
			pl.aligned = pl.aligned && pl.inline[pc]
			if h == HelperGetPIDTGID || h == HelperGetComm {
				pl.aligned = pl.aligned && l.Task != nil && (l.Task.TID|l.Task.TGID)%4 == 0 && l.Task.Comm%8 == 0
			}
			for r := range f.call.args {
				word := uint8(7)
				if h == HelperMapLookup {
					word = 3 // of the key
				}
				if arg := &f.call.args[r]; arg.size != 0 {
					pl.aligned = pl.aligned && arg.low&word == 0
				}
			}
			pl.general = pl.general || !pl.inline[pc]
			pl.reserves = pl.reserves || h == HelperRingReserve && !pl.tracked
		case o.code >= opLoad8:
			pl.anywhere = pl.anywhere || f.mem.class <= guessed
			pl.fails = pl.fails || f.mem.class != direct
			pl.aligned = pl.aligned && f.mem.low&uint8(o.size-1) == 0
			wet = wet && (f.mem.wet || o.code == opStoreK || o.code == opStoreX)
			wet = wet && (o.code != opAtomic || f.mem.base.kind != inFrame) // its alignment is not known
		}
	}
	pl.ownStack = pl.p.kind.hasRegs() && !l.Full && !pl.general && !pl.anywhere && !pl.locals && wet
	pl.segments = pl.anywhere || pl.general || !pl.p.kind.hasRegs()
	pl.claims = pl.fails || !pl.ownStack
}

// isInline reports whether a call's code is inline.
func (pl *plan) isInline(h Helper, f *callFact, l Layout) bool {
	var m *Map
	if f.m >= 0 {
		m = pl.p.maps[f.m]
	}
	zero := func(r Reg) bool { return f.known[r].ok && f.known[r].v == 0 }
	switch h {
	case HelperKtimeGetNS, HelperKtimeBootNS, HelperKtimeCoarseNS, HelperGetCPU, HelperGetFuncIP, HelperGetAttachCookie, HelperGetFuncArgCnt, HelperGetPIDTGID, HelperGetTask, HelperGetTaskBTF, HelperGetUIDGID, HelperGetCgroupID, HelperGetRandom:
		return true
	case HelperGetComm:
		return f.args[R1].class == direct && f.args[R1].size == commSize && f.args[R1].by != byAddress
	case HelperMapLookup:
		return m != nil && !m.hashed() && f.args[R2].class == direct
	case HelperRingOutput:
		return m != nil && pl.copiesInline(f.args[R2], m) && f.known[R4].ok && f.known[R4].v&^3 == 0
	case HelperPerfEventOutput:
		return m != nil && pl.copiesInline(f.args[R4], m)
	case HelperRingReserve:
		return pl.tracked && m != nil && zero(R3)
	case HelperRingSubmit, HelperRingDiscard:
		return pl.tracked && f.record != 0
	}
	return false
}

// maxInlineCopy is the largest inline copy into a ring.
const maxInlineCopy = 256

func (pl *plan) copiesInline(data access, m *Map) bool {
	return data.class == direct && data.by != byAddress && data.base.kind != inRecord && data.size > 0 && data.size <= min(maxInlineCopy, m.maxRecord())
}

// recordsTracked reports whether the reservation and the end of each record are
// known, so that the block need not keep them: only one is open at a time, and while
// it is, nothing can end the run or look for it.
func (pl *plan) recordsTracked(l Layout) bool {
	for pc := range pl.facts {
		f, o := &pl.facts[pc], &pl.p.ops[pc]
		if !f.reached {
			continue
		}
		switch {
		case o.code == opCall:
			h := Helper(o.imm)
			if !pl.canNotFail(h, f.call, l) || pl.charges && f.open && f.call.cost != 0 {
				return false
			}
			if h == HelperRingReserve {
				size := f.call.known[R2]
				if f.open || !size.ok || size.v == 0 || size.v > uint64(pl.p.maps[f.call.m].maxRecord()) {
					return false
				}
			}
		case o.code == opExit && f.open, o.cost != 0 && pl.charges && f.open, o.code >= opLoad8 && f.mem.class <= guessed,
			o.code >= opLoad8 && f.mem.class == bounded && f.open:
			return false
		}
	}
	return true
}

// canNotFail reports whether a call, while records are tracked, can neither end the
// run nor read unknown memory of the program.
func (pl *plan) canNotFail(h Helper, f *callFact, l Layout) bool {
	switch h {
	case HelperMapLookup, HelperMapUpdate, HelperMapDelete, HelperRingQuery, HelperGetFuncArg, HelperGetFuncRet:
		if f.m < 0 && h != HelperGetFuncArg && h != HelperGetFuncRet {
			return false
		}
		for r, kind := range helperByID[h].args {
			if (kind == keyArg || kind == valueArg || kind == wordArg) && f.args[int(R1)+r].class != direct {
				return false
			}
		}
		return true
	}
	return pl.isInline(h, f, l)
}

// places are the machine registers available for values, if all code is inline: the
// context's address stays in RDI and the block's in RSI, as at entry.
var places = []reg64{x86.RDX, x86.RCX, x86.R8, x86.RBX, x86.RBP, x86.R12, x86.R13, x86.R14, x86.R15}

// fixedPlaces are the places of the program's registers if there are routines to
// call. Routines have their arguments where the program has its own, and preserve the
// others; R12 is the block.
var fixedPlaces = [numRegs]reg64{
	R0: x86.RAX, R1: x86.RDI, R2: x86.RSI, R3: x86.RDX, R4: x86.RCX, R5: x86.R8,
	R6: x86.RBX, R7: x86.R13, R8: x86.R14, R9: x86.R15, R10: x86.RBP,
}

// assign gives machine registers to the values that need one. It returns false if it
// had to change a decision for want of registers.
func (pl *plan) assign() bool {
	var free []reg64
	take := func() reg64 {
		if len(free) == 0 {
			return x86.NoReg
		}
		r := free[0]
		free = free[1:]
		return r
	}
	pl.budget = x86.NoReg
	pl.shadows = map[int32]reg64{}
	if !pl.general && !pl.locals && pl.p.kind.hasRegs() {
		pl.blockReg, pl.ctxReg, free = x86.RSI, x86.RDI, slices.Clone(places)
		pl.regs = [numRegs]reg64{R0: x86.RAX}
		ok := true
		for r := R1; r <= R10; r++ {
			if r == R6 && pl.clock && len(free) == len(places) {
				take() // the clock is read into RDX, so only values that end at a call may share it
			}
			pl.regs[r] = x86.NoReg
			if pl.needed.has(uint8(r)) {
				pl.regs[r] = take()
				ok = ok && pl.regs[r] != x86.NoReg
			}
		}
		if ok {
			if pl.clock && len(free) == len(places) {
				take()
			}
			ok = pl.assignMore(take)
			pl.spare = free
			return ok
		}
	}
	pl.regs, pl.blockReg, pl.ctxReg = fixedPlaces, x86.R12, x86.NoReg
	for r := R6; r <= R10; r++ {
		if !pl.needed.has(uint8(r)) && !pl.locals {
			free = append(free, pl.regs[r])
			pl.regs[r] = x86.NoReg
		}
	}
	if !pl.assignMore(take) {
		return false
	}
	pl.ctxReg = take()
	pl.segments = pl.segments || pl.ctxReg == x86.NoReg
	pl.spare = free
	return true
}

// assignMore is assign for values that are not in registers of the program.
func (pl *plan) assignMore(take func() reg64) bool {
	if pl.charges {
		pl.budget = take()
	}
	var groups [][]int // sets of shadows of which no two are needed at a time
	for i, id := range pl.ids {
		if !pl.neededShadows.has(uint8(i)) {
			continue
		}
		g := slices.IndexFunc(groups, func(g []int) bool {
			return !slices.ContainsFunc(g, func(k int) bool { return pl.conflicts[i].has(uint8(k)) })
		})
		if g < 0 {
			r := take()
			if r == x86.NoReg {
				pl.giveUp(id)
				return false
			}
			g = len(groups)
			groups = append(groups, nil)
			pl.shadows[id] = r
		} else {
			pl.shadows[id] = pl.shadows[pl.ids[groups[g][0]]]
		}
		groups[g] = append(groups[g], i)
	}
	for id, i := range pl.number {
		if r, ok := pl.shadows[pl.ids[i]]; ok && pl.after[id-1].shadows.has(i) {
			pl.shadows[id] = r // another record
		}
	}
	return true
}

// giveUp gives up the machine address of a call's result.
func (pl *plan) giveUp(id int32) {
	if Helper(pl.p.ops[id-1].imm) == HelperRingReserve {
		pl.tracked = false
		return
	}
	pl.weak[id] = true
}
