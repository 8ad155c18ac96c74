package http

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	flame "github.com/guestprobe/guestprobe/internal/show/profile"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Limits of profiles.
const (
	// stackRoom is how many addresses the stacks of one profile may have in total:
	// 32 MiB. Stacks beyond that count as lost.
	stackRoom = 4 << 20
	// graphRoom is stackRoom for a profile whose graph is made here: a node is
	// much larger than an address.
	graphRoom = 256 << 10
	// profileHeart is how often a profile reports its progress and looks up the
	// names of new stacks, before a reset replaces their guest. At first it does
	// so more often.
	profileHeart = time.Second
	// nameTime bounds how long a reset waits for the names of stacks.
	nameTime = 2 * time.Second
)

// profile gathers stacks and how often each was seen: of samples, or of hits of probes.
type profile struct {
	host    *eventHost
	hz      int
	sampler *sampler          // nil: of hits
	cpus    []stackCounts     // by vCPU
	of      map[string]string // names of the requested probes, by the names of their twins
	room    atomic.Int64
	graph   *flame.Fold // the graph that is sent instead of the stacks, or nil

	names chan chan struct{} // requests the names of all stacks so far; the sent channel is closed when that is done
	over  chan struct{}      // closed when the profile has ended
	ended sync.Once
}

// profiles are the running profiles.
type profiles struct {
	mu   sync.Mutex
	open map[*profile]bool
}

// stackCounts are the stacks of one vCPU. mu guards everything except the fields
// of stacks that the naming sets.
type stackCounts struct {
	mu    sync.Mutex
	seen  map[string]*stackCount
	fresh []*stackCount // not named yet
	total uint64        // counted
	lost  uint64        // of these: without room

	// Of the counting thread.
	key bytes.Buffer
	pcs [maxBacktrace]guest.GVA
}

// stackCount is one stack.
type stackCount struct {
	task     *api.Task
	probe    string
	pcs      []guest.GVA // innermost first: where it was, then the return addresses
	cut      bool        // the last one may have callers
	boot     int64       // when the guest's boot began
	frames   []api.Frame // once it is named
	count    uint64
	duration int64 // nanoseconds, of a return probe's hits
}

func (eh *eventHost) streamProfile(w http.ResponseWriter, r *http.Request) error {
	var req api.StreamProfile
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	switch probes := len(req.Probes) + len(req.Names); {
	case req.Hz < 0 || req.Hz > api.MaxProfileHz:
		return badValue("hz %d: not 1 to %d", req.Hz, api.MaxProfileHz)
	case req.Hz > 0 && probes > 0:
		return badValue("either hz, or probes whose hits' stacks are wanted")
	case req.Hz == 0 && probes == 0:
		return badValue("hz or probes is missing")
	}
	for i := range req.Probes {
		req.Probes[i].Stack, req.Probes[i].Stay = true, false
	}
	of := map[string]string{}
	if len(req.Names) > 0 {
		as, err := eh.probes.Choose(req.Names...)
		if err != nil {
			return err
		}
		for _, a := range as {
			req.Probes = append(req.Probes, twinSpec(a, eh.probes.SpecOf(a), of))
		}
	}
	p := &profile{host: eh, hz: req.Hz, of: of, cpus: make([]stackCounts, len(eh.guest.State().VCPUs)), names: make(chan chan struct{}), over: make(chan struct{})}
	p.room.Store(stackRoom)
	if req.Graph {
		p.graph = &flame.Fold{}
		p.room.Store(graphRoom)
	}
	if p.hz > 0 {
		var err error
		if p.sampler, err = newSampler(eh.guest, eh.log); err != nil {
			return err
		}
	}
	return eh.serveEvents(w, r, api.StreamEvents{Probes: req.Probes}, p)
}

// maxTwin bounds the name of a twin; a longer name is replaced by a number.
const maxTwin = 60

