package saved

import (
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Attachments are the probes, programs and scripts on a guest, in the form for
// snapshots and the file of --state.
type Attachments struct {
	Probes   []api.ProbeSpec `json:"probes,omitempty"`
	Objects  []Object        `json:"objects,omitempty"`
	Scripts  []Script        `json:"scripts,omitempty"`
	Disarmed bool            `json:"disarmed,omitempty"`
	LeftOut  []string        `json:"leftOut,omitempty"` // attachments that cannot be restored, in words

	held []heldMaps
}

// HoldObject holds an object with maps until Release, and adds it; ok is false if the object has ended.
func (on *Attachments) HoldObject(obj *session.Object, o Object) (i int, ok bool) {
	if !obj.LockMaps() {
		return 0, false
	}
	i = len(on.Objects)
	on.Objects = append(on.Objects, o)
	on.held = append(on.held, heldMaps{obj, func() *[]Map { return &on.Objects[i].Maps }})
	return i, true
}

// HoldScript is HoldObject for a script.
func (on *Attachments) HoldScript(obj *session.Object, s Script) (ok bool) {
	if !obj.LockMaps() {
		return false
	}
	i := len(on.Scripts)
	on.Scripts = append(on.Scripts, s)
	on.held = append(on.held, heldMaps{obj, func() *[]Map { return &on.Scripts[i].Maps }})
	return true
}

// heldMaps are the maps of a held object, and where their entries are stored.
type heldMaps struct {
	obj *session.Object
	to  func() *[]Map
}

// Object is an object file with programs on the guest.
type Object struct {
	Attach api.AttachProgram `json:"attach"`
	Probes map[string]bool   `json:"probes"` // the remaining ones, by name: whether they are enabled
	Maps   []Map             `json:"maps,omitempty"`
}

// Script is a script without a client.
type Script struct {
	Run  api.RunScript `json:"run"`
	Maps []Map         `json:"maps,omitempty"`
}

// Map has the entries of a map: for each its key, and the value of each vCPU, or
// the one value.
type Map struct {
	Name    string     `json:"name"`
	Entries [][][]byte `json:"entries"`
}

// ReadMaps reads the maps of the held objects.
func (on *Attachments) ReadMaps() {
	for _, h := range on.held {
		*h.to() = entriesOf(h.obj)
	}
}

// Release releases the objects, which may then end.
func (on *Attachments) Release() {
	for _, h := range on.held {
		h.obj.UnlockMaps()
	}
}

// entriesOf returns the maps of an object.
func entriesOf(o *session.Object) (out []Map) {
	for name, m := range o.Maps() {
		sm := Map{Name: name}
		m.Walk(func(key []byte, vals [][]byte) bool {
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

// Add adds other attachments.
func (on *Attachments) Add(other *Attachments) {
	on.Probes, on.Objects, on.Scripts = append(on.Probes, other.Probes...), append(on.Objects, other.Objects...), append(on.Scripts, other.Scripts...)
}

// Words names each attachment.
func (on *Attachments) Words() (out []string) {
	for _, p := range on.Probes {
		out = append(out, p.Def)
	}
	for _, o := range on.Objects {
		out = append(out, "programs "+o.Attach.Section)
	}
	for _, s := range on.Scripts {
		out = append(out, "script "+s.Run.Detach)
	}
	return out
}
