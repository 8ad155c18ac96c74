package linuxtest

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

var (
	stormFunctions = flag.Int("storm.functions", 400, "TestStorm: how many functions, of all that may be probed; 0 for all")
	stormFrom      = flag.Int("storm.from", 0, "TestStorm: how many functions to leave out, of that order: those of the runs before")
	stormBatch     = flag.Int("storm.batch", 200, "TestStorm: how many at a time")
	stormTime      = flag.Duration("storm.time", 0, "TestStorm: begin no turn after that long; 0 for no bound")
	stormSeed      = flag.Uint64("storm.seed", 1, "TestStorm: which, and in which order")
	stormVCPUs     = flag.Int("storm.vcpus", 1, "TestStorm: vCPUs of the guest")
	stormStages    = flag.String("storm.stages", "", "TestStorm: the load's stages (load.sh; default: its own)")
)

// TestStorm: a Linux guest whose functions are probed in turns, by int3s and by jumps,
// under a load of processes, files, pipes, signals, network, modules, and of its own ftrace and
// kprobes, gives the answers of the guest without probes, has nothing to say in its log, and has
// its own text when all are gone.
func TestStorm(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { storm(t, dir) })
	}
}

func storm(t *testing.T, dir string) {
	g := boot(t, dir, "sh /load.sh 1000000 "+*stormStages, func(c *machine.Config) { c.VCPUs = *stormVCPUs })
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("GP-BOOTED")
	g.round() // pages and modules come in
	began := time.Now()
	want := g.round()
	t.Logf("a round takes %v unprobed", time.Since(began).Round(time.Millisecond))
	text := g.Text()

	// While the guest rests, because a module that comes or goes changes what may be probed.
	if err := g.Pause(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	functions, refused := candidates(g, rand.New(rand.NewPCG(*stormSeed, 0)), *stormFrom, *stormFunctions)
	t.Logf("seed %d: %d functions may be probed, of %d looked at in %v", *stormSeed, len(functions), len(functions)+total(refused), time.Since(start).Round(time.Millisecond))
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		t.Logf("  %6d refused: %s", refused[why], why)
	}
	start, turn, probed := time.Now(), 0, 0
	kinds := []*tally{{name: "int3"}, {name: "jump", jumps: true}}
	for batch := range slices.Chunk(functions, *stormBatch) {
		if turn > 0 && *stormTime > 0 && time.Since(start) > *stormTime {
			t.Logf("the time is over; -storm.from %d goes on", *stormFrom+probed)
			break
		}
		for _, k := range kinds {
			k.turn(t, g, batch, want)
		}
		g.checkSameText(g.Text(), text)
		turn++
		if t.Failed() {
			t.Fatalf("turn %d: the storm ends here (-storm.seed %d -storm.from %d); %s...", turn, *stormSeed, *stormFrom+probed, names(g, batch[:min(8, len(batch))]))
		}
		probed += len(batch)
		t.Logf("%d turns, %d of %d functions: %s; %s; %v", turn, probed, len(functions), kinds[0], kinds[1], time.Since(start).Round(time.Second))
	}
	for _, k := range kinds {
		if k.called == 0 || k.jumps != (k.jumped > 0) {
			t.Errorf("the load does nothing, or no probe was of the kind: %s", k)
		}
	}
	g.checkSame(g.round(), want, "after the storm")
}

// enough hits of a probe disable it.
const enough = 500

// tally is a kind of probes, and what was seen of them.
type tally struct {
	name           string
	jumps          bool
	hits           uint64
	called, jumped int // functions
}

func (k *tally) String() string {
	return fmt.Sprintf("%s: %d called, %d hits, %d by jump", k.name, k.called, k.hits, k.jumped)
}

// turn probes functions, waits for a round of the load that is under way all the time, and
// leaves them again.
func (k *tally) turn(t *testing.T, g *Guest, functions []guest.GVA, want map[string]string) {
	t.Helper()
	e := g.Engine()
	if err := e.SetOptimization(k.jumps); err != nil {
		t.Fatal(err)
	}
	ps, limit := make([]*probe.Kprobe, len(functions)), newLimiter(t, e, len(functions), enough)
	for i, at := range functions {
		p := &probe.Kprobe{Addr: at}
		hit := limit.counter(p)
		p.Pre = func(*probe.Context) int { hit(); return 0 }
		ps[i] = p
	}
	if err := e.Register(probe.Probes(ps)...); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	if k.jumps {
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range e.All() {
		if i.Optimized {
			k.jumped++
		}
	}
	g.checkSame(g.round(), want, k.name)
	limit.end()
	for _, p := range ps {
		info, _ := e.Info(p)
		k.hits += info.Stats.Hits
		if info.Stats.Hits > 0 {
			k.called++
		}
		if info.Stats.Hits != info.Stats.Handled+info.Stats.Missed {
			t.Errorf("%s: %d hits, %d handled, %d missed", info.Symbol, info.Stats.Hits, info.Stats.Handled, info.Stats.Missed)
		}
	}
	if err := e.Unregister(ps...); err != nil {
		t.Errorf("%s: %v", k.name, err)
	}
}

// candidates returns the entries of n functions that may be probed, or of all where n is 0,
// in an order made up by r, but for the first ones, and how many are refused for which reason.
func candidates(g *Guest, r *rand.Rand, first, n int) (functions []guest.GVA, refused map[string]int) {
	var all []guest.GVA
	for _, s := range g.Image().Symbols() {
		if s.Kind == guest.SymFunc && !s.User && (len(all) == 0 || all[len(all)-1] != s.Addr) {
			all = append(all, s.Addr)
		}
	}
	r.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	refused = make(map[string]int)
	for _, at := range all {
		if _, err := g.Engine().Check(&probe.Kprobe{Addr: at}); err != nil {
			why := err.Error()
			if e := (*probe.Error)(nil); errors.As(err, &e) {
				why = fmt.Sprintf("%s (%s)", e.Code, e.Errno.Error())
			}
			refused[why]++
			continue
		}
		if functions = append(functions, at); len(functions) == first+n && n > 0 {
			break
		}
	}
	return functions[min(first, len(functions)):], refused
}

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// names names functions, for who repeats a storm with them.
func names(g *Guest, at []guest.GVA) string {
	var out []string
	for _, a := range at {
		s, _ := g.Image().Find(a)
		out = append(out, s.Name)
	}
	return strings.Join(out, " ")
}