// twinSpec returns the spec of a probe at the place of a whose hits have stacks,
// and records in of that it is a's twin.
func twinSpec(a *session.Probe, spec session.Spec, of map[string]string) api.ProbeSpec {
	def := *a.Def()
	def.Group, def.Event = "profile", a.Def().Group+"_"+a.Def().Event
	if name, taken := of[def.Name()]; len(def.Event) > maxTwin || taken && name != a.Name() {
		def.Event = fmt.Sprintf("p%d", len(of)) // a _ joins group and event, so two probes can get the same name
	}
	of[def.Name()] = a.Name()
	if spec.Filter == "" {
		def.Args = nil // only a filter needs them
	}
	return api.ProbeSpec{Def: def.String(), Stack: true, Space: api.Hex(spec.Space), Filter: spec.Filter, Emulate: spec.Emulate}
}

// probe returns the name of the probe whose hits the twin with this name counts.
func (p *profile) probe(name string) string { return cmp.Or(p.of[name], name) }

// begin begins to sample.
func (p *profile) begin() {
	_, _ = p.host.guest.Source() // takes a second, which must not fall into the first samples
	all := &p.host.profiles
	all.mu.Lock()
	if all.open == nil {
		all.open = map[*profile]bool{}
	}
	all.open[p] = true
	all.mu.Unlock()
	if p.sampler != nil {
		p.sampler.callEvery(time.Second/time.Duration(p.hz), p.sample)
	}
}

// end stops the sampling. It may be repeated.
func (p *profile) end() {
	if p.sampler != nil {
		p.sampler.end()
	}
	p.ended.Do(func() {
		p.host.profiles.mu.Lock()
		delete(p.host.profiles.open, p)
		p.host.profiles.mu.Unlock()
		close(p.over)
	})
}

// nameRequests returns the channel of requests for names. p may be nil; the
// channel is nil then and never yields.
func (p *profile) nameRequests() <-chan chan struct{} {
	if p == nil {
		return nil
	}
	return p.names
}

// nameAll looks up the names of all stacks that the profiles have gathered so
// far. The guest is paused and about to become another one, with other names. A
// client that does not read delays it by at most nameTime.
func (eh *eventHost) nameAll() {
	eh.profiles.mu.Lock()
	ps := slices.Collect(maps.Keys(eh.profiles.open))
	eh.profiles.mu.Unlock()
	if len(ps) == 0 {
		return
	}
	eh.probes.Sync()
	late := time.NewTimer(nameTime)
	defer late.Stop()
	for _, p := range ps {
		named := make(chan struct{})
		select {
		case p.names <- named:
			select {
			case <-named:
			case <-p.over:
			}
		case <-p.over:
		case <-late.C:
			eh.log.Warn("stacks of a profile have no names: the guest has become another one before")
			return
		}
	}
}

// sample counts the stack of a vCPU. It runs on that vCPU's thread.
func (p *profile) sample(c *probe.Context) {
	t := &p.cpus[c.CPU]
	t.mu.Lock()
	defer t.mu.Unlock()
	n := c.Stack(t.pcs[:])
	var task guest.Task
	known := c.Task(&task)
	comm := bytes.TrimRight(task.Comm[:], "\x00")
	x := p.count(t, t.pcs[:n], known, int32(task.PID), comm, "")
	if x == nil {
		return
	}
	if x.count++; x.count == 1 {
		x.cut = n == len(t.pcs)
		for i, pc := range x.pcs {
			x.pcs[i] = c.FileCode(pc) // while the task whose memory it is in still runs
		}
	}
}

// hit counts a hit of a probe.
func (p *profile) hit(a *session.Probe, ev event.Event, rec *event.Record) {
	if ev.CPU >= len(p.cpus) || rec.Moment == event.AtPost {
		return
	}
	t := &p.cpus[ev.CPU]
	t.mu.Lock()
	defer t.mu.Unlock()
	pcs := rec.Stack
	if rec.Moment == event.AtReturn { // its time is the function's, and the stack begins at the return address
		t.pcs[0] = rec.Addr
		pcs = t.pcs[:1+copy(t.pcs[1:], pcs)]
	}
	x := p.count(t, pcs, rec.HasTask, rec.PID, []byte(rec.Comm), a.Name())
	if x == nil {
		return
	}
	x.cut = len(rec.Stack) == event.StackDepth
	x.count++
	x.duration += rec.Duration
}

