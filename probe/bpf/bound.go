package bpf

import "math/bits"

// loopSteps describes the jumps back to the head of a loop: how far each register has
// advanced when one is taken.
type loopSteps struct {
	known [numRegs]bool
	least [numRegs]int64 // the smallest step, all in the same direction
	cost  int32          // the most that one jump takes from the budget
	turns uint64         // the most jumps each time the loop is entered
}

// loopStep records how far registers have advanced where a jump is taken, if it goes
// back.
func (a *verifier) loopStep(pc int, st *state) {
	o := &a.p.ops[pc]
	if o.cost == 0 || !a.final {
		return
	}
	head := int(o.off)
	s := a.steps[head]
	fresh := s == nil
	if fresh {
		s = new(loopSteps)
		a.steps[head] = s
	}
	s.cost = max(s.cost, o.cost)
	for r := range s.known {
		step := st.regs[r].delta
		moves := st.regs[r].vn == a.phi(head, r) && step != 0
		switch {
		case fresh:
			s.known[r], s.least[r] = moves, step
		case !moves || (step < 0) != (s.least[r] < 0):
			s.known[r] = false
		case step > 0:
			s.least[r] = min(s.least[r], step)
		default:
			s.least[r] = max(s.least[r], step)
		}
	}
}

// maxTurns returns an upper bound of a loop's jumps back, from the values known at
// its head.
func (a *verifier) maxTurns(head int, s *loopSteps) uint64 {
	in, least := a.heads[head], ^uint64(0)
	for r, known := range s.known {
		v := &in.regs[r]
		if !known || v.vn != a.phi(head, r) || v.delta != 0 || v.num.lo < -nearest || v.num.hi >= 1<<32 {
			continue
		}
		step := uint64(max(s.least[r], -s.least[r]))
		least = min(least, uint64(v.num.hi-v.num.lo)/step)
	}
	return least
}

// bounded reports whether no run can use up the budget. If a register of a loop
// counts in one direction, and is known to be in a certain range where the loop
// begins, the loop goes back at most as often as there are steps in the range, each
// time it is entered. It is entered once more for each jump that goes back over its
// head.
func (a *verifier) bounded() bool {
	_, ok := a.worst(0)
	return ok
}

// worst returns the most that a run takes from the budget, if a load of the guest's
// memory takes that much; ok is false if it is not known, or more than the budget.
func (a *verifier) worst(load uint64) (most uint64, ok bool) {
	if a.gaveUp {
		return 0, false
	}
	var total uint64
	var heads []int
	trips := map[int]uint64{} // jumps back to each head, in total
	for head := range a.heads {
		s := a.steps[head]
		if s == nil {
			continue
		}
		entered := uint64(1)
		for _, h := range heads {
			entered += trips[h] // each of them may go back over this head
		}
		many, n := bits.Mul64(s.turns, entered)
		over, cost := bits.Mul64(n, uint64(s.cost))
		if many != 0 || over != 0 || cost > uint64(a.p.budget)-total {
			return 0, false
		}
		trips[head] = n
		heads = append(heads, head)
		total += cost
	}
	var calls uint64 // the cost of all of them, once
	for pc := range a.facts {
		if f := &a.facts[pc]; f.reached && f.call != nil {
			if Helper(a.p.ops[pc].imm) == HelperTailCall {
				return 0, false // the budget is that of all programs together
			}
			calls += uint64(f.call.cost)
		} else if f.reached && f.follows {
			calls += load
		}
	}
	turns := uint64(1) // an instruction is executed at most once more than there are jumps back
	for _, n := range trips {
		turns += n
	}
	over, sum := bits.Mul64(calls, turns)
	if over != 0 || sum > uint64(a.p.budget)-total {
		return 0, false
	}
	return total + sum, len(a.p.fns.starts) == 1
}

// Steps returns the most steps of a run: instructions, and the cost of helper calls.
func (p *Program) Steps() int64 {
	if most, ok := verify(p, false).worst(costRead + costFault); ok {
		return int64(most) + int64(p.Len())
	}
	return p.budget + int64(p.Len())
}
