package script

// effort lets the caller of a compilation stop it: see Options.Stop.
type effort struct {
	stop    func() error // nil: never
	steps   int
	stopped error // the error of stop
}

// stopEvery is the number of steps between two calls of stop.
const stopEvery = 1024

// step counts a step of the compiler, and returns the error that ends the
// compilation, if any.
func (e *effort) step() error {
	if e.steps++; e.steps%stopEvery == 0 && e.stop != nil && e.stopped == nil {
		e.stopped = e.stop()
	}
	return e.stopped
}
