package session

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
)

// placed is the engine's form of a probe. The kind of a definition determines the
// type: see place. A change of the filter makes a new one.
type placed interface {
	addr() guest.GVA // 0 while it is not known
	disabled(e *probe.Engine) bool
	counts(e *probe.Engine) (total probe.Stats, cpus []probe.Stats)

	// check rejects probes that the engine would reject.
	check(e *probe.Engine) error

	// newestFirst reports whether, of several at one place, the one registered last
	// runs first.
	newestFirst() bool

	// addTo adds it to a batch, with the index of its Probe there.
	addTo(b *batch, i int)

	// handle makes a definition's program its handler.
	handle(at *attacher, a *Probe, d *program.Definition) error
	// run makes an object's program its handler.
	run(at *attacher, a *Probe, p *program.Program) error

	// describe describes the Probe; outline only its changing fields. Callers hold
	// the Probe's mu, or changes.
	describe(at *attacher, a *Probe) Info
	outline(at *attacher, a *Probe) Info
}

// place makes the engine's form of a.
func (at *attacher) place(a *Probe) {
	p := a.def.Place
	k := &probe.Kprobe{Name: a.def.Name(), Symbol: p.FullName(), Offset: p.Offset, Addr: p.Addr, Disabled: a.spec.Disabled, Space: a.spec.Space}
	switch {
	case a.def.Kind == event.KindWatch:
		a.on = &placedWatch{&probe.Watch{
			Name: k.Name, Symbol: k.Symbol, Offset: k.Offset, Addr: k.Addr, Disabled: k.Disabled,
			Len: a.def.WatchLen(at.guest.Image()), Access: a.def.Access, Emulate: a.spec.Emulate,
		}}
	case a.def.Kind == event.KindReturn:
		r := &probe.Kretprobe{Kprobe: *k, MaxActive: a.def.MaxActive}
		a.on = &placedReturn{placedKprobe{r, &r.Kprobe}, r}
	case a.spec.isJprobe():
		j := newJprobe(*k, *a.spec)
		a.on = &placedJprobe{placedKprobe{j, &j.Kprobe}, j}
	default:
		a.on = &placedKprobe{k, k}
	}
}

// placedKprobe is a probe at an instruction.
type placedKprobe struct {
	probe  probe.Probe
	kprobe *probe.Kprobe // of probe
}

func (p *placedKprobe) addr() guest.GVA             { return p.kprobe.Addr }
func (p *placedKprobe) disabled(*probe.Engine) bool { return p.kprobe.Disabled }
func (p *placedKprobe) newestFirst() bool           { return true }

func (p *placedKprobe) check(e *probe.Engine) error {
	_, err := e.Check(p.probe)
	return err
}

func (p *placedKprobe) counts(e *probe.Engine) (total probe.Stats, cpus []probe.Stats) {
	total, cpus, _ = e.Stats(p.kprobe)
	return total, cpus
}

func (p *placedKprobe) addTo(b *batch, i int) {
	b.probes, b.kprobes, b.order = append(b.probes, p.probe), append(b.kprobes, p.kprobe), append(b.order, i)
}

func (p *placedKprobe) handle(at *attacher, a *Probe, d *program.Definition) error {
	p.kprobe.Filter = d.Hit
	if err := at.override(a, p.kprobe); err != nil {
		return err
	}
	if a.spec.Post {
		var err error
		if p.kprobe.Post, err = d.Post(); err != nil {
			return err
		}
	}
	if a.spec.Stop != "" {
		stop, err := at.setStops(a)
		if err != nil {
			return err
		}
		p.kprobe.Pre = func(c *probe.Context) int { stop(c); return 0 }
	}
	return at.handleInGuest(a, p.kprobe, d, "", func(stage, _ *probe.Stage) { p.kprobe.Stage = stage })
}

// handleInGuest makes a definition's program run in the guest, if possible; exit is
// why its kind takes an exit, or "".
func (at *attacher) handleInGuest(a *Probe, k *probe.Kprobe, d *program.Definition, exit string, give func(stage, entry *probe.Stage)) error {
	addr, user, _, err := at.engine.Resolve(k)
	switch {
	case err != nil: // registration reports the reason
		return nil
	case a.spec.OnHost:
		a.onHost = "it was asked for"
	case a.injector != nil:
		a.onHost = "its function returns without running, which only the engine may do"
	case exit != "":
		a.onHost = exit
	case a.spec.Stop != "":
		a.onHost = "it stops the vCPU, which takes an exit"
	case a.spec.Post:
		a.onHost = "its second record takes an exit"
	case a.spec.Space != 0:
		a.onHost = "it is for one address space"
	default:
		a.onHost = at.noStageReason(user)
	}
	if a.onHost != "" {
		return nil
	}
	stage, entry, err := d.CompileGuest(addr, user)
	if err != nil {
		a.onHost = err.Error()
		return nil
	}
	give(stage, entry)
	return nil
}

