package program

import (
	"errors"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/evbpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// defRingSize is the size of the ring that all definitions write into, in
// bytes.
const defRingSize = 4 << 20

// defRing is what the programs of all definitions at one privilege share. It is
// made when the first one is attached.
type defRing struct {
	some    sync.Mutex // held while definitions come and go; taken before mu
	drained *ring

	mu   sync.Mutex
	ring *bpf.Map
	gate *bpf.Map
	open bool
	last uint32
	to   map[uint32]*Definition
	err  error
}

// Definition is a probe definition that runs in the guest.
type Definition struct {
	rt     *Runtime
	ring   *defRing
	tag    uint32
	emit   Emitter
	state  *bpf.Map
	blocks *blocks
	counts []evbpf.Counts // as of the last pass
	mu     sync.Mutex     // guards counts
}

// Define makes the program of a definition and sets k.Stage, for a kprobe that
// is not registered yet and will be at addr; user says that this is code of CPL3. Records that it makes in the guest go
// to emit. What k.Pre and k.Filter do on the host stays as it is. The error is
// the reason why it runs on the host alone.
func (rt *Runtime) Define(k *probe.Kprobe, addr guest.GVA, user bool, f *event.Fetcher, filter *event.Filter, emit Emitter) (*Definition, error) {
	d, err := rt.define(addr, user, f, filter, emit)
	if err == nil {
		k.Stage = d.blocks.probe(d.filtered)
	}
	return d, err
}

// DefineReturn is Define for an r definition, whose Entry and Return stay on the
// host. There it keeps more bytes for an activation than Source.EntrySize, and
// what its filter ends is in Definition.Rejected.
func (rt *Runtime) DefineReturn(k *probe.Kretprobe, addr guest.GVA, user bool, f *event.Fetcher, filter *event.Filter, emit Emitter) (*Definition, error) {
	d, err := rt.define(addr, user, f, filter, emit)
	if err == nil {
		k.DataSize = max(k.DataSize, bpf.EntrySize)
		plan := f.Plan()
		k.FromGuest = func(data []byte) { evbpf.EntryData(&plan, data) }
		k.ReturnStage, k.Stage = d.blocks.probe(d.filtered), d.blocks.entry()
	}
	return d, err
}

// Rejected returns how many records of an r definition its filter has ended in
// the guest, as that says.
func (d *Definition) Rejected() (n uint64) {
	d.blocks.mu.Lock()
	defer d.blocks.mu.Unlock()
	for i := range d.blocks.cpus {
		n += d.blocks.read(i).filtered
	}
	return n
}

// filtered returns how many runs on a vCPU the filter has ended.
func (d *Definition) filtered(cpu int) uint64 {
	if c, err := evbpf.ReadCounts(d.state); err == nil {
		return c[cpu].Filtered
	}
	return 0
}

func (rt *Runtime) define(addr guest.GVA, user bool, f *event.Fetcher, filter *event.Filter, emit Emitter) (*Definition, error) {
	u, err := evbpf.New(f, filter)
	if err != nil {
		var why *evbpf.HostError
		if errors.As(err, &why) {
			return nil, errors.New(why.Why)
		}
		return nil, err
	}
	if err := rt.tryDefine(u, addr); err != nil {
		return nil, err
	}
	all := &rt.defs[guest.Level(user)]
	ring, gate, err := all.get(rt, user)
	if err != nil {
		return nil, err
	}
	d := &Definition{rt: rt, ring: all, emit: emit, counts: make([]evbpf.Counts, rt.cfg.CPUs)}
	if d.state, err = bpf.NewMap(u.State(), rt.cfg.CPUs, rt.arena(user)); err != nil {
		return nil, err
	}
	d.tag = all.add(d)
	p, err := u.Program(addr, d.tag, evbpf.Maps{State: d.state, Ring: ring, Gate: gate})
	if err == nil {
		d.blocks, err = rt.stage(p, addr, user, nil)
	}
	if err != nil {
		all.drop(d)
		d.state.Close()
		return nil, err
	}
	return d, nil
}

// tryDefine finds out, without taking memory of the guest, whether the program
// can run there.
func (rt *Runtime) tryDefine(u *evbpf.Unit, addr guest.GVA) error {
	if u.MaxRecord() > defRingSize/2-64 {
		return errors.New("its records are too long for the ring")
	}
	mem := &planned{}
	var m evbpf.Maps
	for _, x := range []struct {
		to   **bpf.Map
		spec bpf.MapSpec
	}{
		{&m.State, u.State()}, {&m.Gate, evbpf.GateSpec}, {&m.Ring, bpf.MapSpec{Name: "records", Kind: bpf.RingBuf, MaxEntries: bpf.MinRingSize}},
	} {
		var err error
		if *x.to, err = bpf.NewMap(x.spec, rt.cfg.CPUs, mem); err != nil {
			return err
		}
		defer (*x.to).Close()
	}
	p, err := u.Program(addr, 0, m)
	if err != nil {
		return err
	}
	return rt.where(p)
}

// get returns the ring and the gate, and makes them where there are none.
func (r *defRing) get(rt *Runtime, user bool) (records, gate *bpf.Map, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring == nil && r.err == nil {
		r.err = r.make(rt, user)
	}
	return r.ring, r.gate, r.err
}

func (r *defRing) make(rt *Runtime, user bool) (err error) {
	if r.gate, err = bpf.NewMap(evbpf.GateSpec, rt.cfg.CPUs, rt.arena(user)); err != nil {
		return err
	}
	if r.ring, err = bpf.NewMap(bpf.MapSpec{Name: "records", Kind: bpf.RingBuf, MaxEntries: defRingSize}, rt.cfg.CPUs, rt.arena(user)); err != nil {
		return err
	}
	r.to = map[uint32]*Definition{}
	r.setGate()
	return nil
}

// add makes a definition known; with the first one the ring is drained. The
// drainer is never called with mu held, because it takes mu with its own lock
// held.
func (r *defRing) add(d *Definition) uint32 {
	r.some.Lock()
	defer r.some.Unlock()
	r.mu.Lock()
	first := len(r.to) == 0
	for r.last++; r.to[r.last] != nil; r.last++ {
	}
	tag := r.last
	r.to[tag] = d
	r.mu.Unlock()
	if first {
		r.drained = &ring{m: r.ring, to: r.record, after: r.lost, guest: true}
		d.rt.drain.add(r.drained)
	}
	return tag
}

// drop forgets a definition, behind its last records.
func (r *defRing) drop(d *Definition) {
	r.some.Lock()
	defer r.some.Unlock()
	r.mu.Lock()
	_, known := r.to[d.tag]
	delete(r.to, d.tag)
	last := known && len(r.to) == 0
	r.mu.Unlock()
	if last {
		d.rt.drain.remove(r.drained)
	}
}

// record hands on one record; those of a definition that is gone, and those
// that the guest made up, go nowhere.
func (r *defRing) record(rec bpf.Record) {
	p, ok := evbpf.ParseRecord(rec.Data)
	if !ok {
		return
	}
	r.mu.Lock()
	d := r.to[p.Tag]
	r.mu.Unlock()
	if d != nil {
		d.emit.Put(p.CPU, p.Time, p.Data)
	}
}

// lost counts what found no room in the ring, per definition.
func (r *defRing) lost() {
	r.mu.Lock()
	defs := make([]*Definition, 0, len(r.to))
	for _, d := range r.to {
		defs = append(defs, d)
	}
	r.mu.Unlock()
	for _, d := range defs {
		d.countLost()
	}
}

func (d *Definition) countLost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := evbpf.ReadCounts(d.state)
	if err != nil {
		return
	}
	for i, c := range now {
		if c.Lost > d.counts[i].Lost {
			d.emit.Lose(i, c.Lost-d.counts[i].Lost)
		}
		d.counts[i] = c
	}
}

