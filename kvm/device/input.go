package device

import (
	"context"
	"sync"
)

// inputRoom is how many bytes of input wait for the guest, at most.
const inputRoom = 4096

// input is the host's input that the guest has not read yet.
type input struct {
	closed <-chan struct{} // of the platform
	came   func()          // tells the device that there is something; called without mu

	mu    sync.Mutex
	bytes []byte
	room  chan struct{} // closed when bytes were taken; nil without a waiter
}

// put adds b, in parts as there is room. See Platform.Input.
func (in *input) put(ctx context.Context, b []byte) (int, error) {
	done := 0
	for done < len(b) {
		in.mu.Lock()
		n := min(len(b)-done, inputRoom-len(in.bytes))
		in.bytes = append(in.bytes, b[done:done+n]...)
		if in.room == nil {
			in.room = make(chan struct{})
		}
		room := in.room
		in.mu.Unlock()
		if done += n; n > 0 {
			in.came()
			continue
		}
		select {
		case <-room:
		case <-ctx.Done():
			return done, ctx.Err()
		case <-in.closed:
			return done, ErrClosed
		}
	}
	return done, nil
}

// take moves bytes to p and returns how many.
func (in *input) take(p []byte) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := copy(p, in.bytes)
	in.bytes = in.bytes[:copy(in.bytes, in.bytes[n:])]
	if n > 0 && in.room != nil {
		close(in.room)
		in.room = nil
	}
	return n
}

// waiting reports whether there is something to take.
func (in *input) waiting() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.bytes) > 0
}
