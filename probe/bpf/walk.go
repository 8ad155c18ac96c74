package bpf

// Where paths meet, the verifier keeps the knowledge that holds on all of them, and
// so it may warn of something that no path does: for example of a register that is
// set in a loop which runs at least once, or under a condition that is compared again
// before the register is read. Linux's verifier follows each path by itself. So does
// confirm, within limits, and it also finds mistakes on only one path.

// Limits of following each path by itself.
const (
	maxWalk  = 1 << 19 // instructions and comparisons of states
	maxPaths = 1 << 10 // paths that are still to be followed
	maxSeen  = 4       // states kept of a place, to recognize a path that is like an earlier one; over all places, maxHeads
)

// walker is the additional state of a verifier that follows each path by itself.
type walker struct {
	paths []walked
	seen  map[int][]*state // by place
	kept  int              // their number
	told  map[int]bool     // instructions with a warning
}

// walked is a path that is still to be followed.
type walked struct {
	pc int
	st *state
}

// confirm replaces the warnings of the joined paths by warnings of paths that are
// followed one by one.
func (a *verifier) confirm() {
	if len(a.p.fns.starts) > 1 {
		return // the results of functions are known only for all paths together
	}
	w := newVerifier(a.p, true)
	w.walker = &walker{seen: map[int][]*state{}, told: map[int]bool{}}
	if w.walk() {
		a.warnings, a.more = w.warnings, w.more
		if !w.ends {
			a.warnings = append(a.warnings, w.unended...)
		}
	}
}

// walk follows each path by itself; false: there are too many.
func (w *verifier) walk() bool {
	w.final = true
	w.reach(0, w.firstState())
	for n := len(w.paths) - 1; n >= 0; n = len(w.paths) - 1 {
		x := w.paths[n]
		w.paths = w.paths[:n]
		w.heads[x.pc] = x.st
		w.block(x.pc)
		w.heads[x.pc] = nil
		if w.work > maxWalk || len(w.paths) > maxPaths {
			return false
		}
	}
	return true
}

// walkTo records that a path with that state reaches a place where paths meet. A path
// that is like an earlier one, or allows less than one, is not followed.
func (w *verifier) walkTo(pc int, st *state) {
	kept := w.seen[pc]
	for _, s := range kept {
		w.work += joinWork
		both := *s
		if changed, _ := both.join(st, meeting{phi: func(r int) int32 { return w.phi(pc, r) }, stops: w.stops}); !changed {
			return
		}
	}
	s := new(state)
	*s = *st
	switch n := len(kept); {
	case n < maxSeen && w.kept < maxHeads:
		w.seen[pc] = append(kept, s)
		w.kept++
	case n > 0:
		kept[int(w.visits[pc])%n] = s
	}
	w.visits[pc]++
	own := *st
	w.paths = append(w.paths, walked{pc, &own})
}
