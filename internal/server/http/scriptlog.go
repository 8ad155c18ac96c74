package http

import (
	"net/http"
	"sync"
)

// maxKept bounds the kept records of a script without a client, in bytes.
const maxKept = 4 << 20

// scriptLog keeps the last records of a script without a client, in the form in
// which they are sent to clients. The script's stream writes to it.
type scriptLog struct {
	mu      sync.Mutex
	parts   [][]byte // each of whole records
	first   int      // the place of parts[0] in all that was written
	bytes   int      // of parts
	end     int      // where the script's end begins, or -1
	closed  bool     // nothing follows
	changed chan struct{}
}

func newScriptLog() *scriptLog { return &scriptLog{end: -1, changed: make(chan struct{})} }

// Header implements http.ResponseWriter.
func (*scriptLog) Header() http.Header { return http.Header{} }

// WriteHeader implements http.ResponseWriter.
func (*scriptLog) WriteHeader(int) {}

// Flush implements http.Flusher.
func (*scriptLog) Flush() {}

// Write keeps records, and drops old ones for them.
func (l *scriptLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts, l.bytes = append(l.parts, append([]byte(nil), p...)), l.bytes+len(p)
	for len(l.parts) > 1 && l.bytes > maxKept {
		l.first, l.bytes = l.first+len(l.parts[0]), l.bytes-len(l.parts[0])
		l.parts[0] = nil
		l.parts = l.parts[1:]
	}
	l.tell()
	return len(p), nil
}

// tell wakes the waiting readers. Callers hold mu.
func (l *scriptLog) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// mark records that the script's end begins.
func (l *scriptLog) mark() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end < 0 {
		l.end = l.first + l.bytes
		l.tell()
	}
}

// close records that nothing follows.
func (l *scriptLog) close() {
	l.mark()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.tell()
}

// logPart is the result of reading a log.
type logPart struct {
	data    []byte // records, or nothing yet
	next    int    // position of the next read
	skipped int    // bytes that were dropped
	end     int    // where the script's end begins, or -1
	last    bool   // nothing follows
	changed <-chan struct{}
}

// read returns the first part at or after a position in everything that was
// written.
func (l *scriptLog) read(at int) logPart {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := logPart{next: max(at, l.first), end: l.end, changed: l.changed}
	p.skipped = p.next - at
	place := l.first
	for _, part := range l.parts {
		if place >= p.next {
			p.data, p.next = part, place+len(part)
			break
		}
		place += len(part)
	}
	p.last = l.closed && p.data == nil
	return p
}
