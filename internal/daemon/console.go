package daemon

import (
	"errors"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// consoleQueue is how many lines a slow reader may be behind.
const consoleQueue = 4096

func (s *server) streamConsole(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r)
	if err != nil {
		return err
	}
	follow := false
	if v := q["follow"]; v != "" {
		if follow, err = strconv.ParseBool(v); err != nil {
			return badValue("follow %q: not a boolean", v)
		}
	}
	st, err := s.openStream(w, r)
	if err != nil {
		return err
	}
	defer s.closeStream(st)
	sub, history := s.guest.Console(consoleQueue)
	defer sub.Close()
	for _, l := range history {
		st.putConsole(l)
	}
	if !follow {
		st.end(api.EndHistory, nil, nil)
		return nil
	}
	heart := time.NewTicker(s.opt.heartbeat)
	defer heart.Stop()
	for {
		// The channel first, then the state: a change in between shows at once.
		changed := s.guest.Changed()
		reason, code, ended := guestEnd(s.guest.State())
		if ended {
			s.endConsole(st, sub, reason, code)
			return nil
		}
		if err := st.flush(); err != nil {
			if errors.Is(err, errSlow) {
				st.endSlow(sub.Lost(), nil)
			}
			return nil // the client is gone; nobody is left to tell
		}
		select {
		case l, ok := <-sub.C():
			if !ok {
				st.putLost(sub.Lost())
				st.end(api.EndShutdown, nil, nil)
				return nil
			}
			st.putConsole(l)
			st.drainConsole(sub)
		case <-heart.C:
			st.putHeartbeat()
		case <-changed:
		case <-st.asked:
			s.endConsole(st, sub, api.EndAsked, nil)
			return nil
		case <-r.Context().Done():
			return nil
		case <-s.stop:
			s.endConsole(st, sub, api.EndShutdown, nil)
			return nil
		}
	}
}

// endConsole sends the lines that are already there, and the end.
func (s *server) endConsole(st *stream, sub ConsoleSub, reason string, code *int64) {
	for st.drainConsole(sub) {
		if st.flush() != nil {
			return
		}
	}
	st.putLost(sub.Lost())
	st.end(reason, code, nil)
}

// drainConsole puts lines that are there, up to a bufferful, and reports
// whether there may be more.
func (st *stream) drainConsole(sub ConsoleSub) bool {
	for st.buf.Len() < maxGather {
		select {
		case l, ok := <-sub.C():
			if !ok {
				return false
			}
			st.putConsole(l)
		default:
			st.putLost(sub.Lost())
			return false
		}
	}
	return true
}

func (st *stream) putConsole(l machine.ConsoleLine) {
	c := api.Console{Seq: l.Seq, Text: l.Text, Partial: l.Partial}
	if !utf8.ValidString(l.Text) {
		c.Text, c.Bytes = "", []byte(l.Text)
	}
	st.delivered++
	st.put(api.RecordConsole, c)
}
