package machine

// tapRoom is how many bytes of unread output a tap holds.
const tapRoom = 64 << 10

// ConsoleTap receives the raw output of the guest's console: every byte, whether
// or not a line ends. Output that does not fit is dropped and counted. A tap
// never blocks the guest.
type ConsoleTap struct {
	console *Console
	ready   chan struct{} // holds a token when there are bytes; closed with the console
	bytes   []byte        // guarded by console.mu, as is lost
	lost    uint64
}

// Tap returns a tap, and the lines that are kept now, including the unfinished
// one. No byte is missing between the two, and none is in both. Close it when
// done.
func (c *Console) Tap() (*ConsoleTap, []ConsoleLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &ConsoleTap{console: c, ready: make(chan struct{}, 1)}
	if c.closed {
		close(t.ready)
	} else {
		c.taps[t] = struct{}{}
	}
	return t, c.newestLines(c.n)
}

// Ready returns a channel that yields when Take has data, and that is closed
// when the console or the tap is closed.
func (t *ConsoleTap) Ready() <-chan struct{} { return t.ready }

// Take returns the bytes that came since the last call, or nil, and how many
// bytes were lost so far.
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