func (p *placedKprobe) run(at *attacher, a *Probe, prog *program.Program) error {
	addr, user, entry, _ := at.engine.Resolve(p.kprobe) // registration reports a place that does not exist
	refuse := at.noStageReason(user)
	if name, ok := prog.Event(); ok {
		if err := at.recorders.attach(a, prog, p.kprobe, name); err != nil {
			return err
		}
		refuse = "its event's record is made by the host"
	}
	prog.Attach(p.kprobe, addr, user, entry, refuse)
	return nil
}

func (p *placedKprobe) describe(at *attacher, a *Probe) Info {
	info, _ := at.engine.Info(p.kprobe)
	i := at.outlineWith(a, info, at.stats(a))
	i.Spec, i.Stay, i.Label = *a.spec, a.stay, a.Label()
	i.Spec.Def = a.def.String()
	i.Program, i.OnHost = a.runs.describe(), a.hostReason(info)
	i.Override, i.Injected = a.injector.state()
	if sym, ok := at.guest.Image().Find(info.Addr); ok {
		i.Size = sym.Size
	}
	if img, ok := at.guest.Image().(interface{ Parts(name string) []string }); ok && (i.Offset == 0 || i.Offset == uint64(len(x86.Endbr64))) {
		i.Parts = img.Parts(i.Symbol)
	}
	return i
}

func (p *placedKprobe) outline(at *attacher, a *Probe) Info {
	info, _ := at.engine.Info(p.kprobe)
	total := info.Stats
	if a.past != nil {
		total.Add(a.past.total)
	}
	return at.outlineWith(a, info, a.sums(total))
}

// placedReturn is a return probe.
type placedReturn struct {
	placedKprobe
	r *probe.Kretprobe
}

func (p *placedReturn) newestFirst() bool { return false }

func (p *placedReturn) handle(at *attacher, a *Probe, d *program.Definition) error {
	p.r.Entry, p.r.Return, p.r.DataSize = d.Entry, d.Return, d.EntrySize()
	if a.spec.Stop != "" {
		stop, err := at.setStops(a)
		if err != nil {
			return err
		}
		p.r.Return = ifPassed(d.Hit, stop)
	}
	return at.handleInGuest(a, p.kprobe, d, "", func(stage, entry *probe.Stage) { p.r.ReturnStage, p.r.Stage = stage, entry })
}

func (p *placedReturn) run(at *attacher, _ *Probe, prog *program.Program) error {
	addr, user, _, _ := at.engine.Resolve(p.kprobe)
	prog.AttachReturn(p.r, addr, user, at.noStageReason(user))
	return nil
}

// placedJprobe is a jprobe. Its records are from the function's entry, before the mirror.
type placedJprobe struct {
	placedKprobe
	j *probe.Jprobe
}

// newJprobe makes the requested jprobe.
func newJprobe(k probe.Kprobe, spec Spec) *probe.Jprobe {
	j := &probe.Jprobe{
		Kprobe: k, Mirror: spec.Mirror, End: spec.MirrorEnd, StackSize: spec.MirrorStack,
		Entry: func(*probe.Context, probe.Args) {}, // Filter has recorded them
	}
	if j.StackSize == 0 {
		j.StackSize = probe.DefaultJprobeStack
	}
	j.StackSize = (j.StackSize + 7) &^ 7 // as the engine does, for the listing
	return j
}

func (p *placedJprobe) handle(at *attacher, a *Probe, d *program.Definition) error {
	p.kprobe.Filter = d.Hit
	if a.spec.Stop != "" {
		stop, err := at.setStops(a)
		if err != nil {
			return err
		}
		p.j.Entry = func(c *probe.Context, _ probe.Args) { stop(c) } // the filter has run
	}
	return at.handleInGuest(a, p.kprobe, d, "a jprobe takes an exit", nil)
}

