package session

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/event"
)

// MaxGlobs bounds the patterns with wildcards of one call: each is compared with the names of all probes.
const MaxGlobs = 64

// names returns all names of a, besides its number: GROUP/EVENT, EVENT, and, shared
// with all others of the group, GROUP/.
func (a *Probe) names() [3]string {
	return [3]string{a.def.Name(), a.def.Event, a.def.Group + "/"}
}

// hasName reports whether one of a's names is name.
func (a *Probe) hasName(name string) bool {
	rest, ok := strings.CutPrefix(name, a.def.Group)
	return name == a.def.Event || ok && (rest == "/" || strings.HasPrefix(rest, "/") && rest[1:] == a.def.Event)
}

// events are the probes of each event, for the rules about them. Session.changes
// guards them.
type events map[eventKey]*event.Probes

// eventKey is the identity of an event. Probes of streams, which end with the stream,
// are kept separate: two streams may attach the same definition.
type eventKey struct {
	of      *Owner // nil: its probes stay
	name    string // GROUP/EVENT
	program bool   // it belongs to an object's program
}

func (a *Probe) event() eventKey {
	k := eventKey{name: a.def.Name(), program: a.runs.hasOwnEvents()}
	if !a.stay {
		k.of = a.owner
	}
	return k
}

// join adds a to the probes of its event, by the kernel's rules.
func (v events) join(a *Probe) error {
	k := a.event()
	other := k
	other.program = !k.program
	err := error(nil)
	if v[other] != nil || k.program && v[k] != nil {
		err = a.def.ExistsError() // programs have separate events
	} else {
		if v[k] == nil {
			v[k] = &event.Probes{}
		}
		err = v[k].Add(a.def)
	}
	if err != nil {
		return eventExists(a.def, err)
	}
	return nil
}

// part reverts join; it may be called without it.
func (v events) part(a *Probe) {
	if a.def == nil {
		return
	}
	k := a.event()
	if ps := v[k]; ps != nil {
		if ps.Remove(a.def); ps.Len() == 0 {
			delete(v, k)
		}
	}
}

// eventExists rejects a definition that cannot belong to the event with its name.
func eventExists(def *event.Def, err error) error {
	e := *ErrorOf(err)
	e.Code, e.Detail = CodeNameTaken, fmt.Sprintf("the event is %s; detach its probes first, or choose another name", def.Name())
	if def.AutoName {
		e.Detail = fmt.Sprintf("the event is %s; the name was made from the place: choose one, as in p:NAME %s", def.Name(), def.Place)
	}
	return &e
}

// probesByName returns the probes for a client's name: one by its number, the probes
// of GROUP/EVENT, of EVENT if only one group has it, or all of GROUP/. Probes of
// streams are used if no other has the name. Once the daemon stops nothing is found,
// and the error says that, instead of that there never was such a probe.
func (st *Session) probesByName(name string) ([]*Probe, error) {
	if st.closed.Load() {
		return nil, ErrClosed
	}
	if id, err := strconv.ParseUint(name, 10, 64); err == nil {
		if a := st.index.number(id); a != nil {
			return []*Probe{a}, nil
		}
	}
	found := st.index.probesByName(name)
	if slices.ContainsFunc(found, func(a *Probe) bool { return a.stay }) {
		found = slices.DeleteFunc(slices.Clone(found), func(a *Probe) bool { return !a.stay })
	}
	if len(found) == 0 {
		return nil, st.NotFoundError(name)
	}
	if !strings.Contains(name, "/") {
		var names []string
		for _, a := range found {
			names = append(names, a.def.Name())
		}
		slices.Sort(names)
		if names = slices.Compact(names); len(names) > 1 {
			return nil, ambiguousError(name, names)
		}
	}
	return found, nil
}

func (st *Session) Find(name string) (*Probe, error) {
	as, err := st.probesByName(name)
	if err != nil {
		return nil, err
	}
	if len(as) > 1 {
		var ids []string
		for _, a := range as {
			ids = append(ids, strconv.FormatUint(a.id, 10))
		}
		return nil, ambiguousError(name, ids)
	}
	return as[0], nil
}

// maxNamed bounds how many probes an error lists.
const maxNamed = 8

func ambiguousError(name string, which []string) error {
	more := ""
	n := len(which)
	if n > maxNamed {
		which, more = which[:maxNamed], fmt.Sprintf(" and %d more", n-maxNamed)
	}
	return &Error{
		Code: CodeAmbiguousName, Errno: syscall.EADDRNOTAVAIL, Text: fmt.Sprintf("%d probes are called %q", n, name),
		Detail: "say which: " + strings.Join(which, ", ") + more,
	}
}

// NotFoundError says that there is no probe of that name or, if all were removed
// because the daemon stops, that.
func (st *Session) NotFoundError(name string) error {
	if st.closed.Load() {
		return ErrClosed
	}
	e := &Error{Code: CodeProbeNotFound, Errno: syscall.ENOENT, Text: fmt.Sprintf("no probe %q is attached", name)}
	near := guest.Nearest(name, func(yield func(string) bool) {
		for _, a := range st.snapshot() {
			if a.def == nil {
				continue
			}
			for _, n := range []string{a.def.Event, a.def.Name()} {
				if !yield(n) {
					return
				}
			}
		}
	})
	if near != "" && near != name {
		e.Detail = "did you mean " + near + "?"
	}
	return e
}

// Choose returns the probes of these names, each once and by number; without names,
// all. A name is a number, GROUP/EVENT, EVENT or GROUP/, or a pattern (guest.Glob) of
// GROUP/EVENT, or without a slash of EVENT. Each must match some probe.
func (st *Session) Choose(names ...string) ([]*Probe, error) {
	all := st.snapshot()
	if len(names) == 0 {
		return all, nil
	}
	chosen, seen := map[*Probe]bool{}, map[string]bool{}
	globs := 0
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		if !strings.ContainsAny(name, "*?[") {
			found, err := st.probesByName(name)
			if err != nil {
				return nil, err
			}
			for _, a := range found {
				chosen[a] = true
			}
			continue
		}
		if globs++; globs > MaxGlobs {
			return nil, &Error{Code: CodeTooMany, Errno: syscall.E2BIG, Text: fmt.Sprintf("more than %d patterns", MaxGlobs)}
		}
		if err := guest.CheckGlob(name); err != nil {
			return nil, badValue("%v", err)
		}
		found := false
		for _, a := range all {
			called := a.def.Name()
			if !strings.Contains(name, "/") {
				called = a.def.Event
			}
			if guest.Glob(name, called) {
				chosen[a], found = true, true
			}
		}
		if !found {
			return nil, st.NotFoundError(name)
		}
	}
	out := make([]*Probe, 0, len(chosen))
	for a := range chosen {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *Probe) int { return cmp.Compare(a.id, b.id) })
	return out, nil
}
