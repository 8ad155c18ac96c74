package program

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/evbpf"
)

// Emitter receives the data that programs write to rings. *event.Source is one.
type Emitter interface {
	Put(cpu int, time int64, data []byte) bool
	Lose(cpu int, n uint64)
}

// Object is a loaded object file: programs and the maps that they share.
type Object struct {
	Programs []*Program // in the order of their names
	LeftOut  []string   // functions that the guest does not have: see LoadOptions.Has
	Notes    []string   // see bpf.Object

	Idle []bpf.LoadedProgram // programs without a place: see Run

	rt     *Runtime
	col    *bpf.Collection
	shared map[string]*arena // of maps that are in the guest's memory
	rings  []*ring
	closed bool
	script bool // its rings are read by the script's runner
}

// Program is one program of an object.
type Program struct {
	Name     string
	Section  string
	AttachTo string // function, with +OFFSET for some kprobes
	Kind     bpf.Kind
	Place    bpf.Place // where it runs when its site is optimized
	Why      string    // Place is OnHost: why
	Warnings []bpf.Warning
	Steps    int64 // the most of one run: see bpf.Program.Steps; 0 for a script

	// Record makes the record of the program's event (see Event), at a hit. It
	// returns the record's address in the guest's kernel, 0 if it could not be made,
	// and its bytes on the host, bpf.MaxRecord bytes. The context of a bpf.Event is
	// the record; that of another kind has its address in place of orig_ax. It is set
	// before the program is attached, and called like handlers.
	Record func(c *probe.Context) (addr uint64, data []byte)
	// RecordAt returns the address of the records of a vCPU, 0 if it has no records:
	// a record is made when a program first reads it, unless it is the context.
	RecordAt func(cpu int) uint64

	obj    *Object
	user   bool // it was loaded for code of CPL3
	prog   *bpf.Program
	made   machineCode
	runner *runner
	rings  bool // it writes to rings
	blocks *blocks
}

// LoadOptions select what to load, and how.
type LoadOptions struct {
	Section string                                         // only programs in this section: see bpf.Selection; "" = all
	At      string                                         // places to attach to instead of those in the section names: PLACE for the only program, or NAME=PLACE[,...]
	Set     map[string]string                              // constants: see bpf.Selection
	Entries map[string]uint32                              // sizes of maps: see bpf.Selection.MapEntries
	OnHost  bool                                           // no program runs in the guest
	Has     func(string) bool                              // see bpf.Selection
	Static  func(path string) ([]sdt.Probe, string, error) // likewise
	Match   func(string, bool, int) ([]string, int)        // likewise
	Budget  int64                                          // of each program; 0 = bpf.DefaultBudget
	Strict  bool                                           // a program with warnings is rejected
	Unsafe  bool                                           // programs may change the guest: see bpf.Helper.ChangesGuest

	// User reports whether a program attaches to code of CPL3; nil: none does.
	User func(attachTo string) bool

	// Lacks returns why a helper has no data in this guest, or ""; nil: all helpers
	// have data. Calls of such helpers cause warnings, and are rejected with Strict.
	Lacks func(bpf.Helper) string

	script bool // the compiler makes no mistakes: do not look for them
}

// Load loads an object file, which may be hostile. Errors name the defect,
// or the thing that it needs and that does not exist.
func (rt *Runtime) Load(file []byte, opt LoadOptions) (*Object, error) {
	sel, err := rt.selection(opt)
	if err != nil {
		return nil, err
	}
	o, err := bpf.LoadObject(file, sel)
	if err != nil {
		return nil, err
	}
	return rt.load(o, opt, allPlaced, rt.cfg.CPUs)
}

// LoadScript is Load for an object that a script was compiled to. Only the first
// placed programs have places in the guest; Run runs the others, for which the maps
// have values for one more vCPU.
func (rt *Runtime) LoadScript(o *bpf.Object, placed int, opt LoadOptions) (*Object, error) {
	opt.script = true
	return rt.load(o, opt, placed, rt.cfg.CPUs+1)
}

// allPlaced means all programs of a collection, which omits programs that are only
// reached by tail calls.
const allPlaced = -1

