package program

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/evbpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Recorder receives the records of a definition. *event.Source is one; see there.
type Recorder interface {
	bpf.RingWriter
	Mark(event.Moment) uint32
	Begin(cpu int)
	End(cpu int)
	PutRecord(cpu int, rec []byte) bool
	Lose(cpu int, n uint64)
}

// Definition is a probe definition as a program. Its handlers are for the
// definition's probe; they run the program on the host. CompileGuest makes a form
// that runs in the guest.
type Definition struct {
	rt       *Runtime
	to       Recorder
	code     *evbpf.Code
	filtered bool // it has a filter
	main     *runner
	post     *runner // of Post; nil until requested
	layout   *event.Layout
	maps     []*bpf.Map // of the host only
	alike    [2]*alike  // the programs of main and post, or nil

	guest *guestForm // nil: it runs only on the host

	last *[4]uint64 // answers, after Drop
}

// Define makes the program of a layout and a filter, which may be nil. Its records go
// to to.
func (rt *Runtime) Define(l *event.Layout, filter *event.Filter, to Recorder) (*Definition, error) {
	d := &Definition{rt: rt, to: to, layout: l, filtered: filter != nil}
	var err error
	if d.code, d.main, d.alike[0], err = d.host(l, filter); err != nil {
		d.drop()
		return nil, err
	}
	if args := l.StackArgs(); len(args) > 0 {
		d.main.stack = &args
	}
	return d, nil
}

// Recompile makes the program again, for a layout that equals that of Define except
// for addresses, after the guest was reset. A definition that runs in the guest is
// not changed: its addresses do not change either. No vCPU may run during the call.
func (d *Definition) Recompile(l *event.Layout, filter *event.Filter) error {
	if d.guest != nil {
		return nil
	}
	maps := d.maps
	code, main, like, err := d.host(l, filter)
	if err != nil {
		return err
	}
	// The former program had the earlier records.
	if _, ok := d.code.State(); ok {
		maps[0].Close()
		d.maps = d.maps[1:]
	}
	d.rt.unshare(d.alike[0])
	main.cells, main.stack = d.main.cells, d.main.stack
	d.code, d.main, d.alike[0] = code, main, like
	return nil
}

// host compiles a layout, and makes the program for the host; like is what it shares.
func (d *Definition) host(l *event.Layout, filter *event.Filter) (code *evbpf.Code, r *runner, like *alike, err error) {
	code = evbpf.Compile(l, filter)
	maps := evbpf.Maps{Ring: d.rt.records, Gate: d.rt.gate}
	if spec, ok := code.State(); ok {
		if maps.State, err = bpf.NewMap(spec, d.rt.cfg.CPUs, &d.rt.heap); err != nil {
			return nil, nil, nil, err
		}
		d.maps = append(d.maps, maps.State)
	}
	key := code.Key()
	p, err := code.Program(maps, d.rt.findByKey(key))
	if err != nil {
		return nil, nil, nil, err
	}
	like = d.rt.share(key, p, code)
	if code.Equal(like.code) {
		code = like.code
	}
	r = d.rt.newRunner(p)
	r.to, r.cookie, r.gate = d.to, uint64(d.to.Mark(l.Moment)), evbpf.GateOf(l)
	return code, r, like, nil
}

// records is the ring that all definitions on the host write to. It passes records to
// the Recorder of the one that runs.
type records struct{ lanes []*lane }

// Reserve implements bpf.RingWriter.
func (w records) Reserve(cpu, n int) []byte { return w.lanes[cpu].env.r.to.Reserve(cpu, n) }

// Submit implements bpf.RingWriter.
func (w records) Submit(cpu int, keep bool) { w.lanes[cpu].env.r.to.Submit(cpu, keep) }

// alike is a program shared by definitions with the same code.
type alike struct {
	key   string
	prog  *bpf.Program // of one of them; its maps may be closed
	code  *evbpf.Code  // likewise
	users int
}

// findByKey returns a program with that evbpf.Code.Key, or nil.
func (rt *Runtime) findByKey(key string) *bpf.Program {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if a := rt.alike[key]; a != nil {
		return a.prog
	}
	return nil
}

