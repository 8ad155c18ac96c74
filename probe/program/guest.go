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

	returns bool // it runs at returns, which the engine has counted
	at      int  // its index in guestRing.all; guarded by that one's mu

	mu    sync.Mutex
	cpus  []formCounts
	final bool // the counts are final: later records from the ring were counted as missed
}

// formCounts are the counts of a form on one vCPU.
type formCounts struct {
	drained uint64 // records that came out of the ring
	gone    uint64 // records that did not, and never will
	lost    uint64 // losses that the recorder was given
}

// CompileGuest makes the form of d that runs in the guest, for a probe that is not
// registered yet and will be at addr; user says that this is code of CPL3. For a
// definition of returns it is the return stage, and entry is the stage that it needs
// at the function's entry. The error is the reason why it runs only on the host.
func (d *Definition) CompileGuest(addr guest.GVA, user bool) (stage, entry *probe.Stage, err error) {
	rt := d.rt
	if err := rt.checkGuest(d.main.prog, user); err != nil {
		return nil, nil, err
	}
	if d.layout.OfModule {
		return nil, nil, errors.New("it reads by a name of a module, which is elsewhere when the module is loaded again")
	}
	if d.code.MaxRecord() > guestRingSize/2-64 {
		return nil, nil, errors.New("its records are too long for the ring")
	}
	if !d.code.InTime() {
		return nil, nil, errors.New("its reads of the guest's memory would take too long if they fail")
	}
	g := &guestForm{d: d, ring: &rt.defs[guest.Level(user)], cpus: make([]formCounts, rt.cfg.CPUs)}
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
		g.blocks, err = rt.stage(p, rt.compile(p, user, uint64(g.mark())), addr, user, false, nil)
	}
	if err != nil {
		g.close()
		return nil, nil, err
	}
	g.blocks.form, g.returns = g, p.Kind().AtReturn()
	g.ring.add(rt, g)
	d.guest = g
	if g.returns {
		return g.blocks.probe(false), g.blocks.entry(), nil
	}
	return g.blocks.probe(true), nil, nil
}

func (g *guestForm) close() {
	if g.state != nil {
		g.state.Close()
	}
}

// countAnswers returns how many runs have returned that answer.
func (g *guestForm) countAnswers(answer int) (n uint64) {
	for cpu := range g.cpus {
		c := g.blocks.counts(cpu)
		n += c.answers[answer]
	}
	return n
}

// countLost reports losses to the recorder: records that found no room in the ring,
// or never came out of it, and at returns also runs that did not happen.
func (g *guestForm) countLost() {
	for cpu := range g.cpus {
		c := g.blocks.counts(cpu)
		g.mu.Lock()
		k := &g.cpus[cpu]
		now := c.answers[evbpf.Lost] + k.gone
		if g.returns {
			now += c.missed
		}
		more := now - min(now, k.lost)
		k.lost += more
		g.mu.Unlock()
		if more > 0 {
			g.d.to.Lose(cpu, more)
		}
	}
}

// noteDrained records that a record of a vCPU has come out of the ring, and reports
// whether it counts: a run that continues after the end of its definition may still
// publish one.
func (g *guestForm) noteDrained(cpu int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cpu < len(g.cpus) { // otherwise the guest has invented the vCPU
		g.cpus[cpu].drained++
	}
	return !g.final
}

// settle finalizes the counts of a vCPU: recorded runs that have ended have recorded
// a hit, and running ones have not ended. It returns how many of the latter have
// published their record. All published records must have come out of the ring, and
// the guest must not run.
func (g *guestForm) settle(cpu int, recorded, running uint64) (published uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.final = true
	k := &g.cpus[cpu]
	if k.drained < recorded {
		k.gone += recorded - k.drained // records were overwritten
		k.drained = recorded
		return 0
	}
	return min(running, k.drained-recorded)
}

// reopen resets the counts for memory that was reset: records of its runs count.
func (g *guestForm) reopen() {
	g.mu.Lock()
	g.final = false
	g.mu.Unlock()
}