// count returns the count of a stack, or nil if there is no room for it.
// Precondition: t.mu held.
func (p *profile) count(t *stackCounts, pcs []guest.GVA, task bool, pid int32, comm []byte, name string) *stackCount {
	t.total++
	boot := p.host.control.boot.Load()
	t.key.Reset()
	b := t.key.AvailableBuffer()
	b = binary.LittleEndian.AppendUint64(b, uint64(boot))
	b = binary.LittleEndian.AppendUint32(b, uint32(pid))
	b = append(append(b, comm...), 0)
	b = append(append(b, name...), 0)
	for _, pc := range pcs {
		b = binary.LittleEndian.AppendUint64(b, uint64(pc))
	}
	t.key.Write(b)
	x := t.seen[string(t.key.Bytes())]
	if x == nil {
		if p.room.Add(-int64(len(pcs)+16)) < 0 {
			t.lost++
			return nil
		}
		x = &stackCount{pcs: append([]guest.GVA(nil), pcs...), probe: name, boot: boot}
		if task {
			x.task = &api.Task{PID: pid, Comm: string(comm)}
		}
		if t.seen == nil {
			t.seen = map[string]*stackCount{}
		}
		t.seen[string(t.key.Bytes())] = x
		t.fresh = append(t.fresh, x)
	}
	return x
}

// name looks up the names of the stacks that are new since the last call, and
// returns the total number of stacks that were counted and lost. It belongs to
// the goroutine of the request.
func (p *profile) name() (counted, lost uint64) {
	if p.sampler != nil {
		lost = p.sampler.missed.Load() + p.sampler.late.Load()
	}
	var fresh []*stackCount
	for i := range p.cpus {
		t := &p.cpus[i]
		t.mu.Lock()
		fresh = append(fresh, t.fresh...)
		t.fresh = nil
		counted += t.total - t.lost
		lost += t.lost
		t.mu.Unlock()
	}
	if len(fresh) == 0 {
		return counted, lost
	}
	names, boot := newNamer(p.host.guest), p.host.control.boot.Load()
	for _, x := range fresh {
		if x.boot == boot {
			x.frames = names.frames(x.pcs, true)
			continue
		}
		for _, pc := range x.pcs { // of a guest that is gone, with its names
			x.frames = append(x.frames, api.Frame{Addr: api.Hex(pc)})
		}
	}
	return counted, lost
}

// putAll ends a profile, and sends its stacks or its graph.
func (e *eventStream) putAll() error {
	if e.profile == nil {
		return nil
	}
	e.profile.end()
	e.progress()
	for cpu := range e.profile.cpus {
		t := &e.profile.cpus[cpu]
		for _, x := range t.seen {
			stack := api.Stack{
				Count: x.count, DurationNS: x.duration, CPU: cpu, Task: x.task, Probe: e.profile.probe(x.probe), Cut: x.cut, Frames: x.frames,
			}
			if e.profile.graph != nil {
				e.profile.graph.Add(stack)
				continue
			}
			e.put(api.RecordStack, stack)
			if e.buf.Len() < maxGather {
				continue
			}
			if err := e.flush(); err != nil {
				return err
			}
		}
	}
	e.putLost(e.countLost())
	return e.putGraph()
}

// putGraph sends the flame graph of the stacks, if it is requested.
func (e *eventStream) putGraph() error {
	if e.profile.graph == nil {
		return nil
	}
	g := flame.Graph{Unit: "hits", Root: e.profile.graph.Root()}
	if e.profile.sampler != nil {
		g.Unit = "samples"
	}
	data, err := g.Data()
	if err != nil {
		panic("BUG: marshal graph: " + err.Error())
	}
	e.put(api.RecordGraph, json.RawMessage(data))
	return e.flush()
}

// progress updates the stream's numbers of stacks and of lost stacks.
func (e *eventStream) progress() {
	if e.profile != nil {
		e.delivered, e.gone = e.profile.name()
	}
}

// finals returns the final counts of the stream's own probes, under their names
// in the stream's records.
func (e *eventStream) finals() []api.Probe {
	ps := wireInfos(e.own.Finals())
	if e.profile != nil {
		for i := range ps {
			ps[i].Name = e.profile.probe(ps[i].Name)
		}
	}
	return ps
}
