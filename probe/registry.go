package probe

// registry holds the registrations and changes them. Register and similar calls, resets, module loads and unloads, and
// the engine's own probes all use admit, install and remove. Its methods are called with mu held,
// unless they take it.
type registry struct {
	control
	places    places
	opt       *optimizer
	text      text
	watches   watches
	returns   returns
	collector collector

	gone map[*registration]bool // on sites of their own, in no table; written with view held as well
	ends []*registration        // hidden ones of jprobes that are gone; guarded by mu

	awaited awaited // hidden ones
}
