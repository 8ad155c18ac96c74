package session

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
)

// Object is a loaded object file, or a script. It lives as long as one of its probes,
// or its script.
type Object struct {
	loaded *program.Object
	maps   []*objectMap // by name
	rings  []*objectRing
	probes []*Probe // registered probes; objects.mu guards it
	script *Script  // its script, which closes it; nil: it is of a file
	spec   *ObjectSpec

	use   sync.RWMutex // held for reading while a map is read, for writing to free them
	ended bool         // they were freed; use guards it
}

// Spec returns the object's request; nil for a script.
func (o *Object) Spec() *ObjectSpec { return o.spec }

// Script returns the object's script, or nil.
func (o *Object) Script() *Script { return o.script }

// Programs returns the programs at places in the guest. They must not be changed.
func (o *Object) Programs() []*program.Program { return o.loaded.Programs }

// Maps returns the object's maps, by name. They may be read between LockMaps and UnlockMaps.
func (o *Object) Maps() map[string]*bpf.Map { return o.loaded.Maps() }

// objectMap is a map of an object.
type objectMap struct {
	id   uint64
	name string
	m    *bpf.Map
	obj  *Object
}

// objectRing is a ring of an object as a source of events: they count as events of
// the first of its probes that uses it.
type objectRing struct {
	name  string
	index byte
	m     *bpf.Map
	owner atomic.Pointer[Probe]
	buf   []byte // of Put, which one goroutine at a time calls
}

// Put implements program.Emitter.
func (r *objectRing) Put(cpu int, time int64, data []byte) bool {
	a := r.owner.Load()
	if a == nil {
		return false
	}
	r.buf = append(append(r.buf[:0], r.index), data...)
	return a.source.Put(cpu, time, r.buf)
}

// Lose implements program.Emitter.
func (r *objectRing) Lose(cpu int, n uint64) {
	if a := r.owner.Load(); a != nil {
		a.source.Lose(cpu, n)
	}
}

// objects are the loaded object files. One goroutine at a time changes them.
type objects struct {
	mu     sync.Mutex // guards the fields below; held briefly
	maps   map[uint64]*objectMap
	lastID uint64
}

// add adds the maps of an object, and makes its rings sources of events.
func (o *objects) add(obj *Object, as []*Probe) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj.probes = slices.Clone(as)
	if o.maps == nil {
		o.maps = map[uint64]*objectMap{}
	}
	var names []string
	for name := range obj.loaded.Maps() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		o.lastID++
		m := &objectMap{id: o.lastID, name: name, m: obj.loaded.Maps()[name], obj: obj}
		o.maps[m.id] = m
		obj.maps = append(obj.maps, m)
		if m.m.Spec().Kind == bpf.RingBuf {
			obj.rings = append(obj.rings, &objectRing{name: name, index: byte(len(obj.rings)), m: m.m})
		}
	}
	if obj.script != nil {
		obj.loaded.Emit(func(string) program.Emitter { return &obj.script.records })
		return
	}
	obj.assignRings()
	obj.loaded.Emit(func(name string) program.Emitter {
		i := slices.IndexFunc(obj.rings, func(r *objectRing) bool { return r.name == name })
		return obj.rings[i]
	})
}

// usesMap reports whether a probe's program, from an object, uses a map.
func (a *Probe) usesMap(m *bpf.Map) bool {
	return a.runs.(*objectProgram).prog.Uses(m)
}

// assignRings assigns each ring to a remaining probe. Callers hold objects.mu.
func (obj *Object) assignRings() {
	for _, r := range obj.rings {
		i := slices.IndexFunc(obj.probes, func(a *Probe) bool { return a.usesMap(r.m) })
		if i < 0 {
			r.owner.Store(nil)
		} else {
			r.owner.Store(obj.probes[i])
		}
	}
}

// leave records that probes have been unregistered. An object is removed with its
// last probe.
func (o *objects) leave(as []*Probe) {
	for _, obj := range o.dropProbes(as) {
		// With the last records of its probes.
		obj.giveBack()
	}
}

// dropProbes drops probes, and the objects without other probes, which it returns.
func (o *objects) dropProbes(as []*Probe) (objs []*Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	going, of := make(map[*Probe]bool, len(as)), map[*Object]bool{}
	for _, a := range as {
		going[a] = true
		obj := a.object
		if obj == nil || of[obj] {
			continue
		}
		of[obj] = true
		objs = append(objs, obj)
	}
	return slices.DeleteFunc(objs, func(obj *Object) (stays bool) {
		before := len(obj.probes)
		obj.probes = slices.DeleteFunc(obj.probes, func(a *Probe) bool { return going[a] })
		if len(obj.probes) == before {
			return true // they are gone already, or were never registered
		}
		obj.assignRings()
		if len(obj.probes) > 0 || obj.script != nil {
			return true
		}
		o.forget(obj)
		return false
	})
}

// forget removes the maps of an object from the list. Callers hold mu.
func (o *objects) forget(obj *Object) {
	for _, m := range obj.maps {
		delete(o.maps, m.id)
	}
}

// end removes the object of a script, whose probes are gone.
func (o *objects) end(obj *Object) {
	o.mu.Lock()
	o.forget(obj)
	o.mu.Unlock()
	obj.giveBack()
}

// giveBack ends the object, after all reads of its maps.
func (obj *Object) giveBack() {
	obj.use.Lock()
	defer obj.use.Unlock()
	obj.ended = true
	obj.loaded.Close()
}

