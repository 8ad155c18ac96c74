package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Limits of streams.
const (
	// writeTime is how long one write may take once the daemon stops: a client
	// that does not read must not hold it up. The end, which is written into room
	// kept for it, has as long again.
	writeTime = 500 * time.Millisecond
	// endTime is how long a client that reads may take for the remaining records
	// when the daemon stops. Records left after that are lost, and counted. With
	// the last two writes it stays within shutdownTime.
	endTime = 2 * time.Second
	// gatherTime is how long a stream waits between two writes of hits, so that
	// many hits share a write.
	gatherTime = 5 * time.Millisecond
	// maxGather bounds the size of one write, in bytes.
	maxGather = 64 << 10
	// maxStreams bounds how many are open at a time.
	maxStreams = 256
)

// stream writes records to one client. It belongs to the goroutine of the
// request; only its connection's deadline is set from elsewhere.
type stream struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf bytes.Buffer
	enc *json.Encoder

	conn      *conn         // nil in some tests
	stallTime time.Duration // for the client to read some
	writeTime time.Duration // of one write, once the daemon stops
	// until is when the stream must end; nil until the daemon stops.
	until atomic.Pointer[time.Time]

	id    uint64
	asked chan struct{} // capacity 1: a client asks for the stream's end

	delivered uint64 // records of the stream's own kind
	lost      uint64 // reported so far
	lateOnes  uint64 // how many of the delivered ones are late

	sent struct{ delivered, lost, lateOnes uint64 } // the same counts, as of the last write
	slow bool                                       // the client does not read: only the end may still be written
}

// errSlow is the end of a stream whose client does not read.
var errSlow = errors.New("the client does not read")

// streams is the set of open streams. Any goroutine may use it.
type streams struct {
	opt    *options
	limits *atomic.Pointer[limits]
	stop   <-chan struct{} // closed when the daemon stops

	mu   sync.Mutex
	open map[*stream]struct{}
	last uint64 // id
}

// count is how many are open.
func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// ask asks a stream to end, and reports whether there is one.
func (s *streams) ask(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.open {
		if strconv.FormatUint(st.id, 10) != id {
			continue
		}
		select {
		case st.asked <- struct{}{}:
		default:
		}
		return true
	}
	return false
}

// newStream returns a stream that writes to w.
func (s *streams) newStream(w http.ResponseWriter) *stream {
	st := &stream{w: w, rc: http.NewResponseController(w), stallTime: s.limits.Load().stall, writeTime: s.opt.writeTime, asked: make(chan struct{}, 1)}
	st.enc = json.NewEncoder(&st.buf)
	st.enc.SetEscapeHTML(false)
	return st
}

