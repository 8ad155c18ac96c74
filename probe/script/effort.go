package script

// effort lets the owner of a compilation end it: see Options.Stop.
type effort struct {
	stop    func() error // nil: never
	steps   int
	stopped error // what stop has returned
}

// stopEvery is how many steps go by between two calls of stop.
const stopEvery = 1024

// step counts a step of the compiler, and returns the error that ends the compilation, if there is one.
func (e *effort) step() error {
	if e.steps++; e.steps%stopEvery == 0 && e.stop != nil && e.stopped == nil {
		e.stopped = e.stop()
	}
	return e.stopped
}