func (p *placedJprobe) describe(at *attacher, a *Probe) Info {
	i := p.placedKprobe.describe(at, a)
	if p.j.Mirror != "" {
		i.MirrorStack = p.j.StackSize
	}
	return i
}

// placedWatch is a watch.
type placedWatch struct{ watch *probe.Watch }

func (p *placedWatch) addr() guest.GVA { return p.watch.Addr }

func (p *placedWatch) check(e *probe.Engine) error { return e.CheckWatch(p.watch) }

func (p *placedWatch) disabled(e *probe.Engine) bool {
	info, _ := e.WatchInfo(p.watch)
	return info.Disabled
}

func (p *placedWatch) counts(e *probe.Engine) (total probe.Stats, cpus []probe.Stats) {
	info, _ := e.WatchInfo(p.watch)
	return info.Stats, e.WatchStats(p.watch)
}

// newestFirst is true for watches by a breakpoint: watches in debug registers run in
// the order of registration.
func (p *placedWatch) newestFirst() bool {
	return p.watch.Access == probe.AccessExec && p.watch.Emulate
}

func (p *placedWatch) addTo(b *batch, i int) {
	b.watches, b.watchOrder = append(b.watches, p.watch), append(b.watchOrder, i)
}

func (p *placedWatch) handle(at *attacher, a *Probe, d *program.Definition) error {
	p.watch.Handler = d.Access
	if a.spec.Stop == "" {
		return nil
	}
	stop, err := at.setStops(a)
	if err == nil {
		p.watch.Handler = ifPassed(d.Hit, stop)
	}
	return err
}

func (p *placedWatch) run(_ *attacher, _ *Probe, prog *program.Program) error {
	prog.AttachWatch(p.watch)
	return nil
}

func (p *placedWatch) describe(at *attacher, a *Probe) Info {
	info, _ := at.engine.WatchInfo(p.watch)
	i := Info{
		Probe: a, ID: a.id, Name: a.def.Name(), Kind: 'w', Spec: *a.spec, Label: a.Label(), Stay: a.stay,
		Symbol: info.Symbol, Offset: info.Offset, Addr: info.Addr, Enabled: !info.Disabled, Armed: info.Armed, Gone: info.Gone, Plan: info.By,
		Watch: info, Stats: at.stats(a),
	}
	i.Spec.Def = a.def.String()
	if i.Program = a.runs.describe(); i.Program != nil {
		i.OnHost = a.onHost
	}
	if sym, ok := at.guest.Image().Find(info.Addr); ok {
		i.Size = sym.Size
	}
	return i
}

func (p *placedWatch) outline(at *attacher, a *Probe) Info { return p.describe(at, a) }

// batch is a list of probes, split by the engine's types.
type batch struct {
	probes  []probe.Probe
	kprobes []*probe.Kprobe // of probes
	order   []int           // each one's index in the list

	watches    []*probe.Watch
	watchOrder []int
}

// batchOf returns the batch of the probes that choose reports true for.
func batchOf(as []*Probe, choose func(*Probe) bool) *batch {
	b := &batch{}
	for i, a := range as {
		if choose(a) {
			a.on.addTo(b, i)
		}
	}
	return b
}

// isAny chooses every probe for batchOf.
func isAny(*Probe) bool { return true }

// register registers them, all or none. The index of an error is an index in the
// list.
func (b *batch) register(e *probe.Engine) error {
	if len(b.watches) > 0 {
		if err := e.Watch(b.watches...); err != nil {
			return reindexError(err, b.watchOrder)
		}
	}
	if len(b.probes) == 0 {
		return nil
	}
	err := e.Register(b.probes...)
	if err != nil && len(b.watches) > 0 {
		err = errors.Join(err, e.Unwatch(b.watches...))
	}
	return reindexError(err, b.order)
}

// unregister unregisters them.
func (b *batch) unregister(e *probe.Engine) (err error) {
	if len(b.watches) > 0 {
		if err = e.Unwatch(b.watches...); errors.Is(err, probe.ErrInHandler) {
			return err
		}
	}
	return errors.Join(err, e.Unregister(b.kprobes...))
}

// reindexError replaces the index of an error by the rejected probe's index in a
// longer list.
func reindexError(err error, order []int) error {
	var x *probe.Error
	if errors.As(err, &x) && x.Index < len(order) {
		y := *x
		y.Index = order[x.Index]
		return &y
	}
	return err
}
