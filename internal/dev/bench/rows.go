package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// kind is one row of the table: the probed instruction, and the probes.
type kind struct {
	name, what string
	plan       string // of the site, in Engine.Check's terms; atEntry; "" = not built yet
	post       bool   // with a post handler
	probes     string // at a function's entry: the letters of the probes there; o for a jump
}

// atEntry is the plan of kinds that probe functions, not instructions.
const atEntry = "entry"

// kinds are the letters of the kprobes documentation, and e, which the kernel
// has no letter for.
var kinds = []kind{
	{"k", "kprobe, instruction stepped in a slot (pre and post handler)", "boost", true, ""},
	{"b", "kprobe, boosted slot (pre handler)", "boost", false, ""},
	{"e", "kprobe, instruction emulated (pre and post handler)", "emulate", true, ""},
	{"o", "optimized kprobe (jump, handler on the host)", atEntry, false, "ko"},
	{"r", "kretprobe (entry and return handler)", atEntry, false, "r"},
	{"rb", "kretprobe, boosted", "", false, ""},
	{"ro", "kretprobe, optimized (jump at the entry)", atEntry, false, "ro"},
	{"j", "jprobe (handler on the host)", atEntry, false, "j"},
	{"kr", "kprobe and kretprobe on one function", atEntry, false, "kr"},
	{"jr", "jprobe and kretprobe on one function", atEntry, false, "jr"},
}

// DefaultCalls is how many probed calls one measurement makes.
const DefaultCalls = 4000

// plainFactor is how many more unprobed calls it makes at CPL3: an exit costs
// microseconds, a call without a probe a nanosecond.
const plainFactor = 250

// rows measures every kind at one privilege level.
func (g *benchGuest) rows(ctx context.Context, cpl int, o Options) []Row {
	var out []Row
	var first *Spread
	for _, k := range kinds {
		r := Row{Name: k.name, CPL: cpl, What: k.what}
		if k.plan == "" {
			r.Unavailable = "every return goes straight back: the same as r"
		} else {
			o.Progress(fmt.Sprintf("%s at CPL%d", k.name, cpl))
			if err := g.row(ctx, &r, k, o.Runs, uint64(o.Calls)); err != nil {
				r = Row{Name: k.name, CPL: cpl, What: k.what, Unavailable: err.Error()}
			}
		}
		if r.NsPerHit != nil {
			if first == nil {
				first = r.NsPerHit
			}
			r.RatioToFirst = r.NsPerHit.Median / first.Median
		}
		out = append(out, r)
	}
	return out
}

// row measures one kind: runs times unprobed and probed in turn, so that both
// see the same weather.
func (g *benchGuest) row(ctx context.Context, r *Row, k kind, runs int, calls uint64) error {
	fn, err := g.fn(r.CPL)
	if err != nil {
		return err
	}
	all, ps, err := g.probes(fn, k)
	if err != nil {
		return err
	}
	e := g.m.Engine()
	if err := e.Register(all...); err != nil {
		return err
	}
	defer e.Unregister(ps...)
	plain := calls
	if r.CPL == 3 {
		plain *= plainFactor
	}
	var base, with []float64
	before := g.m.Stats()
	engineBefore := e.Totals(-1)
	for range runs {
		b, err := g.calls(ctx, r.CPL, fn.Addr, plain)
		if err != nil {
			return err
		}
		if err := e.Enable(ps...); err != nil {
			return err
		}
		if err := g.optimize(k, ps); err != nil {
			return err
		}
		w, err := g.calls(ctx, r.CPL, fn.Addr, calls)
		if err := errors.Join(err, e.Disable(ps...)); err != nil {
			return err
		}
		base, with = append(base, b), append(with, w-b)
	}
	s, _, _ := e.Stats(ps[0])
	for _, p := range ps {
		s, _, _ = e.Stats(p)
		if want := uint64(runs) * calls; s.Hits != want {
			return fmt.Errorf("%d hits for %d calls", s.Hits, want)
		}
	}
	after, engineAfter := g.m.Stats(), e.Totals(-1)
	sp := spread(with)
	r.NsPerHit, r.BaselineNs = &sp, spread(base).Median
	r.Hits, r.Missed = s.Hits, s.Missed
	r.ExitsPerHit = float64(trapExits(after)-trapExits(before)) / float64(s.Hits)
	r.EngineNs = float64(hostNs(after)-hostNs(before)) / float64(s.Hits)
	r.InsnsPerHit = addedInsns(g.m.Host().Traps.CPL(uint8(r.CPL)).Int3, engineBefore, engineAfter) / float64(s.Hits)
	return nil
}

