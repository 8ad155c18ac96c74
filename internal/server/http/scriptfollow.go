package http

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// followScript streams what a script has printed, as far as it is kept, and what it prints.
func (s *server) followScript(w http.ResponseWriter, r *http.Request) error {
	k, err := s.scripts.find(r.PathValue("script"))
	if err != nil {
		return err
	}
	return k.follow(w, r, 0)
}

// stopScript forgets a script, has it come to its end, and streams that. One that has ended
// already gives the end that it had.
func (s *server) stopScript(w http.ResponseWriter, r *http.Request) error {
	k, err := s.scripts.find(r.PathValue("script"))
	if err != nil {
		return s.forgotten(err, true, r.PathValue("script"))
	}
	if err := noBody(w, r); err != nil {
		return err
	}
	k.dismiss() // now: whoever has read its end is not to find it
	p := k.log.read(0)
	for ; p.end < 0; p = k.log.read(0) {
		<-p.changed
	}
	var said []string
	if err := s.kept("stopped"); err != nil {
		said = []string{err.Error()}
	}
	return k.follow(w, r, p.end, said...)
}

// follow streams the records of a script from a place of its log on, after warnings.
func (k *keptScript) follow(w http.ResponseWriter, r *http.Request, at int, warnings ...string) error {
	st, err := k.s.openStream(w, r)
	if err != nil {
		return err
	}
	defer k.s.closeStream(st)
	start := k.begin
	start.Stream = st.id
	st.put(api.RecordStart, start)
	for _, text := range warnings {
		st.put(api.RecordWarning, api.Warning{Text: text})
	}
	heart := time.NewTicker(k.s.opt.heartbeat)
	defer heart.Stop()
	for {
		p := k.log.read(at)
		if p.skipped > 0 {
			st.put(api.RecordWarning, api.Warning{Text: fmt.Sprintf("%s of older records %s not kept any more", command.Plural(p.skipped, "byte"), command.Are(p.skipped))})
		}
		at = p.next
		st.buf.Write(p.data)
		if err := st.flush(); errors.Is(err, errSlow) {
			st.endSlow(0, nil)
			return nil
		} else if err != nil || p.last {
			return nil // the client is gone, or has all
		}
		if p.data != nil {
			continue
		}
		select {
		case <-p.changed:
		case <-heart.C:
			st.putHeartbeat()
		case <-st.asked:
			st.end(api.EndAsked, nil, nil)
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
}
