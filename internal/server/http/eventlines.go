package http

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/probe/event"
)

// Limits of eventLines: how many of the last events it has, and the largest line.
const (
	keptLines   = 4096 // a power of 2
	longestLine = 1 << 10
)

// eventLines has the lines of the last events while several streams are open, so that an event becomes text once and not for each client. Any goroutine may
// use it; its zero value has none.
type eventLines struct {
	all atomic.Pointer[[keptLines]atomic.Pointer[eventLine]] // nil: there are fewer than two streams

	mu      sync.Mutex
	readers int
}

// eventLine is the line of an event, with its newline. It does not change.
type eventLine struct {
	seq  uint64 // Event.Seq
	late bool   // Event.Late, which the line has
	time int64  // Hit.TimeNS
	text []byte
}

// find returns the line of an event, or nil.
func (l *eventLines) find(ev event.Event) *eventLine {
	all := l.all.Load()
	if all == nil {
		return nil
	}
	line := all[ev.Seq%keptLines].Load()
	if line == nil || line.seq != ev.Seq || line.late != ev.Late {
		return nil
	}
	return line
}

// keep keeps the line of an event for other streams, if there are some.
func (l *eventLines) keep(ev event.Event, time int64, text []byte) {
	if all := l.all.Load(); all != nil && len(text) <= longestLine {
		all[ev.Seq%keptLines].Store(&eventLine{seq: ev.Seq, late: ev.Late, time: time, text: bytes.Clone(text)})
	}
}

// join counts a stream, until leave.
func (l *eventLines) join() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.readers++; l.readers == 2 {
		l.all.Store(new([keptLines]atomic.Pointer[eventLine]))
	}
}

// leave ends join.
func (l *eventLines) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.readers--; l.readers < 2 {
		l.all.Store(nil)
	}
}