// Drop releases the resources of definitions after their last records, and finalizes
// their counts. Their probes must have been unregistered.
func (rt *Runtime) Drop(ds ...*Definition) {
	var bs []*blocks
	var forms []*guestForm
	for _, d := range ds {
		if d.guest != nil {
			bs, forms = append(bs, d.guest.blocks), append(forms, d.guest)
		}
	}
	if len(forms) > 0 {
		rt.Poll() // most of the records, while the guest runs
		rt.retire(bs, func() {
			for i := range rt.defs {
				rt.defs[i].flush(&rt.feed)
			}
		}, func(i int) { forms[i].close() })
		for _, g := range forms {
			g.countLost()
			g.ring.drop(rt, g)
		}
	}
	for _, d := range ds {
		d.drop()
	}
}

// guestRingSize is the size of the ring that all definitions write into, in bytes.
const guestRingSize = 4 << 20

// guestRing is the shared ring of the definitions in the guest at one privilege. It
// is made for the first one.
type guestRing struct {
	some    sync.Mutex // held while definitions are added and removed; taken before mu
	drained *ring

	mu   sync.Mutex
	ring *bpf.Map
	gate *bpf.Map
	now  evbpf.Gate
	to   map[uint32]*guestForm // by the mark of their records
	all  []*guestForm          // of to, in no particular order
	next int                   // in all: where the next countLost begins
	lost uint64                // of the ring, at the last countLost
	err  error
}

// maps returns the maps of a program (evbpf.Maps), without its state.
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
	setGate(r.gate, r.now)
	return nil
}

// add adds a definition; from the first one on the ring is drained. The feed is never
// called with mu held, because it takes mu with its own lock held.
func (r *guestRing) add(rt *Runtime, g *guestForm) {
	r.some.Lock()
	defer r.some.Unlock()
	r.mu.Lock()
	first := len(r.to) == 0
	r.to[g.mark()] = g
	g.at, r.all = len(r.all), append(r.all, g)
	r.mu.Unlock()
	if first {
		r.drained = &ring{m: r.ring, to: r.record, after: r.countLost, guest: true, timed: true}
		rt.startDraining(r.drained)
	}
}

// flush takes out all published records.
func (r *guestRing) flush(f *feed) {
	r.some.Lock()
	defer r.some.Unlock()
	if r.drained != nil {
		f.flush(r.drained)
	}
}

// mark is the mark in the records of g.
func (g *guestForm) mark() uint32 { return g.d.to.Mark(g.d.layout.Moment) }

// drop removes a definition, after its last records.
func (r *guestRing) drop(rt *Runtime, g *guestForm) {
	r.some.Lock()
	defer r.some.Unlock()
	r.mu.Lock()
	_, known := r.to[g.mark()]
	delete(r.to, g.mark())
	if end := len(r.all) - 1; known {
		r.all[g.at] = r.all[end]
		r.all[g.at].at = g.at
		r.all[end] = nil
		r.all = r.all[:end]
	}
	last := known && len(r.to) == 0
	r.mu.Unlock()
	if last {
		rt.feed.remove(r.drained)
	}
}

// record passes on one record; records of a definition that is gone, and those that
// the guest has invented, are dropped.
func (r *guestRing) record(rec bpf.Record) {
	mark, ok := event.MarkOf(rec.Data)
	if !ok {
		return
	}
	r.mu.Lock()
	g := r.to[mark]
	r.mu.Unlock()
	if g != nil && g.noteDrained(rec.CPU) {
		g.d.to.PutRecord(rec.CPU, rec.Data)
	}
}

// countedAtOnce is the number of definitions that one pass over the ring looks at if the ring has
// lost nothing. Passes are at most 16 ms apart, so of 10,000 definitions the guest's other losses are
// seen in less than a second; the end of a definition counts all of its own.
const countedAtOnce = 256

// countLost counts the records that found no room in the ring, per definition.
func (r *guestRing) countLost() {
	for _, g := range r.turn() {
		g.countLost()
	}
}

// turn returns the definitions whose losses are to be counted now: all of them only if the ring has
// lost records.
func (r *guestRing) turn() []*guestForm {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(countedAtOnce, len(r.all))
	if lost := r.ring.RingStats().Lost; lost != r.lost {
		r.lost, n = lost, len(r.all)
	}
	forms := make([]*guestForm, 0, n)
	for range n {
		r.next = (r.next + 1) % len(r.all)
		forms = append(forms, r.all[r.next])
	}
	return forms
}

// want sets the gate, if there is one. It must be called again after a reset, because
// the gate is in the guest's memory.
func (r *guestRing) want(to evbpf.Gate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = to
	if r.gate != nil && r.err == nil {
		setGate(r.gate, to)
	}
}
