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

// guestForm is a definition in the guest.
type guestForm struct {
	d      *Definition
	ring   *guestRing
	state  *bpf.Map // nil: its program needs none
	blocks *blocks

	mu   sync.Mutex
	lost []uint64 // by vCPU: losses that the recorder knows of
}

// ToGuest makes the form of d that runs in the guest, for a probe that is not
// registered yet and will be at addr; user says that this is code of CPL3. Of a
// definition of returns it is the return stage, and entry is what it needs at the
// function's entry. The error is the reason why it runs on the host alone.
func (d *Definition) ToGuest(addr guest.GVA, user bool) (stage, entry *probe.Stage, err error) {
	rt := d.rt
	if err := rt.where(d.main.prog); err != nil {
		return nil, nil, err
	}
	if d.code.MaxRecord() > guestRingSize/2-64 {
		return nil, nil, errors.New("its records are too long for the ring")
	}
	g := &guestForm{d: d, ring: &rt.defs[guest.Level(user)], lost: make([]uint64, rt.cfg.CPUs)}
	maps, err := g.ring.maps(rt, user)
	if err != nil {
		return nil, nil, err
	}
	if spec, ok := d.code.State(); ok {
		if g.state, err = bpf.NewMap(spec, rt.cfg.CPUs, rt.arena(user)); err != nil {
			return nil, nil, err
		}
		maps = append(maps, g.state)
	}
	p, err := d.main.prog.WithMaps(maps...)
	if err == nil {
		g.blocks, err = rt.stage(p, addr, user, nil)
	}
	if err != nil {
		g.close()
		return nil, nil, err
	}
	g.ring.add(rt, g)
	d.guest = g
	if p.Kind() == bpf.Kretprobe {
		return g.blocks.probe(false), g.blocks.entry(), nil
	}
	return g.blocks.probe(true), nil, nil
}

func (g *guestForm) close() {
	if g.state != nil {
		g.state.Close()
	}
}

// rejected returns how many runs the filter has ended.
func (g *guestForm) rejected() (n uint64) {
	for cpu := range g.lost {
		c := g.blocks.counts(cpu)
		n += c.answers[evbpf.Filtered]
	}
	return n
}

// countLost tells the recorder what has found no room in the ring.
func (g *guestForm) countLost() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for cpu, known := range g.lost {
		c := g.blocks.counts(cpu)
		if now := c.answers[evbpf.Lost]; now > known {
			g.d.to.Lose(cpu, now-known)
			g.lost[cpu] = now
		}
	}
}

// Drop gives back what definitions take, behind their last records. Their probes
// must have been unregistered.
func (rt *Runtime) Drop(ds ...*Definition) {
	var forms []*guestForm
	for _, d := range ds {
		if d.guest != nil {
			forms = append(forms, d.guest)
		}
	}
	defer func() {
		for _, d := range ds {
			d.drop()
		}
	}()
	if len(forms) == 0 {
		return
	}
	rt.Flush()
	bs := make([]*blocks, len(forms))
	for i, g := range forms {
		g.ring.drop(rt, g)
		bs[i] = g.blocks
	}
	for i, idle := range rt.retire(bs...) {
		if idle {
			forms[i].close()
		}
	}
}

// guestRingSize is the size of the ring that all definitions write into, in bytes.
const guestRingSize = 4 << 20

// guestRing is what the definitions in the guest at one privilege share. It is
// made when the first one comes.
type guestRing struct {
	some    sync.Mutex // held while definitions come and go; taken before mu
	drained *ring

	mu   sync.Mutex
	ring *bpf.Map
	gate *bpf.Map
	open bool
	to   map[uint32]*guestForm // by the mark of their records
	err  error
}

// maps returns the maps of a program (evbpf.Maps), but for its state.
func (r *guestRing) maps(rt *Runtime, user bool) ([]*bpf.Map, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring == nil && r.err == nil {
		r.err = r.make(rt, user)
	}
	return []*bpf.Map{r.ring, r.gate}, r.err
}

func (r *guestRing) make(rt *Runtime, user bool) (err error) {
	if r.gate, err = bpf.NewMap(evbpf.GateSpec, rt.cfg.CPUs, rt.arena(user)); err != nil {
		return err
	}
	if r.ring, err = bpf.NewMap(bpf.MapSpec{Name: "records", Kind: bpf.RingBuf, MaxEntries: guestRingSize}, rt.cfg.CPUs, rt.arena(user)); err != nil {
		return err
	}
	r.to = map[uint32]*guestForm{}
	setGate(r.gate, r.open)
	return nil
}

// add makes a definition known; with the first one the ring is drained. The
// drainer is never called with mu held, because it takes mu with its own lock
// held.
func (r *guestRing) add(rt *Runtime, g *guestForm) {
	r.some.Lock()
	defer r.some.Unlock()
	r.mu.Lock()
	first := len(r.to) == 0
	r.to[g.mark()] = g
	r.mu.Unlock()
	if first {
		r.drained = &ring{m: r.ring, to: r.record, after: r.lost, guest: true}
		rt.drain.add(r.drained)
	}
}

// mark is what stands in the records of g.
func (g *guestForm) mark() uint32 { return g.d.to.Mark(g.d.layout.Stage) }

// drop forgets a definition, behind its last records.
func (r *guestRing) drop(rt *Runtime, g *guestForm) {
	r.some.Lock()
	defer r.some.Unlock()
	r.mu.Lock()
	_, known := r.to[g.mark()]
	delete(r.to, g.mark())
	last := known && len(r.to) == 0
	r.mu.Unlock()
	if last {
		rt.drain.remove(r.drained)
	}
}

// record hands on one record; those of a definition that is gone, and those
// that the guest made up, go nowhere.
func (r *guestRing) record(rec bpf.Record) {
	mark, ok := event.MarkOf(rec.Data)
	if !ok {
		return
	}
	r.mu.Lock()
	g := r.to[mark]
	r.mu.Unlock()
	if g != nil {
		g.d.to.PutRecord(rec.CPU, rec.Data)
	}
}

// lost counts what found no room in the ring, per definition.
func (r *guestRing) lost() {
	r.mu.Lock()
	forms := make([]*guestForm, 0, len(r.to))
	for _, g := range r.to {
		forms = append(forms, g)
	}
	r.mu.Unlock()
	for _, g := range forms {
		g.countLost()
	}
}

// want opens or closes the gate, if there is one. Behind a reset it must be called
// again, as the gate is in the guest's memory.
func (r *guestRing) want(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = on
	if r.gate != nil && r.err == nil {
		setGate(r.gate, on)
	}
}
