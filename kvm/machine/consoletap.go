package machine

// tapRoom is how many bytes of output a tap holds that nobody has taken.
const tapRoom = 64 << 10

// ConsoleTap receives what the guest writes to its console as it is: every byte, whether or not a
// line ends. What does not fit is lost and counted; it never holds up the guest.
type ConsoleTap struct {
	console *Console
	ready   chan struct{} // holds a token when there are bytes; closed with the console
	bytes   []byte        // guarded by console.mu, as is lost
	lost    uint64
}

// Tap returns a tap, and the lines that are kept now, with the one that is not ended: no byte is missing
// between the two, none is in both. Close it when done.
func (c *Console) Tap() (*ConsoleTap, []ConsoleLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &ConsoleTap{console: c, ready: make(chan struct{}, 1)}
	if c.closed {
		close(t.ready)
	} else {
		c.taps[t] = struct{}{}
	}
	return t, c.newest(c.n)
}

// Ready returns a channel that yields when Take has something, and that is closed when the console or
// the tap is.
func (t *ConsoleTap) Ready() <-chan struct{} { return t.ready }

// Take returns the bytes that came since the last call, and how many bytes were lost so far. It
// returns nil when there are none.
func (t *ConsoleTap) Take() (b []byte, lost uint64) {
	t.console.mu.Lock()
	defer t.console.mu.Unlock()
	b, t.bytes = t.bytes, nil
	return b, t.lost
}

// Close ends the tap. Calls after the first do nothing.
func (t *ConsoleTap) Close() {
	t.console.mu.Lock()
	defer t.console.mu.Unlock()
	if _, ok := t.console.taps[t]; ok {
		delete(t.console.taps, t)
		close(t.ready)
	}
}

// put adds output. Precondition: console.mu held.
func (t *ConsoleTap) put(p []byte) {
	n := min(len(p), tapRoom-len(t.bytes))
	t.bytes = append(t.bytes, p[:n]...)
	t.lost += uint64(len(p) - n)
	select {
	case t.ready <- struct{}{}:
	default:
	}
}