// Want says whether anyone reads the records of definitions. Without a reader
// none are made.
func (rt *Runtime) Want(on bool) {
	for i := range rt.defs {
		r := &rt.defs[i]
		r.mu.Lock()
		r.open = on
		r.setGate()
		r.mu.Unlock()
	}
}

// setGate writes the gate, if there is one.
func (r *defRing) setGate() {
	if r.gate == nil || r.err != nil {
		return
	}
	v := make([]byte, 8)
	if r.open {
		v[0] = 1
	}
	// An array has its first key, whatever stands in its memory.
	_ = r.gate.Update(make([]byte, 4), [][]byte{v}, bpf.UpdateAny)
}

// reset is for the memory of a guest that begins anew.
func (r *defRing) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setGate()
	for _, d := range r.to {
		d.mu.Lock()
		clear(d.counts)
		d.mu.Unlock()
	}
}

// Stats returns what the guest says of the program's runs.
func (d *Definition) Stats() Stats { return d.blocks.stats() }

// Drop gives back what definitions take, behind their last records. Their probes
// must have been unregistered.
func (rt *Runtime) Drop(defs ...*Definition) {
	if len(defs) == 0 {
		return
	}
	rt.Flush()
	bs := make([]*blocks, len(defs))
	for i, d := range defs {
		d.ring.drop(d)
		bs[i] = d.blocks
	}
	for i, idle := range rt.retire(bs...) {
		if idle {
			defs[i].state.Close()
		}
	}
}
