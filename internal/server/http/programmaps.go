package http

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// object is a loaded object file. It lives as long as one of its probes.
type object struct {
	*program.Object
	maps   []*attachedMap // by name
	rings  []*objectRing
	probes []*attached    // that are registered; objects.mu guards it
	script *runningScript // that it is of, which closes it; nil: it is of a file

	request *api.AttachProgram // that has brought it, if it is of a file

	use   sync.RWMutex // held for reading while a map is read, for writing to give them back
	ended bool         // they were given back; use guards it
}

// attachedMap is a map that clients see.
type attachedMap struct {
	id   uint64
	name string
	m    *bpf.Map
	obj  *object
}

// objectRing is a ring of an object as a source of events: they count as those
// of the first of its probes that uses it.
type objectRing struct {
	name  string
	index byte
	m     *bpf.Map
	owner atomic.Pointer[attached]
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
	mu     sync.Mutex // guards what follows, never for long
	maps   map[uint64]*attachedMap
	lastID uint64
}

// add makes the maps of an object known, and its rings sources of events.
func (o *objects) add(obj *object, as []*attached) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj.probes = slices.Clone(as)
	if o.maps == nil {
		o.maps = map[uint64]*attachedMap{}
	}
	var names []string
	for name := range obj.Maps() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		o.lastID++
		m := &attachedMap{id: o.lastID, name: name, m: obj.Maps()[name], obj: obj}
		o.maps[m.id] = m
		obj.maps = append(obj.maps, m)
		if m.m.Spec().Kind == bpf.RingBuf {
			obj.rings = append(obj.rings, &objectRing{name: name, index: byte(len(obj.rings)), m: m.m})
		}
	}
	if obj.script != nil {
		obj.Emit(func(string) program.Emitter { return &obj.script.records })
		return
	}
	obj.own()
	obj.Emit(func(name string) program.Emitter {
		i := slices.IndexFunc(obj.rings, func(r *objectRing) bool { return r.name == name })
		return obj.rings[i]
	})
}

// own gives each ring to a probe that is still there. Callers hold objects.mu.
func (obj *object) own() {
	for _, r := range obj.rings {
		i := slices.IndexFunc(obj.probes, func(a *attached) bool { return a.prog.Uses(r.m) })
		if i < 0 {
			r.owner.Store(nil)
		} else {
			r.owner.Store(obj.probes[i])
		}
	}
}

// leave notes that probes have been unregistered. The last one of an object
// takes it away.
func (o *objects) leave(as []*attached) {
	for _, obj := range o.left(as) {
		// With the last records of its probes.
		obj.giveBack()
	}
}

// left forgets probes, and the objects that have no other, which it returns.
func (o *objects) left(as []*attached) (objs []*object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range as {
		obj := a.object
		if obj == nil || !slices.Contains(obj.probes, a) {
			continue
		}
		if len(obj.probes) > 1 {
			obj.probes = slices.DeleteFunc(obj.probes, func(b *attached) bool { return a == b })
			obj.own()
			continue
		}
		obj.probes = nil
		if obj.script == nil {
			o.forget(obj)
			objs = append(objs, obj)
		}
	}
	return objs
}

// forget makes the maps of an object unknown. Callers hold mu.
func (o *objects) forget(obj *object) {
	for _, m := range obj.maps {
		delete(o.maps, m.id)
	}
}

// end takes the object of a script away, whose probes are gone.
func (o *objects) end(obj *object) {
	o.mu.Lock()
	o.forget(obj)
	o.mu.Unlock()
	obj.giveBack()
}

// giveBack ends the object, behind those who read its maps.
func (obj *object) giveBack() {
	obj.use.Lock()
	defer obj.use.Unlock()
	obj.ended = true
	obj.Close()
}

// hold keeps the object from being given back until use.RUnlock, if that has not been done yet.
func (obj *object) hold() bool {
	obj.use.RLock()
	if obj.ended {
		obj.use.RUnlock()
		return false
	}
	return true
}

// sortedMaps returns the maps by number. Callers hold mu.
func (o *objects) sortedMaps() []*attachedMap {
	var ms []*attachedMap
	for _, m := range o.maps {
		ms = append(ms, m)
	}
	slices.SortFunc(ms, func(a, b *attachedMap) int { return cmp.Compare(a.id, b.id) })
	return ms
}

