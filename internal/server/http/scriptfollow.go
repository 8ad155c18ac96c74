package http

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// followScript streams the kept output of a script, and new output.
func (sh *scriptHost) followScript(w http.ResponseWriter, r *http.Request) error {
	k, err := sh.scripts.find(r.PathValue("script"))
	if err != nil {
		return err
	}
	return k.follow(w, r, 0)
}

// stopScript removes a script, ends it, and streams its end. If the script has
// ended already, it streams that end.
func (sh *scriptHost) stopScript(w http.ResponseWriter, r *http.Request) error {
	k, err := sh.scripts.find(r.PathValue("script"))
	if err != nil {
		return forgetPending(sh.state, err, true, r.PathValue("script"))
	}
	if err := rejectBody(w, r); err != nil {
		return err
	}
	k.dismiss() // now: a client that has read the script's end must not find it any more
	p := k.log.read(0)
	for ; p.end < 0; p = k.log.read(0) {
		<-p.changed
	}
	var said []string
	if err := keepDone(sh.state, "stopped"); err != nil {
		said = []string{err.Error()}
	}
	return k.follow(w, r, p.end, said...)
}

// follow sends warnings, and then streams the records of a script from a
// position of its log on.
func (k *keptScript) follow(w http.ResponseWriter, r *http.Request, at int, warnings ...string) error {
	st, err := k.host.streams.openStream(w, r)
	if err != nil {
		return err
	}
	defer k.host.streams.closeStream(st)
	start := k.begin
	start.Stream = st.id
	st.put(api.RecordStart, start)
	for _, text := range warnings {
		st.put(api.RecordWarning, api.Warning{Text: text})
	}
	heart := time.NewTicker(k.host.opt.heartbeat)
	defer heart.Stop()
	for {
		p := k.log.read(at)
		if p.skipped > 0 {
			st.put(api.RecordWarning, api.Warning{Text: fmt.Sprintf("%s of older records %s not kept any more", command.Plural(p.skipped, "byte"), command.IsOrAre(p.skipped))})
		}
		at = p.next
		st.buf.Write(p.data)
		if err := st.flush(); errors.Is(err, errSlow) {
			st.endSlow(0, nil)
			return nil
		} else if err != nil || p.last {
			return nil // the client is gone, or has everything
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