// optimize optimizes the probes of a kind that need a jump.
func (g *benchGuest) optimize(k kind, ps []*probe.Kprobe) error {
	if !strings.Contains(k.probes, "o") {
		return nil
	}
	if err := g.m.Engine().Optimize(); err != nil {
		return err
	}
	if i, _ := g.m.Engine().Info(ps[0]); !i.Optimized {
		return fmt.Errorf("%s+%#x gets no jump: %s %s", i.Symbol, i.Offset, i.Unoptimized.Reason, i.Unoptimized.Detail)
	}
	return nil
}

// probes makes the probes of a kind on fn, disabled: once as the registered
// probes, and once as the kprobes that they consist of.
func (g *benchGuest) probes(fn guest.Symbol, k kind) (all []probe.Probe, ps []*probe.Kprobe, err error) {
	where := probe.Kprobe{Name: "bench", Addr: fn.Addr, Disabled: true}
	letters := k.probes
	if k.plan != atEntry {
		letters = "k"
		if where.Addr, err = g.site(fn, k.plan); err != nil {
			return nil, nil, err
		}
	}
	for _, letter := range letters {
		switch letter {
		case 'k':
			p := where
			p.Pre = func(*probe.Context) int { return 0 }
			if k.post {
				p.Post = func(*probe.Context) {}
			}
			all, ps = append(all, &p), append(ps, &p)
		case 'r':
			r := &probe.Kretprobe{Kprobe: where, Entry: func(*probe.Context) int { return 0 }, Return: func(*probe.Context) {}}
			all, ps = append(all, r), append(ps, &r.Kprobe)
		case 'j':
			j := &probe.Jprobe{Kprobe: where, Entry: func(*probe.Context, probe.Args) {}}
			all, ps = append(all, j), append(ps, &j.Kprobe)
		}
	}
	return all, ps, nil
}

// site returns the first instruction of fn's straight-line head whose plan is
// the wanted one.
func (g *benchGuest) site(fn guest.Symbol, plan string) (guest.GVA, error) {
	code := g.m.Image().Code(fn.Addr, int(fn.Size))
	for at := 0; at < len(code); {
		in, err := x86.Decode(code[at:])
		if err != nil {
			return 0, fmt.Errorf("%s+%#x: %w", fn.Name, at, err)
		}
		info, err := g.m.Engine().Check(&probe.Kprobe{Addr: fn.Addr + guest.GVA(at)})
		if err == nil && info.Plan == plan {
			return fn.Addr + guest.GVA(at), nil
		}
		if c := in.Class(); c != x86.ClassOther && c != x86.ClassNop {
			break
		}
		at += int(in.Len)
	}
	return 0, fmt.Errorf("no instruction of %s that every call executes is a case of %q on this host", fn.Name, plan)
}

// addedInsns returns how many instructions the guest executed more than without
// the probe, between two readings of the engine's counters: a jump back for
// each boosted hit, and out and iretq of the guest's stub for each trap that
// arrives through vector 3. The copy in a slot stands for the original.
func addedInsns(d host.Delivery, before, after probe.EngineStats) float64 {
	n := after.Boosted - before.Boosted
	if d == host.DeliveryVector {
		n += 2 * (after.Breakpoints - before.Breakpoints + after.Stepped - before.Stepped + after.Returns - before.Returns)
	}
	return float64(n)
}

func trapExits(s machine.Stats) (n uint64) {
	for _, v := range s.VCPUs {
		n += v.TrapExits
	}
	return n
}

