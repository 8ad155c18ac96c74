package http

import (
	"context"
	"errors"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// consoleQueue is how many lines are queued for a slow reader.
const consoleQueue = 4096

// inputTime is how long a request waits for the guest to read earlier input. It
// is shorter than shutdownTime.
const inputTime = time.Second

// typeConsole passes console input to the guest.
func (in *inspector) typeConsole(w http.ResponseWriter, r *http.Request) error {
	var req api.ConsoleInput
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	b := append(req.Bytes, req.Text...)
	switch {
	case len(req.Bytes) > 0 && req.Text != "":
		return badValue("both text and bytes")
	case len(b) == 0 || len(b) > api.MaxInput:
		return badValue("%d bytes: not in 1 to %d", len(b), api.MaxInput)
	}
	ctx, cancel := context.WithTimeout(r.Context(), inputTime)
	defer cancel()
	n, err := in.guest.Input(ctx, b)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	writeJSON(w, http.StatusOK, api.ConsoleTaken{Taken: n})
	return nil
}

func (eh *eventHost) streamConsole(w http.ResponseWriter, r *http.Request, q values) error {
	st, err := eh.streams.openStream(w, r)
	if err != nil {
		return err
	}
	defer eh.streams.closeStream(st)
	if q.flag("bytes") {
		tap, history := eh.guest.Tap()
		defer tap.Close()
		streamOutput(eh, r, st, &outlet[struct{}]{
			history: history, follow: true,
			c: tap.Ready(), put: func(struct{}) {}, drain: func() bool { return st.drainTap(tap) },
			left: func() uint64 {
				b, lost := tap.Take()
				return lost + uint64(len(b))
			},
		})
		return nil
	}
	sub, history := eh.guest.Console(consoleQueue)
	defer sub.Close()
	streamOutput(eh, r, st, &outlet[machine.ConsoleLine]{
		history: history, follow: q.flag("follow"),
		c: sub.C(), put: st.putConsole, drain: func() bool { return st.drainConsole(sub) },
		left: func() uint64 { return sub.LostLines() + uint64(len(sub.C())) },
	})
	return nil
}

// outlet is the source of a console stream's records.
type outlet[T any] struct {
	history []machine.ConsoleLine // the kept lines that are not sent yet
	follow  bool
	c       <-chan T      // yields when there is something; closed with the guest
	put     func(T)       // puts a received record
	drain   func() bool   // puts up to a bufferful of the remaining records, and how many were lost; reports whether there may be more
	left    func() uint64 // how many were lost or not read
}

// streamOutput sends the stream. When it returns, the client has received the
// end or has disconnected, so there is no error to report.
func streamOutput[T any](eh *eventHost, r *http.Request, st *stream, o *outlet[T]) {
	if err := sendOutput(eh, r, st, o); errors.Is(err, errSlow) {
		st.endSlow(o.left()+uint64(len(o.history)), nil)
	}
}

// sendOutput sends the lines of history and, with follow, new records until
// there is a reason to stop. If it returns an error, the end was not sent.
func sendOutput[T any](eh *eventHost, r *http.Request, st *stream, o *outlet[T]) error {
	for len(o.history) > 0 {
		st.putConsole(o.history[0])
		o.history = o.history[1:]
		if st.buf.Len() < maxGather {
			continue
		}
		if err := st.flush(); err != nil {
			return err
		}
	}
	if !o.follow {
		st.end(api.EndHistory, nil, nil)
		return nil
	}
	// end sends the records that are already there, and the end.
	end := func(reason string, code *int64) error {
		for o.drain() {
			if err := st.flush(); err != nil {
				return err
			}
		}
		st.end(reason, code, nil)
		return nil
	}
	heart := time.NewTicker(eh.opt.heartbeat)
	defer heart.Stop()
	for {
		// The channel first, then the state: a change in between shows at once.
		changed := eh.guest.Changed()
		reason, code, ended := guestEnd(eh.guest.State())
		if ended {
			return end(reason, code)
		}
		if err := st.flush(); err != nil {
			return err
		}
		select {
		case x, ok := <-o.c:
			if !ok {
				return end(api.EndShutdown, nil)
			}
			o.put(x)
			o.drain()
		case <-heart.C:
			st.putHeartbeat()
		case <-changed:
		case <-st.asked:
			return end(api.EndAsked, nil)
		case <-r.Context().Done():
			return nil
		case <-eh.streams.stop:
			return end(api.EndShutdown, nil)
		}
	}
}

// drainConsole puts available lines, up to a bufferful, and reports whether
// there may be more.
func (st *stream) drainConsole(sub consoleSub) bool {
	for st.buf.Len() < maxGather {
		select {
		case l, ok := <-sub.C():
			if !ok {
				st.putLost(sub.LostLines())
				return false
			}
			st.putConsole(l)
		default:
			st.putLost(sub.LostLines())
			return false
		}
	}
	return true
}

// drainTap puts all output that is there. It never reports more: a tap holds
// less than a bufferful.
func (st *stream) drainTap(tap consoleTap) bool {
	b, lost := tap.Take()
	if len(b) > 0 {
		o := api.Output{Text: string(b)}
		if !utf8.Valid(b) {
			o = api.Output{Bytes: b}
		}
		st.delivered++
		st.put(api.RecordOutput, o)
	}
	st.putLost(lost)
	return false
}

func (st *stream) putConsole(l machine.ConsoleLine) {
	c := api.Console{Seq: l.Seq, Text: l.Text, Partial: l.Partial}
	if !utf8.ValidString(l.Text) {
		c.Text, c.Bytes = "", []byte(l.Text)
	}
	st.delivered++
	st.put(api.RecordConsole, c)
}
