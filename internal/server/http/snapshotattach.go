package http

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// attachments are what is on a guest from outside, as a snapshot has it.
type attachments struct {
	Probes   []api.ProbeSpec `json:"probes,omitempty"`
	Objects  []savedObject   `json:"objects,omitempty"`
	Scripts  []savedScript   `json:"scripts,omitempty"`
	Disarmed bool            `json:"disarmed,omitempty"`
	LeftOut  []string        `json:"leftOut,omitempty"` // what cannot be attached again, in words

	held []heldMaps
}

// heldMaps are the maps of an object that is held, and where what is in them belongs.
type heldMaps struct {
	obj *object
	to  func() *[]savedMap
}

// savedObject is an object file with programs on the guest.
type savedObject struct {
	Attach api.AttachProgram `json:"attach"`
	Probes map[string]bool   `json:"probes"` // by name, those that are still there: whether they are enabled
	Maps   []savedMap        `json:"maps,omitempty"`
}

// savedScript is a script without a client.
type savedScript struct {
	Run  api.RunScript `json:"run"`
	Maps []savedMap    `json:"maps,omitempty"`
}

// savedMap is what is in a map: of each entry its key, and the value of each vCPU, or the one value.
type savedMap struct {
	Name    string     `json:"name"`
	Entries [][][]byte `json:"entries"`
}

// attachments describes what is on the guest, but for what is in its maps, and holds the objects with maps until
// release, all but what has the origin without, if that is one. Callers hold changes.
func (s *server) attachments(without func(origin string) bool) *attachments {
	on := &attachments{Disarmed: !s.probes.armed()}
	left := func(format string, args ...any) { on.LeftOut = append(on.LeftOut, fmt.Sprintf(format, args...)) }
	objects := map[*object]int{}
	sessions := map[*session]bool{}
	for _, a := range s.probes.snapshot() {
		enabled := !a.kprobe.Disabled
		if a.watch != nil {
			info, _ := s.probes.engine.WatchInfo(a.watch)
			enabled = !info.Disabled
		}
		switch {
		case without(a.origin):
		case a.object != nil && a.object.script != nil:
			// The script is what is saved.
		case a.object != nil && a.object.request != nil:
			i, known := objects[a.object]
			if !known {
				if !a.object.hold() {
					continue
				}
				i = len(on.Objects)
				objects[a.object] = i
				on.Objects = append(on.Objects, savedObject{Attach: *a.object.request, Probes: map[string]bool{}})
				on.held = append(on.held, heldMaps{a.object, func() *[]savedMap { return &on.Objects[i].Maps }})
			}
			on.Objects[i].Probes[a.def.Name()] = enabled
		case a.stream != nil && !a.stay:
			left("probe %s, which is of the client that traces it", a.def.Name())
		default:
			spec := a.spec
			spec.Def, spec.Disabled, spec.Stay = a.def.String(), !enabled, true
			on.Probes = append(on.Probes, spec)
		}
	}
	for _, k := range s.scripts.all() {
		sessions[k.own] = true
		if without(k.origin) {
			continue
		}
		if !k.obj.hold() {
			left("script %s, which has ended", k.req.Detach)
			continue
		}
		i := len(on.Scripts)
		on.Scripts = append(on.Scripts, savedScript{Run: k.req})
		on.held = append(on.held, heldMaps{k.obj, func() *[]savedMap { return &on.Scripts[i].Maps }})
	}
	for _, a := range s.probes.snapshot() {
		if a.object != nil && a.object.script != nil && !sessions[a.stream] {
			sessions[a.stream] = true
			left("a script that prints to the client that has started it")
		}
	}
	return on
}

// values reads what is in the maps.
func (on *attachments) values() {
	for _, h := range on.held {
		*h.to() = saveMaps(h.obj)
	}
}

// release lets the objects end.
func (on *attachments) release() {
	for _, h := range on.held {
		h.obj.use.RUnlock()
	}
}

