package daemon

import (
	"bufio"
	"iter"
	"net/http"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/script"
)

// getPlaces lists where a script may have probes. A kernel has tens of thousands of
// functions: the answer is written as they are found.
func (s *server) getPlaces(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r)
	if err != nil {
		return err
	}
	match := q["match"]
	if match == "" {
		match = "*"
	}
	listed, err := script.List(match)
	if err != nil {
		return scriptError(err)
	}
	for _, l := range listed {
		if err := guest.CheckGlob(l.Pattern); err != nil {
			return badValue("match: %v", err)
		}
	}
	known, err := s.askedTypes(q)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	b := bufio.NewWriter(w)
	b.WriteString(`{"places":`)
	writeList(b, s.places(listed, known))
	b.WriteString("}\n")
	_ = b.Flush() // an error: nobody is left to tell
	return nil
}

// places are those that patterns stand for.
func (s *server) places(listed []script.Listed, known event.Types) iter.Seq[api.Place] {
	return func(yield func(api.Place) bool) {
		img := s.guest.Image()
		for _, l := range listed {
			for sym, name := range (scriptTarget{s.probes}).functions(l.Pattern, l.User) {
				if !yield(api.Place{Probe: l.Provider + ":" + name, Prototype: prototype(known, img, sym)}) {
					return
				}
			}
		}
	}
}