// LockMaps keeps the object's maps until UnlockMaps. It reports false, and holds nothing, if the object has ended.
func (obj *Object) LockMaps() bool {
	obj.use.RLock()
	if obj.ended {
		obj.use.RUnlock()
		return false
	}
	return true
}

// UnlockMaps ends LockMaps.
func (obj *Object) UnlockMaps() { obj.use.RUnlock() }

// sortedMaps returns the maps by number. Callers hold mu.
func (o *objects) sortedMaps() []*objectMap {
	var ms []*objectMap
	for _, m := range o.maps {
		ms = append(ms, m)
	}
	slices.SortFunc(ms, func(a, b *objectMap) int { return cmp.Compare(a.id, b.id) })
	return ms
}

// find returns the map for a client's name: by number or by name. Callers hold mu.
func (o *objects) find(name string) (*objectMap, error) {
	if id, err := strconv.ParseUint(name, 10, 64); err == nil && o.maps[id] != nil {
		return o.maps[id], nil
	}
	var found []*objectMap
	for _, m := range o.sortedMaps() {
		if m.name == name {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		return nil, &Error{Code: CodeMapNotFound, Errno: syscall.ENOENT, Text: fmt.Sprintf("no map %q: no attached program has it", name)}
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, m := range found {
		ids = append(ids, strconv.FormatUint(m.id, 10))
	}
	return nil, &Error{
		Code: CodeAmbiguousName, Errno: syscall.EADDRNOTAVAIL, Text: fmt.Sprintf("%d maps are called %q", len(found), name),
		Detail: "say which by number: " + strings.Join(ids, ", "),
	}
}

// MapInfo describes a map.
type MapInfo struct {
	ID     uint64
	Name   string
	Spec   bpf.MapSpec
	Bytes  int // of host memory
	PerCPU bool
	Shared bool     // it is in memory shared with the guest
	Hist   bool     // it has the form of a histogram: a counter of 8 bytes for each bucket
	Probes []string // names of the attached probes that use it
}

// Maps describes all maps, by number.
func (st *Session) Maps() []MapInfo {
	o := &st.objects
	o.mu.Lock()
	defer o.mu.Unlock()
	out := []MapInfo{}
	for _, m := range o.sortedMaps() {
		out = append(out, m.info())
	}
	return out
}

// ReadMap calls f with the map of that number or name. The map stays until f returns; f must not detach probes. Programs change a map at any time.
func (st *Session) ReadMap(name string, f func(MapInfo, *bpf.Map) error) error {
	if st.closed.Load() {
		return ErrClosed
	}
	m, info, err := st.objects.lockMap(name)
	if err != nil {
		return err
	}
	defer m.obj.use.RUnlock()
	return f(info, m.m)
}

// ObjectMaps are the maps of an object file.
type ObjectMaps struct {
	Maps   []uint64 // numbers
	Probes []string // names of the probes that run its programs
}

// ObjectFiles returns the attached object files that have maps.
func (st *Session) ObjectFiles() (out []ObjectMaps) {
	o := &st.objects
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := map[*Object]bool{}
	for _, m := range o.sortedMaps() {
		if m.obj.script != nil || seen[m.obj] {
			continue
		}
		seen[m.obj] = true
		var d ObjectMaps
		for _, m := range m.obj.maps {
			d.Maps = append(d.Maps, m.id)
		}
		for _, a := range m.obj.probes {
			d.Probes = append(d.Probes, a.def.Name())
		}
		out = append(out, d)
	}
	return out
}

// lockMap finds a map and describes it. Its object stays until obj.use is released.
func (o *objects) lockMap(name string) (*objectMap, MapInfo, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m, err := o.find(name)
	if err != nil {
		return nil, MapInfo{}, err
	}
	m.obj.use.RLock() // maps of a listed object are never freed
	return m, m.info(), nil
}

// info describes a map. Callers hold objects.mu.
func (m *objectMap) info() MapInfo {
	i := MapInfo{
		ID: m.id, Name: m.name, Spec: m.m.Spec(), Bytes: m.m.Size(), PerCPU: m.m.PerCPU(), Shared: m.obj.loaded.Shared(m.m), Hist: isHist(m.m), Probes: []string{},
	}
	for _, a := range m.obj.probes {
		if a.usesMap(m.m) {
			i.Probes = append(i.Probes, a.def.Name())
		}
	}
	return i
}

// isHist reports whether a map has the form of a histogram: a counter of 8
// bytes for each of its buckets.
func isHist(m *bpf.Map) bool {
	s := m.Spec()
	return (s.Kind == bpf.Array || s.Kind == bpf.PerCPUArray) && s.ValueSize == 8 && s.MaxEntries == bpf.HistBuckets
}

// RingRecord is a record that a program has written into a ring.
type RingRecord struct {
	Map  string // name of the ring
	Spec bpf.MapSpec
	Data []byte // valid as long as the event
}

// RingRecordOf returns the record of an event of an object's program; ok is false for
// other events, and for records that a hostile guest has corrupted.
func RingRecordOf(ev event.Event) (r RingRecord, ok bool) {
	a, data := ProbeOf(ev), ev.Payload()
	if a.object == nil || len(data) == 0 || int(data[0]) >= len(a.object.rings) {
		return r, false
	}
	ring := a.object.rings[data[0]]
	return RingRecord{Map: ring.name, Spec: ring.m.Spec(), Data: data[1:]}, true
}