func hostNs(s machine.Stats) (n uint64) {
	for _, v := range s.VCPUs {
		n += v.TrapNs
	}
	return n
}

// startups boots the guest runs times.
func startups(ctx context.Context, runs int) (Startup, error) {
	var k, u []float64
	for range runs {
		g, kt, ut, err := bootGuest(ctx)
		if err != nil {
			return Startup{}, err
		}
		if err := g.close(ctx); err != nil {
			return Startup{}, err
		}
		k, u = append(k, float64(kt.Nanoseconds())), append(u, float64(ut.Nanoseconds()))
	}
	ks, us := spread(k), spread(u)
	return Startup{KVMNs: &ks, GuestNs: &us}, nil
}

// Options select the measurements.
type Options struct {
	Runs     int              // of each measurement, at least 5
	Calls    int              // probed calls per measurement; 0: DefaultCalls
	Peers    bool             // also the alternatives
	Daemon   string           // path of guestprobed, for a debugger's packets; "": in this process
	Progress func(string)     // called with the name of each measurement; may be nil
	Clock    func() time.Time // nil: time.Now
}

// MinRuns is the least number of runs for a median.
const MinRuns = 5

// Run makes one run. It takes some minutes, with few calls some ten seconds.
func Run(ctx context.Context, o Options) (*Result, error) {
	if o.Runs < MinRuns {
		return nil, fmt.Errorf("%d runs: at least %d are needed for a median", o.Runs, MinRuns)
	}
	if o.Calls == 0 {
		o.Calls = DefaultCalls
	}
	if o.Calls < 1 || o.Calls > 1e6 {
		return nil, fmt.Errorf("%d calls per measurement: not within 1 to 1000000", o.Calls)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	rep, err := host.Calibrate(ctx, "")
	if err != nil {
		return nil, err
	}
	res := &Result{Schema: 1, Runs: o.Runs, Host: describeHost(rep, o.Clock())}
	o.Progress("start-up")
	if res.Startup, err = startups(ctx, o.Runs); err != nil {
		return nil, err
	}
	g, _, _, err := bootGuest(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { g.close(ctx) }()
	for _, cpl := range []int{0, 3} {
		res.Rows = append(res.Rows, g.rows(ctx, cpl, o)...)
	}
	looks, windows, inGuest, watching := o.Runs, profilingWindows, uint64(inGuestCalls), watchingWindow
	if o.Calls < DefaultCalls { // such a run only checks that everything works
		looks, windows, inGuest, watching = 1, 1, fewInGuestCalls, shortWatching
	}
	o.Progress("in the guest")
	if res.InGuest, err = g.guestRows(ctx, o.Runs, inGuest); err != nil {
		return nil, err
	}
	o.Progress("a script at many places")
	if res.Attach, err = g.attachCost(o.Runs); err != nil {
		res.Attach.Unavailable = err.Error()
	}
	o.Progress("optimizer")
	if res.Optimizer, err = optimizerCost(ctx, o.Runs); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		res.Optimizer.Unavailable = err.Error()
	}
	o.Progress("snapshots")
	if res.Snapshots, err = snapshots(ctx, o.Runs); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		res.Snapshots.Unavailable = err.Error()
	}
	o.Progress("profiles")
	if res.Profiling, err = measureProfiling(ctx, looks, windows); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		res.Profiling.Unavailable = err.Error()
	}
	o.Progress("top")
	if res.Watching, err = measureWatching(ctx, looks, watching); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		res.Watching.Plain, res.Watching.Unavailable = nil, err.Error()
	}
	if o.Peers {
		fn, err := g.fn(3)
		if err != nil {
			return nil, err
		}
		o.Progress("peer: uprobe")
		res.Peers = append(res.Peers, uprobePeer(ctx, g.m.Image().Code(fn.Addr, int(fn.Size)), o.Runs, 50000))
		o.Progress("peer: qemu gdb stub")
		res.Peers = append(res.Peers, roundTrips(ctx, o.Runs, 500), gdbPeer(ctx, o.Runs, 500), measureStub(ctx, o.Daemon, o.Runs, 500))
	}
	return res, nil
}
