package bpf

import "slices"

// reachableSlots reports for each slot whether some path of jumps reaches it,
// whatever the comparisons.
func (p *Program) reachableSlots() []bool {
	seen := make([]bool, len(p.ops))
	todo := slices.Clone(p.fns.starts)
	for len(todo) > 0 {
		pc := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for !seen[pc] {
			seen[pc] = true
			o := &p.ops[pc]
			if o.code == opExit || o.code == opMissing && p.pruned != nil { // removed: nothing leads there
				break
			}
			if o.jumps() {
				todo = append(todo, int(o.off))
			}
			if o.code == opJa {
				break
			}
			if pc++; o.code == opLoadImm {
				pc++
			}
		}
	}
	return seen
}

// warnUnreachable warns of instructions that no path of jumps reaches, whatever the
// comparisons.
func (a *verifier) warnUnreachable() {
	seen := a.p.reachableSlots()
	for pc := range a.p.pruned {
		seen[pc] = seen[pc] || a.p.pruned[pc]
	}
	for pc := 0; pc < len(seen); pc++ {
		if seen[pc] || a.p.slots[pc] == nil {
			continue
		}
		first := pc
		for pc+1 < len(seen) && (!seen[pc+1] || a.p.slots[pc+1] == nil) {
			pc++
		}
		if n := pc - first + 1; n > 1 {
			a.warn(first, "this and what follows, up to instruction %d, is never executed", pc)
		} else {
			a.warn(first, "this is never executed")
		}
	}
}

// warnEndless warns of loops that a program reaches and never leaves: of the first
// one in each function.
func (a *verifier) warnEndless() {
	n := len(a.p.ops)
	to := func(pc int) (next, jump int) { // -1: none
		o := &a.p.ops[pc]
		next, jump = pc+1, -1
		if o.code == opLoadImm {
			next++
		}
		if o.jumps() {
			jump = int(o.off)
		}
		switch f := &a.facts[pc]; {
		case o.code == opExit || o.code == opMissing:
			next = -1
		case o.code == opJa || o.conditional() && f.jump == alwaysTaken:
			next = -1
		case f.jump == neverTaken:
			jump = -1
		}
		return next, jump
	}
	first := make([]int32, n+1) // by slot: the index in from of its first predecessor
	for pc := range a.facts {
		if !a.facts[pc].reached {
			continue
		}
		next, jump := to(pc)
		if next >= 0 {
			first[next]++
		}
		if jump >= 0 {
			first[jump]++
		}
	}
	var sum int32
	for pc := range first {
		sum += first[pc]
		first[pc] = sum
	}
	from := make([]int32, sum)
	ends, todo := make([]bool, n), []int(nil)
	for pc := range a.facts {
		if !a.facts[pc].reached {
			continue
		}
		next, jump := to(pc)
		for _, t := range []int{next, jump} {
			if t >= 0 {
				first[t]--
				from[first[t]] = int32(pc)
			}
		}
		o := &a.p.ops[pc]
		if o.code == opExit || o.code == opMissing || o.code == opCall && Helper(o.imm) == HelperTailCall {
			ends[pc] = true
			todo = append(todo, pc)
		}
	}
	for len(todo) > 0 {
		pc := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, p := range from[first[pc]:first[pc+1]] {
			if !ends[p] {
				ends[p] = true
				todo = append(todo, int(p))
			}
		}
	}
	told := -1
	for pc := range a.facts {
		if fn := a.p.fns.indexOf(pc); a.facts[pc].reached && !ends[pc] && a.loops[pc] && fn != told {
			told = fn
			a.warn(pc, "no path leads from here to an end of the function: it runs until its budget is used up")
		}
	}
}