// share records that a definition uses the program with that key.
func (rt *Runtime) share(key string, p *bpf.Program, code *evbpf.Code) *alike {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	a := rt.alike[key]
	if a == nil {
		a = &alike{key: key, prog: p, code: code}
		rt.alike[key] = a
	}
	a.users++
	return a
}

// unshare reverts share.
func (rt *Runtime) unshare(a *alike) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if a.users--; a.users == 0 {
		delete(rt.alike, a.key)
	}
}

// Hit runs the program at a hit, and reports whether its filter accepts the hit. It
// is for probe.Kprobe.Filter.
func (d *Definition) Hit(c *probe.Context) bool { return d.run(d.main, c) != evbpf.Filtered }

// Access is Hit for probe.Watch.Handler.
func (d *Definition) Access(c *probe.Context) { d.run(d.main, c) }

// Return is for probe.Kretprobe.Return.
func (d *Definition) Return(c *probe.Context) { d.run(d.main, c) }

// Post makes the handler that records the state after the probed instruction, for
// probe.Kprobe.Post.
func (d *Definition) Post() (func(*probe.Context), error) {
	var err error
	_, d.post, d.alike[1], err = d.host(d.layout.Post(), nil)
	return func(c *probe.Context) { d.run(d.post, c) }, err
}

func (d *Definition) run(r *runner, c *probe.Context) (answer uint64) {
	if !d.filtered && !d.rt.wants(r.gate) {
		add(&r.cells[c.CPU].answers[evbpf.Unwanted], 1)
		return evbpf.Unwanted // as the program itself would answer
	}
	d.to.Begin(c.CPU)
	answer, _ = r.run(c, false)
	d.to.End(c.CPU)
	return answer
}

// keptArg is how many bytes of a kretprobe's private memory an argument from the
// stack takes: its value, and 1 if it could not be read.
const keptArg = 8 + 1

// EntrySize is probe.Kretprobe.DataSize for a definition of returns: the data of
// bpf.PutEntry, followed by the arguments from the stack.
func (d *Definition) EntrySize() int { return bpf.EntrySize + keptArg*len(d.main.stackArgs()) }

// Entry is for probe.Kretprobe.Entry.
func (d *Definition) Entry(c *probe.Context) int {
	bpf.PutEntry(c.Data, uint64(d.rt.cfg.Now()), c.Regs)
	for i, n := range d.main.stackArgs() {
		kept := c.Data[bpf.EntrySize+keptArg*i:][:keptArg]
		at := c.Regs.RSP + uint64(8*(n-len(event.ArgRegs)))
		kept[8] = 0
		if c.ReadAsGuest(guest.GVA(at), kept[:8]) != nil {
			kept[8] = 1
		}
	}
	return 0
}

// CountRejected returns how many hits the filter has rejected, on the host and as
// reported by the guest. It may be called after Drop.
func (d *Definition) CountRejected() uint64 { return d.countAnswers(evbpf.Filtered) }

// CountUnwanted is CountRejected for hits that made no record because there was no
// reader.
func (d *Definition) CountUnwanted() uint64 { return d.countAnswers(evbpf.Unwanted) }

func (d *Definition) countAnswers(answer int) uint64 {
	if d.main == nil {
		if d.last == nil {
			return 0
		}
		return d.last[answer]
	}
	n := d.main.countAnswers(answer)
	if d.guest != nil {
		n += d.guest.countAnswers(answer)
	}
	return n
}

// drop releases everything d holds. The engine keeps the handlers of a kretprobe
// whose calls may yet return, and never runs them again.
func (d *Definition) drop() {
	last := [4]uint64{}
	for i := range last {
		last[i] = d.countAnswers(i)
	}
	for _, m := range d.maps {
		m.Close()
	}
	for _, a := range d.alike {
		if a != nil {
			d.rt.unshare(a)
		}
	}
	*d = Definition{last: &last}
}

// setGate writes a gate.
func setGate(gate *bpf.Map, to evbpf.Gate) {
	// The first key of an array always exists, whatever its memory contains.
	_ = gate.Update(make([]byte, 4), [][]byte{binary.LittleEndian.AppendUint64(nil, uint64(to))}, bpf.UpdateAny)
}
