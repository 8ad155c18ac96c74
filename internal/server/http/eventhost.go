package http

// eventHost streams events, counts, profiles and the console to clients. Each
// stream belongs to the goroutine of its request, and attaches and detaches its
// probes through the probes' host.
type eventHost struct {
	*probeHost
	opt      *options
	streams  *streams
	profiles profiles
	lines    eventLines
}