// find returns the map that a client calls name: by number or by name. Callers hold
// mu.
func (o *objects) find(name string) (*attachedMap, error) {
	if id, err := strconv.ParseUint(name, 10, 64); err == nil && o.maps[id] != nil {
		return o.maps[id], nil
	}
	var found []*attachedMap
	for _, m := range o.sortedMaps() {
		if m.name == name {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		return nil, &api.Error{Code: api.CodeMapNotFound, Errno: "ENOENT", Message: fmt.Sprintf("no map %q: no attached program has it", name), Detail: "'guestprobe map list' lists those there are"}
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, m := range found {
		ids = append(ids, strconv.FormatUint(m.id, 10))
	}
	return nil, &api.Error{
		Code: api.CodeAmbiguousName, Errno: "EADDRNOTAVAIL", Message: fmt.Sprintf("%d maps are called %q", len(found), name),
		Detail: "say which by number: " + strings.Join(ids, ", "),
	}
}

// open finds a map and describes it. Its object stays until obj.use is given back.
func (o *objects) open(name string) (*attachedMap, api.MapInfo, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m, err := o.find(name)
	if err != nil {
		return nil, api.MapInfo{}, err
	}
	m.obj.use.RLock() // nobody gives back the maps of an object that is still listed
	return m, m.wire(), nil
}

// wire describes a map. Callers hold objects.mu.
func (m *attachedMap) wire() api.MapInfo {
	s := m.m.Spec()
	i := api.MapInfo{
		ID: m.id, Name: m.name, Kind: s.Kind.String(), KeySize: int(s.KeySize), ValueSize: int(s.ValueSize), Entries: int(s.MaxEntries),
		Bytes: m.m.Size(), PerCPU: m.m.PerCPU(), ReadOnly: s.ReadOnly, Shared: m.obj.Shared(m.m), Hist: isHist(m.m), Probes: []string{},
	}
	for _, a := range m.obj.probes {
		if a.prog.Uses(m.m) {
			i.Probes = append(i.Probes, a.kprobe.Name)
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

func (s *server) getMaps(w http.ResponseWriter, r *http.Request) error {
	out := api.MapList{Maps: []api.MapInfo{}}
	o := &s.probes.objects
	o.mu.Lock()
	for _, m := range o.sortedMaps() {
		out.Maps = append(out.Maps, m.wire())
	}
	o.mu.Unlock()
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (s *server) getMap(w http.ResponseWriter, r *http.Request) error {
	d, err := s.probes.dumpMap(r.PathValue("map"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// dumpMap copies what is in a map. The object cannot go away meanwhile.
func (st *store) dumpMap(name string) (api.MapDump, error) {
	if st.closed.Load() {
		return api.MapDump{}, errClosing
	}
	m, info, err := st.objects.open(name)
	if err != nil {
		return api.MapDump{}, err
	}
	defer m.obj.use.RUnlock()
	d := api.MapDump{MapInfo: info}
	if m.m.Spec().Kind == bpf.RingBuf {
		s := m.m.RingStats()
		d.Ring = &api.MapRing{Read: s.Read, Lost: s.Lost, Discarded: s.Discarded, Corrupted: s.Corrupted, Pending: s.Pending}
		return d, nil
	}
	d.Values = []api.MapEntry{}
	s, names := m.m.Spec(), newNamer(st.guest)
	m.m.Each(func(key []byte, vals [][]byte) bool {
		size := len(key) + len(vals)*len(vals[0])
		if s.Kind == bpf.StackTrace {
			size *= 32 // with the names of addresses
		}
		if len(d.Values) == api.MaxMapEntries || dumpSize(&d, size) > maxDump {
			d.Truncated = true
			return false
		}
		e := api.MapEntry{Key: hex.EncodeToString(key), KeyData: s.KeyType.JSON(key)}
		for _, v := range vals {
			e.Values = append(e.Values, hex.EncodeToString(v))
			if data := s.ValueType.JSON(v); data != nil {
				e.Data = append(e.Data, data)
			}
		}
		if s.Kind == bpf.StackTrace {
			e.Stack = names.frames(addresses(vals[0]), true)
		}
		d.Values = append(d.Values, e)
		return true
	})
	if d.Hist {
		if h, err := m.m.Hist(); err == nil {
			d.Buckets = []api.MapBucket{}
			lo, hi, ok := h.Range()
			for i := lo; ok && i <= hi; i++ {
				a, b := bpf.HistBounds(i)
				d.Buckets = append(d.Buckets, api.MapBucket{Low: api.Hex(a), High: api.Hex(b), Count: h[i]})
			}
		}
	}
	return d, nil
}

// addresses are those of a stack: 8 bytes each, zeros behind the last.
func addresses(stack []byte) (pcs []guest.GVA) {
	for ; len(stack) >= 8; stack = stack[8:] {
		pc := guest.GVA(binary.LittleEndian.Uint64(stack))
		if pc == 0 {
			break
		}
		pcs = append(pcs, pc)
	}
	return pcs
}

// maxDump bounds the bytes of keys and values in one dump.
const maxDump = 16 << 20

// dumpSize returns the bytes that a dump has with one more entry of n.
func dumpSize(d *api.MapDump, n int) int { return (len(d.Values) + 1) * n }
