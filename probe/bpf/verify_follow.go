package bpf

// follow follows all paths until nothing changes, the lowest head first, so that most
// paths to a place have been followed before the code after it.
func (a *verifier) follow() {
	limit := maxWork(len(a.p.ops))
	in, begin := int32(0), 0 // the loop that is being followed, and the first head in it
	for pc := 0; ; {
		for pc < len(a.todo) && !a.todo[pc] {
			pc++
		}
		if pc == len(a.todo) || a.outer[pc] != in {
			a.finish(begin, pc)
			if pc == len(a.todo) {
				return
			}
			in, begin = a.outer[pc], pc
		}
		begin = min(begin, pc)
		a.todo[pc] = false
		a.lowest = len(a.todo)
		if in == 0 {
			a.final = true
			a.block(pc)
			a.final = false
			a.drop(pc)
		} else {
			a.block(pc)
		}
		if a.gaveUp = a.work > limit || a.live > maxHeads; a.gaveUp {
			return
		}
		a.work += max(pc-a.lowest, 0) / 16 // searched again
		pc = min(pc+1, a.lowest)
	}
}

// finish records the facts about a loop that the analysis will not visit again.
func (a *verifier) finish(lo, hi int) {
	a.final, a.closed = true, true
	for pc := lo; pc < hi; pc++ {
		if a.heads[pc] != nil {
			a.block(pc)
		}
	}
	for pc := lo; pc < hi; pc++ {
		if a.heads[pc] == nil {
			continue
		}
		if s := a.steps[pc]; s != nil {
			s.turns = a.maxTurns(pc, s)
		}
		a.drop(pc)
	}
	a.final, a.closed = false, false
}

// drop discards the state at a head whose facts are recorded.
func (a *verifier) drop(pc int) {
	s := a.heads[pc]
	a.heads[pc] = nil
	a.live--
	if *s = (state{}); len(a.free) < maxFree {
		a.free = append(a.free, s)
	}
}

// findLoops finds where the analysis may come back to: from the target of a jump back
// to that jump. Elsewhere the state is final once everything before has been
// followed. A program with functions is one loop, because their results are known
// later.
func (a *verifier) findLoops() {
	begins, ends := make([]int, len(a.p.ops)), make([]int, len(a.p.ops)+1)
	for pc := range a.p.ops {
		if o := &a.p.ops[pc]; o.jumps() && o.cost != 0 {
			begins[o.off]++
			ends[pc+1]++
		}
	}
	in, id := 0, int32(0)
	for pc := range a.p.ops {
		if in -= ends[pc]; in == 0 && begins[pc] > 0 {
			id++
		}
		in += begins[pc]
		switch {
		case len(a.p.fns.starts) > 1:
			a.outer[pc] = 1
		case in > 0:
			a.outer[pc] = id
		}
	}
}

// assumeNothing records of each instruction the facts that hold whatever happened
// before the place where paths last met.
func (a *verifier) assumeNothing() {
	clear(a.heads)
	clear(a.facts)
	clear(a.steps)
	a.warnings, a.unended = nil, nil
	a.final, a.closed, a.tell = true, true, false
	a.escapes, a.ends, a.spilled, a.untracked = true, true, true, true
	st, meet := &a.now, true
	for pc, seen := range a.p.reachableSlots() {
		o, f := &a.p.ops[pc], &a.facts[pc]
		if a.p.slots[pc] == nil {
			continue
		}
		if meet || a.isHead[pc] {
			*st = state{}
			for r := range st.regs {
				st.regs[r] = unknownValue()
			}
			st.regs[R10] = value{base: base{kind: inFrame}, num: constant(0)}
		}
		meet = o.jumps() || o.code == opMissing || o.code == opExit || o.code == opCallLocal
		if f.reached, f.open = seen, true; seen && !meet {
			a.exec(pc, st)
		}
	}
}