// openStream answers the request with a stream of records.
func (s *streams) openStream(w http.ResponseWriter, r *http.Request) (*stream, error) {
	st := s.newStream(w)
	st.conn = requestConn(r)
	if rec, ok := w.(*recorder); ok {
		rec.stall = 0
	}
	s.mu.Lock()
	full := len(s.open) >= maxStreams
	if !full {
		s.last++
		st.id = s.last
		s.open[st] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		return nil, &api.Error{Code: api.CodeTooMany, Errno: "EMFILE", Message: fmt.Sprintf("%d streams are open already", maxStreams)}
	}
	select {
	case <-s.stop: // interrupt has run already
		st.interrupt(s.opt.endTime)
	default:
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	// The client learns at once that the stream is open, not with the first
	// record.
	_ = st.rc.Flush()
	_ = st.rc.SetReadDeadline(time.Time{}) // ends the deadline of an unread body
	return st, nil
}

func (s *streams) closeStream(st *stream) {
	s.mu.Lock()
	delete(s.open, st)
	s.mu.Unlock()
}

// interrupt gives every open stream the time d to write its remaining records.
func (s *streams) interrupt(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.open {
		st.interrupt(d)
	}
}

func (st *stream) interrupt(d time.Duration) {
	until := time.Now().Add(d)
	if !st.until.CompareAndSwap(nil, &until) {
		return // a stream that has just been opened has done it itself
	}
	st.allow(until) // for a write in progress
}

// allow gives the next write, or the present one, its time, counted from the
// stream's end at the latest.
func (st *stream) allow(until time.Time) {
	d := time.Now()
	if d.After(until) {
		d = until
	}
	_ = st.rc.SetWriteDeadline(d.Add(st.writeTime))
}

// late reports whether the time for the stream's end is over.
func (st *stream) late() bool {
	until := st.until.Load()
	return until != nil && !time.Now().Before(*until)
}

// put appends a record to the data that the next flush sends.
func (st *stream) put(t api.RecordType, data any) {
	// Encode cannot fail: every record is a plain struct, and the buffer grows.
	if err := st.enc.Encode(struct {
		Type api.RecordType `json:"type"`
		Data any            `json:"data"`
	}{t, data}); err != nil {
		panic("BUG: encode record: " + err.Error())
	}
}

// putHitRecord is put for a hit.
func (st *stream) putHitRecord(h *api.Hit) {
	b := append(st.buf.AvailableBuffer(), api.HitPrefix...)
	st.buf.Write(append(api.AppendHit(b, h), "}\n"...))
}

// putLost appends a record of the number lost since the last one, if total has
// grown.
func (st *stream) putLost(total uint64) {
	if total > st.lost {
		st.put(api.RecordLost, api.Lost{Lost: total - st.lost, Total: total})
		st.lost = total
	}
}

// putHeartbeat appends a heartbeat.
func (st *stream) putHeartbeat() {
	st.put(api.RecordHeartbeat, api.Heartbeat{Delivered: st.delivered, Lost: st.lost})
}

// flush sends the records that were put. An error means that the client is gone,
// or with errSlow that it has not read for too long. When the daemon stops, a
// moment is too long.
func (st *stream) flush() error {
	if st.buf.Len() == 0 {
		return nil
	}
	limit := st.stallTime
	if st.slow {
		limit = st.writeTime
	}
	_ = st.rc.SetWriteDeadline(time.Now().Add(limit))
	if until := st.until.Load(); until != nil && st.slow {
		_ = st.rc.SetWriteDeadline(until.Add(2 * st.writeTime))
	} else if until != nil {
		st.allow(*until)
	}
	err := st.await()
	if err == nil {
		_, err = st.w.Write(st.buf.Bytes())
		if st.conn == nil && !st.slow && errors.Is(err, os.ErrDeadlineExceeded) {
			err = errSlow // the page's socket waits itself, and has written nothing
		}
	}
	st.buf.Reset()
	if err != nil {
		return err
	}
	st.sent.delivered, st.sent.lost, st.sent.lateOnes = st.delivered, st.lost, st.lateOnes
	return st.rc.Flush()
}

// await waits until the client has read enough that the socket has room for the
// pending write and for the end after it. So a client that does not read can
// still be sent the reason for the stream's end.
func (st *stream) await() error {
	if st.conn == nil || st.slow {
		return nil
	}
	err := st.conn.awaitRoom()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSlow
	}
	return err
}

// endSlow ends a stream whose client does not read; total is the number lost
// earlier in the pipeline.
func (st *stream) endSlow(total uint64, probes []api.Probe) {
	st.giveUp(total)
	reason := api.EndSlow
	if st.until.Load() != nil {
		reason = api.EndShutdown
	}
	st.end(reason, nil, probes)
}

// giveUp counts the unsent records as lost, in addition to total. Only the end
// may follow.
func (st *stream) giveUp(total uint64) {
	total += st.delivered - st.sent.delivered
	st.delivered, st.lost, st.lateOnes, st.slow = st.sent.delivered, st.sent.lost, st.sent.lateOnes, true
	st.putLost(total)
}

// partWriter sends parts of one record.
type partWriter struct{ st *stream }

// Write sends p after the records that were put. A part that could not be sent
// ends the line.
func (w partWriter) Write(p []byte) (int, error) {
	w.st.buf.Write(p)
	err := w.st.flush()
	if err != nil {
		w.st.buf.WriteByte('\n')
	}
	return len(p), err
}

// end sends the last record, with the final state of the stream's probes. A
// client that does not read the records before it gets only the end.
func (st *stream) end(reason string, code *int64, probes []api.Probe) {
	st.endAs(api.End{Reason: reason, Code: code, Probes: probes})
}

// endAs sends e as the end, and fills in the stream's counts.
func (st *stream) endAs(e api.End) {
	e.Delivered, e.Lost, e.Late = st.delivered, st.lost, st.lateOnes
	st.put(api.RecordEnd, e)
	if errors.Is(st.flush(), errSlow) {
		st.giveUp(st.lost)
		st.endAs(e)
	}
}

// guestEnd returns how the guest's state ends streams.
func guestEnd(st machine.State) (reason string, code *int64, ended bool) {
	switch st.Phase {
	case machine.PhaseExited:
		if st.Outside {
			return api.EndGuestExit, nil, true
		}
		c := int64(st.ExitCode)
		return api.EndGuestExit, &c, true
	case machine.PhaseCrashed:
		return api.EndGuestCrash, nil, true
	case machine.PhaseClosed:
		return api.EndShutdown, nil, true
	}
	return "", nil, false
}
