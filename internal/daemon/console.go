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
	if err := s.console(r, st, sub, &history, follow); errors.Is(err, errSlow) {
		st.endSlow(sub.Lost()+uint64(len(sub.C())+len(history)), nil)
	}
	return nil // else the client is gone; nobody is left to tell
}

// console sends the lines of history, which is what is left of it afterwards, and, with
// follow, those that come, until there is a reason to stop. An error means that the end
// is not sent.
func (s *server) console(r *http.Request, st *stream, sub ConsoleSub, history *[]machine.ConsoleLine, follow bool) error {
	for len(*history) > 0 {
		st.putConsole((*history)[0])
		*history = (*history)[1:]
		if st.buf.Len() < maxGather {
			continue
		}
		if err := st.flush(); err != nil {
			return err
		}
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
			return st.endConsole(sub, reason, code)
		}
		if err := st.flush(); err != nil {
			return err
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
			return st.endConsole(sub, api.EndAsked, nil)
		case <-r.Context().Done():
			return nil
		case <-s.stop:
			return st.endConsole(sub, api.EndShutdown, nil)
		}
	}
}

// endConsole sends the lines that are already there, and the end.
func (st *stream) endConsole(sub ConsoleSub, reason string, code *int64) error {
	for st.drainConsole(sub) {
		if err := st.flush(); err != nil {
			return err
		}
	}
	st.putLost(sub.Lost())
	st.end(reason, code, nil)
	return nil
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