func (rt *Runtime) load(o *bpf.Object, opt LoadOptions, placed, cpus int) (*Object, error) {
	pl, err := rt.plan(o, opt, placed, cpus)
	if err != nil {
		return nil, err
	}
	obj := &Object{rt: rt, LeftOut: o.LeftOut, Notes: o.Notes, script: opt.script}
	if obj.col, err = o.LoadIn(cpus, pl.memory, opt.Budget); err != nil && pl.inGuest() {
		// Shared memory is scarce.
		pl.moveToHost(err.Error())
		obj.col, err = o.LoadIn(cpus, pl.memory, opt.Budget)
	}
	if err != nil {
		return nil, err
	}
	if obj.shared = pl.mem; placed == allPlaced {
		placed = len(obj.col.Programs)
	}
	obj.Idle = obj.col.Programs[placed:]
	same := map[bpf.Instructions]*Program{} // programs in several places are judged once
	for i, lp := range obj.col.Programs[:placed] {
		p := &Program{
			Name: lp.Name(), Section: lp.Section, AttachTo: lp.AttachTo, Kind: lp.Kind(), Place: bpf.InGuest, Why: pl.why[i],
			obj: obj, user: pl.user[i], prog: lp.Program, runner: rt.newRunner(lp.Program),
		}
		p.runner.of = p
		if !opt.script {
			if of := same[lp.Instructions()]; of != nil && slices.Equal(of.prog.Maps(), lp.Maps()) && lp.AttachTo != "" {
				p.Warnings, p.Steps = of.Warnings, of.Steps
			} else if p.Warnings, err = lp.Judge(bpf.Allowed{Unsafe: opt.Unsafe, Strict: opt.Strict, Lacks: opt.Lacks}); err != nil {
				obj.col.Close()
				return nil, err
			} else {
				p.Steps, same[lp.Instructions()] = lp.Steps(), p
			}
		}
		if p.Why != "" {
			p.Place = bpf.OnHost
		}
		for _, m := range lp.Maps() {
			p.rings = p.rings || m.Spec().Kind == bpf.RingBuf
		}
		obj.Programs = append(obj.Programs, p)
	}
	obj.compile()
	return obj, nil
}

// selection returns the selection of programs in a file.
func (rt *Runtime) selection(opt LoadOptions) (bpf.Selection, error) {
	at, err := bpf.ParseAt(opt.At)
	if err != nil {
		return bpf.Selection{}, fmt.Errorf("load object: %w", err)
	}
	sel := bpf.Selection{Section: opt.Section, Set: opt.Set, At: at, MapEntries: opt.Entries, Has: opt.Has, Match: opt.Match, Static: opt.Static}
	if rt.cfg.Kernel != nil {
		sel.Kernel = rt.cfg.Kernel()
	}
	return sel, nil
}

// Shared reports whether a map is in memory shared with the guest, because some
// program that uses it runs there.
func (o *Object) Shared(m *bpf.Map) bool { return o.shared[m.Spec().Name] != nil }

// Maps returns the maps of the object, by name.
func (o *Object) Maps() map[string]*bpf.Map { return o.col.Maps }

// Emit passes the data written to the object's rings, while it is wanted
// (Runtime.Want), to to(ring's name), with the time at which it came out of its ring,
// until Close. Data written by a script is always wanted.
func (o *Object) Emit(to func(name string) Emitter) {
	for name, m := range o.col.Maps {
		if m.Spec().Kind != bpf.RingBuf {
			continue
		}
		e, lost := to(name), uint64(0)
		r := &ring{m: m, guest: o.Shared(m), own: o.script}
		r.to = func(rec bpf.Record) {
			if r.own || o.rt.wants(evbpf.Open) {
				e.Put(rec.CPU, o.rt.cfg.Now(), rec.Data)
			}
		}
		r.after = func() {
			// The ring does not say on which vCPU; the guest may write any number.
			now := m.RingStats().Lost
			if now > lost && (r.own || o.rt.wants(evbpf.Open)) {
				e.Lose(0, now-lost)
			}
			lost = now
		}
		o.rings = append(o.rings, r)
		o.rt.startDraining(r)
	}
}

// guestBlocks returns the blocks of the programs in the guest.
func (o *Object) guestBlocks() (bs []*blocks) {
	for _, p := range o.Programs {
		if p.blocks != nil {
			bs = append(bs, p.blocks)
		}
	}
	return bs
}

// Settle ends the object's programs in the guest, after their probes were removed:
// when it returns, no new runs begin, and runs under way have ended unless that takes
// longer than wait. The contents of the maps are then final, except for changes by
// Run.
func (o *Object) Settle(wait time.Duration) { o.rt.end(o.guestBlocks(), wait, func() {}) }

// Close releases the object's resources. Its probes must have been unregistered.
func (o *Object) Close() {
	if o.closed {
		return
	}
	o.closed = true
	bs := o.guestBlocks()
	var left atomic.Int64
	left.Store(int64(len(bs)))
	o.rt.retire(bs, func() {
		for _, r := range o.rings {
			o.rt.feed.remove(r)
		}
		o.rings = nil
	}, func(int) {
		if left.Add(-1) == 0 {
			o.col.Close()
		}
	})
	if len(bs) == 0 {
		o.col.Close()
	}
}

