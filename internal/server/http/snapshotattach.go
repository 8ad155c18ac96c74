package http

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
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
	obj *session.Object
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
	on := &attachments{Disarmed: !s.probes.Armed()}
	left := func(format string, args ...any) { on.LeftOut = append(on.LeftOut, fmt.Sprintf(format, args...)) }
	objects := map[*session.Object]int{}
	owners := map[*session.Owner]bool{}
	for _, a := range s.probes.Probes() {
		spec, obj := s.probes.SpecOf(a), a.Object()
		switch {
		case without(a.Label()):
		case obj != nil && obj.Script() != nil:
			// The script is what is saved.
		case obj != nil && obj.Spec() != nil:
			i, known := objects[obj]
			if !known {
				if !obj.Hold() {
					continue
				}
				i = len(on.Objects)
				objects[obj] = i
				on.Objects = append(on.Objects, savedObject{Attach: wireObject(obj.Spec()), Probes: map[string]bool{}})
				on.held = append(on.held, heldMaps{obj, func() *[]savedMap { return &on.Objects[i].Maps }})
			}
			on.Objects[i].Probes[a.Name()] = !spec.Disabled
		case a.Owner() != nil && !a.Stays():
			left("probe %s, which is of the client that traces it", a.Name())
		default:
			on.Probes = append(on.Probes, wireSpec(&spec))
		}
	}
	for _, k := range s.scripts.all() {
		owners[k.own()] = true
		if without(k.origin) {
			continue
		}
		if !k.loaded.Object().Hold() {
			left("script %s, which has ended", k.req.Detach)
			continue
		}
		i := len(on.Scripts)
		on.Scripts = append(on.Scripts, savedScript{Run: k.req})
		on.held = append(on.held, heldMaps{k.loaded.Object(), func() *[]savedMap { return &on.Scripts[i].Maps }})
	}
	for _, a := range s.probes.Probes() {
		if obj := a.Object(); obj != nil && obj.Script() != nil && !owners[a.Owner()] {
			owners[a.Owner()] = true
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
		h.obj.Release()
	}
}

// saveMaps returns what is in the maps of an object.
func saveMaps(o *session.Object) (out []savedMap) {
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
func (s *server) fillMaps(of string, o *session.Object, maps []savedMap) {
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
		if err := s.probes.SetArmed(false); err != nil {
			cannot("the knob", err)
		}
	}
	// A daemon that restores a snapshot may have brought what its --state has, too.
	there := map[string]bool{}
	for _, a := range s.probes.Probes() {
		there[a.Def().String()] = true
	}
	probes := slices.DeleteFunc(on.Probes, func(spec api.ProbeSpec) bool { return there[spec.Def] })
	if _, err := s.probes.Attach(probeSpecs(probes), nil); err != nil {
		for _, spec := range probes { // one by one, then: the others can be
			if _, err := s.probes.Attach([]session.Spec{specOf(&spec)}, nil); err != nil {
				cannot(spec.Def, err)
				left.Probes = append(left.Probes, spec)
			}
		}
	}
	for i := range on.Objects {
		o := &on.Objects[i]
		if a, err := s.probes.AttachObject(objectSpec(&o.Attach)); err != nil {
			cannot("programs "+o.Attach.Section, err)
			left.Objects = append(left.Objects, *o)
		} else {
			s.restoreObject(o, a.Probes)
		}
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
		s.fillMaps(sc.Run.Detach, k.loaded.Object(), sc.Maps)
	}
	return left
}

// restoreObject makes the probes and maps of an object, which was just attached, what they were.
func (s *server) restoreObject(o *savedObject, as []*session.Probe) {
	var off []string
	drop := map[*session.Probe]bool{}
	for _, a := range as {
		switch enabled, there := o.Probes[a.Name()]; {
		case !there:
			drop[a] = true
		case !enabled:
			off = append(off, strconv.FormatUint(a.ID(), 10))
		}
	}
	if len(as) > 0 {
		s.fillMaps(o.Attach.Section, as[0].Object(), o.Maps)
	}
	var err error
	if len(off) > 0 {
		_, err = s.probes.SetEnabled(false, off...)
	}
	if _, gone := s.probes.DetachIf(func(a *session.Probe) bool { return drop[a] }); err != nil || gone != nil {
		s.log.Warn("programs of the snapshot", "err", errors.Join(err, gone))
	}
}
