package bpf

// Where paths meet, the verifier keeps what holds on all of them, and so it may warn of what no path does: of a register that is set in
// a loop which runs at least once, or under a condition that is compared again before the register is read. Linux's verifier follows
// each path by itself. So does confirm, as long as that is not too much, and
// finds also what is wrong on one path only.

// Limits of following each path by itself.
const (
	maxWalk  = 1 << 19 // instructions and comparisons of states
	maxPaths = 1 << 10 // paths that are still to be followed
	maxSeen  = 4       // states that are kept of a place, to see that a path is like an earlier one; of all places, maxHeads
)

// walker is what a verifier has that follows each path by itself.
type walker struct {
	paths []walked
	seen  map[int][]*state // by place
	kept  int              // how many these are
	told  map[int]bool     // the instructions that are warned of
}

// walked is a path that is still to be followed.
type walked struct {
	pc int
	st *state
}

// confirm takes the warnings of paths that are followed one by one in the place of those of all together.
func (a *verifier) confirm() {
	if len(a.p.fns.starts) > 1 {
		return // what functions return is known only for all paths together
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

// walk follows each path by itself; false: these are too many.
func (w *verifier) walk() bool {
	w.final = true
	w.reach(0, w.first())
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

// walkTo says that a path with that state comes to a place where paths meet. One like an earlier one, or of which less is possible, is not followed.
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