// saveMaps returns what is in the maps of an object.
func saveMaps(o *object) (out []savedMap) {
	for name, m := range o.Maps() {
		sm := savedMap{Name: name}
		m.Each(func(key []byte, vals [][]byte) bool {
			entry := [][]byte{append([]byte{}, key...)}
			for _, v := range vals {
				entry = append(entry, append([]byte{}, v...))
			}
			sm.Entries = append(sm.Entries, entry)
			return true
		})
		if len(sm.Entries) > 0 {
			out = append(out, sm)
		}
	}
	return out
}

// fillMaps puts back what was in the maps of an object, in the place of what is there; what cannot be is told.
func (s *server) fillMaps(of string, o *object, maps []savedMap) {
	for _, sm := range maps {
		m := o.Maps()[sm.Name]
		if m == nil {
			s.log.Warn("a map of the snapshot is not there any more", "of", of, "map", sm.Name)
			continue
		}
		sm.Entries = slices.DeleteFunc(sm.Entries, func(e [][]byte) bool { return len(e) < 2 })
		if err := m.Restore(sm.Entries); err != nil {
			s.log.Warn("what was in a map cannot be put back", "of", of, "map", sm.Name, "err", err)
		}
	}
}

// add adds what is in other attachments.
func (on *attachments) add(other *attachments) {
	on.Probes, on.Objects, on.Scripts = append(on.Probes, other.Probes...), append(on.Objects, other.Objects...), append(on.Scripts, other.Scripts...)
}

// attachAll puts what was on a guest back on it, and logs and returns what cannot be.
func (s *server) attachAll(on *attachments) *attachments {
	left := &attachments{}
	cannot := func(what string, err error) {
		s.log.Warn("what was attached before cannot be again", "what", what, "err", err)
	}
	if on.Disarmed {
		if err := s.probes.setArmed(false); err != nil {
			cannot("the knob", err)
		}
	}
	// A daemon that restores a snapshot may have brought what its --state has, too.
	there := map[string]bool{}
	for _, a := range s.probes.snapshot() {
		there[a.def.String()] = true
	}
	probes := slices.DeleteFunc(on.Probes, func(spec api.ProbeSpec) bool { return there[spec.Def] })
	if _, err := s.probes.attach(probes, nil); err != nil {
		for _, spec := range probes { // one by one, then: the others can be
			if _, err := s.probes.attach([]api.ProbeSpec{spec}, nil); err != nil {
				cannot(spec.Def, err)
				left.Probes = append(left.Probes, spec)
			}
		}
	}
	for i := range on.Objects {
		o := &on.Objects[i]
		if _, err := s.probes.attachObject(o.Attach); err != nil {
			cannot("programs "+o.Attach.Section, err)
			left.Objects = append(left.Objects, *o)
			continue
		}
		s.restoreObject(o)
	}
	for i := range on.Scripts {
		sc := &on.Scripts[i]
		if err := s.scripts.reserve(sc.Run.Detach); err != nil {
			cannot("script "+sc.Run.Detach, err)
			left.Scripts = append(left.Scripts, *sc)
			continue
		}
		k, _, err := s.startKept(context.Background(), &sc.Run, peer{}, nil)
		if err != nil {
			cannot("script "+sc.Run.Detach, err)
			left.Scripts = append(left.Scripts, *sc)
			continue
		}
		s.fillMaps(sc.Run.Detach, k.obj, sc.Maps)
	}
	return left
}

// restoreObject makes the probes and maps of an object, which is the last that was attached, what they were.
func (s *server) restoreObject(o *savedObject) {
	st := s.probes
	as := st.snapshot()
	obj := as[len(as)-1].object
	if err := st.change(); err != nil {
		return
	}
	defer st.changes.Unlock()
	var drop, off []*attached
	for _, a := range as {
		switch enabled, there := o.Probes[a.def.Name()]; {
		case a.object != obj:
		case !there:
			drop = append(drop, a)
		case !enabled:
			off = append(off, a)
		}
	}
	s.fillMaps(o.Attach.Section, obj, o.Maps)
	_, err := st.enable(off, false)
	if _, gone := st.remove(drop); err != nil || gone != nil {
		s.log.Warn("programs of the snapshot", "err", errors.Join(err, gone))
	}
}