// Attach makes p the handlers of a kprobe that is not registered yet. addr is the
// probe's future address; user says that this is code of CPL3, entry that it is a
// function's first instruction. If refuse is not "", it is the reason why programs at
// this place cannot run in the guest.
func (p *Program) Attach(k *probe.Kprobe, addr guest.GVA, user, entry bool, refuse string) {
	k.Pre = func(c *probe.Context) int {
		if _, taken := p.run(c, entry); taken {
			return 1
		}
		return 0
	}
	k.Stage = p.stage(addr, user, refuse)
}

// Event returns the program's event, CATEGORY:NAME; ok is false for other programs.
// Such a program needs Record.
func (p *Program) Event() (name string, ok bool) {
	name, ok = strings.CutPrefix(p.AttachTo, bpf.AtTracepoint)
	return name, ok && strings.Contains(name, ":")
}

// AttachWatch makes p the handler of a watch that is not registered yet.
func (p *Program) AttachWatch(w *probe.Watch) {
	w.Handler = func(c *probe.Context) { p.run(c, false) }
}

// AttachReturn makes p the return handler of a kretprobe that is not registered
// yet. The rest is as for Attach.
func (p *Program) AttachReturn(k *probe.Kretprobe, addr guest.GVA, user bool, refuse string) {
	k.Return = func(c *probe.Context) { p.run(c, false) }
	k.DataSize = bpf.EntrySize
	k.Entry = func(c *probe.Context) int {
		bpf.PutEntry(c.Data, p.obj.rt.clock.time(), c.Regs)
		return 0
	}
	if k.ReturnStage = p.stage(addr, user, refuse); k.ReturnStage != nil {
		k.Stage = p.blocks.entry()
	}
}

// run runs the program at an exit, and has its rings drained.
func (p *Program) run(c *probe.Context, entry bool) (answer uint64, taken bool) {
	answer, taken = p.runner.run(c, entry)
	if p.rings && (p.obj.script || p.obj.rt.wants(evbpf.Open)) {
		p.obj.rt.cfg.Wake()
	}
	return answer, taken
}

// stage makes the program's form for the guest, or stores in Why the reason why it
// cannot.
func (p *Program) stage(addr guest.GVA, user bool, refuse string) *probe.Stage {
	if p.Place != bpf.InGuest {
		return nil
	}
	var err error
	switch {
	case refuse != "":
		err = errors.New(refuse)
	case user != p.user:
		err = errors.New("its maps are for code of the other privilege")
	default:
		p.blocks, err = p.obj.rt.stage(p.prog, p.made, addr, user, true, p.obj.resetGlobals)
	}
	if err != nil {
		p.Place, p.Why = bpf.OnHost, err.Error()
		return nil
	}
	return p.blocks.probe(false)
}

// resetGlobals restores the initial contents of the maps of global variables.
func (o *Object) resetGlobals() {
	for _, m := range o.col.Maps {
		if s := m.Spec(); len(s.Contents) > 0 {
			for i := 0; i*int(s.ValueSize) < len(s.Contents); i++ {
				key, v := binary.LittleEndian.AppendUint32(nil, uint32(i)), make([]byte, s.ValueSize)
				copy(v, s.Contents[i*int(s.ValueSize):])
				// The key exists, and values have this size.
				_ = m.Update(key, [][]byte{v}, bpf.UpdateAny)
			}
		}
	}
}

// Stats are the counts of a program.
type Stats struct {
	Runs    uint64     // begun, on the host and in the guest
	InGuest uint64     // of these: in the guest, as reported by the guest
	Faults  uint64     // ended early
	Missed  uint64     // hits in the guest during another run
	Last    *bpf.Fault // the latest one, or nil
}

// Stats returns the counts so far. It may be called after Close.
func (p *Program) Stats() Stats {
	s := p.runner.stats()
	if b := p.blocks; b != nil {
		g := b.stats()
		s.Runs, s.InGuest, s.Faults, s.Missed = s.Runs+g.Runs, g.Runs, s.Faults+g.Faults, g.Missed
		if g.Last != nil {
			s.Last = g.Last
		}
	}
	return s
}

// Code is the program's machine code in the guest, nil on the host. It must not be changed.
func (p *Program) Code() []byte {
	if p.blocks == nil {
		return nil
	}
	return p.blocks.code
}

// BPF returns the loaded program.
func (p *Program) BPF() *bpf.Program { return p.prog }

// Uses reports whether the program refers to a map of its object.
func (p *Program) Uses(m *bpf.Map) bool { return slices.Contains(p.prog.Maps(), m) }
