package http

import (
	"bufio"
	"iter"
	"net/http"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// getPlaces lists the places where a script may have probes. A kernel has tens
// of thousands of functions, so the answer is written as they are found.
func (in *inspector) getPlaces(w http.ResponseWriter, _ *http.Request, q values) error {
	if tag, pattern, ok := typePattern(q.text("match")); ok {
		found, err := in.listTypes(tag, pattern, q.flag("types"))
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, api.PlaceList{Places: []api.Place{}, Types: found})
		return nil
	}
	listed, err := script.List(q.text("match"), in.probes.ScriptTarget())
	if err != nil {
		return scriptError(err)
	}
	for _, l := range listed {
		if l.Data { // a client may give more than the symbol
			l.Pattern, _, _ = strings.Cut(l.Pattern, ":")
		}
		if l.Pattern == "" {
			continue // already complete
		}
		if err := guest.CheckGlob(l.Pattern); err != nil {
			return badValue("match: %v", err)
		}
	}
	known, err := in.requestTypes(q.flag("types"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	b := bufio.NewWriter(w)
	b.WriteString(`{"places":`)
	writeList(b, in.places(listed, known))
	b.WriteString("}\n")
	_ = b.Flush() // an error means that the client is gone
	return nil
}

// fewEvents is the number of events up to which the fields of each are searched for.
const fewEvents = 8

// places returns the places that match patterns.
func (in *inspector) places(listed []script.Listed, known event.Types) iter.Seq[api.Place] {
	return func(yield func(api.Place) bool) {
		img := in.guest.Image()
		for _, l := range listed {
			fields := in.probes.ScriptTarget().Event
			if known != nil && l.Provider == "tracepoint" && len(l.Places) > fewEvents {
				if all, err := in.probes.EventFields(); err == nil {
					fields = func(name string) ([]script.EventField, error) { return all[name], nil }
				}
			}
			for _, place := range l.Places {
				p := api.Place{Probe: l.Provider + ":" + place}
				switch l.Provider {
				case "rawtracepoint":
					p.Prototype = tracepointPrototype(known, place)
				case "tracepoint":
					p.Prototype = eventPrototype(known, place, fields)
				case "usdt":
					p.Prototype = in.staticPrototype(known, place)
				}
				if !yield(p) {
					return
				}
			}
			if l.Data && !variablePlaces(img, &l, yield) {
				return
			}
			if l.Data || l.Pattern == "" {
				continue
			}
			for sym, name := range in.probes.Functions(l.Pattern, l.User, l.Returns, nil) {
				if l.Kernel {
					if name = moduleName(img, sym, name); name == "" {
						continue
					}
				}
				p := api.Place{Probe: l.Provider + ":" + name, Prototype: prototype(known, img, sym)}
				if strings.HasPrefix(name, "/") {
					p.Prototype = filePrototype(in.probes.ScriptTarget(), known, name)
				}
				if !yield(p) {
					return
				}
			}
		}
	}
}

// moduleName returns MODULE:FUNCTION of a function that a place names, with vmlinux for the kernel itself; "" for user code, and for
// functions that only their address names.
func moduleName(img guest.View, sym guest.Symbol, place string) string {
	if sym.User || place == "" || place[0] == '/' || place[0] >= '0' && place[0] <= '9' {
		return ""
	}
	if event.ModuleOf(img, sym.Addr) == "" {
		return "vmlinux:" + place
	}
	return place
}

// variablePlaces yields the places of watches on variables, each at the
// variable's first bytes.
func variablePlaces(img guest.View, l *script.Listed, yield func(api.Place) bool) bool {
	symbol, _, _ := strings.Cut(l.Pattern, ":")
	for _, sym := range img.Match(symbol) {
		if sym.Kind != guest.SymData {
			continue
		}
		if place := l.WatchedPlace(sym.Name, sym.Size); place != "" && !yield(api.Place{Probe: l.Provider + ":" + place}) {
			return false
		}
	}
	return true
}
