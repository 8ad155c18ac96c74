package http

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote"
)

var fleetCosts = flag.String("fleet-costs", "", "measure what fleets cost, and write it to this `file`")

// many is how many daemons costs are computed for, in the last column.
const many = 10_000

// growth says what becomes of something with more daemons.
type growth string

const (
	constant growth = "nothing"
	linear   growth = "daemons"
	above    growth = "daemons, above what one server is" // on the line through the first fleet and the last
	bound    growth = "(the machine)"                     // nothing can be computed
)

// costs is a table: a line for each thing, in the order of the first time, with a number of each fleet.
type costs struct {
	sizes  []int
	things []string
	lines  map[string]*costLine
}

type costLine struct {
	growth growth
	digits int
	values []float64
}

func (c *costs) put(thing string, g growth, digits int, v float64) {
	if c.lines[thing] == nil {
		c.things = append(c.things, thing)
		c.lines[thing] = &costLine{growth: g, digits: digits}
	}
	c.lines[thing].values = append(c.lines[thing].values, v)
}

// roundDigits has two digits that are not zero: what is computed is not known better.
func roundDigits(v float64) float64 {
	unit := math.Pow10(int(math.Floor(math.Log10(max(v, 1)))) - 1)
	return math.Round(v/unit) * unit
}

// write writes it as Markdown.
func (c *costs) write(w io.Writer) {
	fmt.Fprintf(w, "| daemons | %s | %d, computed | grows with |\n|---|%s---:|---|\n", strings.Join(strings.Fields(strings.Trim(fmt.Sprint(c.sizes), "[]")), " | "), many, strings.Repeat("---:|", len(c.sizes)))
	for _, thing := range c.things {
		l := c.lines[thing]
		last := len(l.values) - 1
		fmt.Fprintf(w, "| %s |", thing)
		for _, v := range l.values {
			fmt.Fprintf(w, " %.*f |", l.digits, v)
		}
		switch l.growth {
		case linear:
			fmt.Fprintf(w, " %.0f |", roundDigits(l.values[last]*many/float64(c.sizes[last])))
		case above:
			slope := (l.values[last] - l.values[0]) / float64(c.sizes[last]-c.sizes[0])
			fmt.Fprintf(w, " %.0f |", roundDigits(l.values[last]+slope*float64(many-c.sizes[last])))
		case constant:
			fmt.Fprintf(w, " %.*f |", l.digits, l.values[last])
		default:
			fmt.Fprint(w, " - |")
		}
		fmt.Fprintf(w, " %s |\n", l.growth)
	}
}

// fleetCost is a fleet that is measured.
type fleetCost struct {
	*costs
	t  *testing.T
	s  *natsProcess
	hs map[string]*harness
	n  *fleet.Network
	ds []fleet.Daemon
}

// Sizes of what is measured.
const (
	// idleFor is as long as a daemon waits at most until it looks for definitions: each looks once in it.
	idleFor = 45 * time.Second
	// mapsFor is for what a script's maps cost.
	mapsFor = 5 * time.Second
	// allEvents are the hits of one measurement, of all daemons together.
	allEvents = 100_000
	// unread is how many of these a daemon has on their way where it waits for who reads.
	unread = 100
)

// TestFleetCosts writes what fleets of several sizes cost, and what --fleet costs one daemon. It checks that sums close, and no time.
func TestFleetCosts(t *testing.T) {
	if *fleetCosts == "" {
		return // scripts/bench-fleet.sh has it measure
	}
	all := &costs{sizes: []int{10, 50, 200}, lines: map[string]*costLine{}}
	var fleets []*fleetCost
	for _, n := range all.sizes {
		f := &fleetCost{costs: all, t: t, s: startNATS(t)}
		f.hs, f.n, f.ds = startFleet(t, n, []string{f.s.url}, nil)
		f.discover()
		fleets = append(fleets, f)
	}
	own := measureIdle(t, fleets)
	for _, f := range fleets {
		f.list()
		f.maps(10)
		f.maps(1000)
		f.events("as they are read", unread)
		f.events("at once", allEvents)
		f.measurePublished()
	}
	out, err := os.Create(*fleetCosts)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	all.write(out)
	fmt.Fprintf(out, "\n| one guestprobed for %v | without `--fleet` | with `--fleet` |\n|---|---:|---:|\n%s", idleFor, own)
}

// perDaemon is a number divided by that of daemons.
func (f *fleetCost) perDaemon(n int64) float64 { return float64(n) / float64(len(f.ds)) }

// forEachDaemon calls do for all daemons, so many at a time, each with a client of its own.
func (f *fleetCost) forEachDaemon(atOnce int, do func(d fleet.Daemon, h *harness, c *remote.Client)) {
	room := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, d := range f.ds {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			c := reach(f.t, f.n, d)
			defer c.Close()
			do(d, f.hs[d.Name], c)
		})
	}
	wg.Wait()
}

// discover measures what fleet ls asks.
func (f *fleetCost) discover() {
	const times = 5
	before := f.s.traffic("test")
	var took []time.Duration
	for range times {
		ds, err := f.n.Find(patience.Context(f.t), fleet.Look{Quiet: 300 * time.Millisecond})
		if err != nil || len(ds) != len(f.ds) {
			f.t.Fatalf("%d daemons, %v; want %d", len(ds), err, len(f.ds))
		}
		took = append(took, slices.MaxFunc(ds, func(a, b fleet.Daemon) int { return int(a.Since - b.Since) }).Since)
	}
	x := f.s.traffic("test").sub(before)
	f.put("`fleet ls`: the last daemon has answered, ms", linear, 1, quantile(took, 2).Seconds()*1e3)
	f.put("`fleet ls`: messages to the client", linear, 0, float64(x.got/times))
	f.put("`fleet ls`: bytes to the client", linear, 0, float64(x.gotBytes/times))
}

// list asks all daemons for their probes, as many at a time as the command of that name.
func (f *fleetCost) list() {
	const times = 5
	before := f.s.traffic("test")
	var took []time.Duration
	for range times {
		began := time.Now()
		f.forEachDaemon(64, func(d fleet.Daemon, h *harness, c *remote.Client) {
			if _, err := c.Probes(h.ctx); err != nil {
				f.t.Errorf("%s: %v", d.Name, err)
			}
		})
		took = append(took, time.Since(began))
	}
	x := f.s.traffic("test").sub(before)
	f.put("`list` of all of them, after that, ms", linear, 1, quantile(took, 2).Seconds()*1e3)
	f.put("`list`: messages of the client and to it, for a daemon", constant, 1, f.perDaemon(x.messages())/times)
	f.put("`list`: bytes of these", constant, 0, f.perDaemon(x.bytes())/times)
}

// measureIdle measures daemons that do nothing: those of fleets, and guestprobeds of their own with a fleet and without, of which it returns lines of a table.
func measureIdle(t *testing.T, fleets []*fleetCost) (table string) {
	const pairs = 3
	mine := &fleetCost{t: t, s: startNATS(t)}
	_, mine.n, _ = startFleet(t, 0, []string{mine.s.url}, nil)
	var own []*serving
	for range pairs {
		own = append(own, startServing(t), startServing(t, "--fleet", mine.s.url))
	}
	fleets = append(fleets, mine)
	for _, f := range fleets {
		keepReplicas(t, f.n, 1) // all look now, and have looked once more when the time is over
	}
	x, used, server := make([]traffic, len(fleets)), make([]float64, len(own)), make([]float64, len(fleets))
	for i, f := range fleets {
		x[i], server[i] = f.s.settle(), processorTime(t, f.s.pid)
	}
	for i, d := range own {
		used[i] = processorTime(t, d.pid)
	}
	time.Sleep(idleFor) // is what is measured
	for i, d := range own {
		used[i] = (processorTime(t, d.pid) - used[i]) / 1e6
	}
	for i, f := range fleets {
		server[i] = processorTime(t, f.s.pid) - server[i]
		x[i] = f.s.traffic("guestprobed").sub(x[i])
	}
	for i, f := range fleets[:len(fleets)-1] {
		f.put("idle: messages of a daemon and to it in 45 s", constant, 1, f.perDaemon(x[i].messages()))
		f.put("idle: bytes of these", constant, 0, f.perDaemon(x[i].bytes()))
		f.put("idle: the server's processor time each second, ms", above, 2, server[i]/1e6/idleFor.Seconds())
		f.put("idle: the server's memory, MB", above, 1, memory(t, f.s.pid)/1e6)
	}
	row := func(what, form string, of func(i int) float64) {
		table += "| " + what + " |"
		for i := range 2 {
			var vs []float64
			for k := i; k < len(own); k += 2 {
				vs = append(vs, of(k))
			}
			table += fmt.Sprintf(" "+form+" ("+form+" to "+form+") |", quantile(vs, 2), slices.Min(vs), slices.Max(vs))
		}
		table += "\n"
	}
	row("processor time, ms", "%.0f", func(i int) float64 { return used[i] })
	row("memory, MB", "%.1f", func(i int) float64 { return memory(t, own[i].pid) / 1e6 })
	row("threads", "%.0f", func(i int) float64 { return float64(len(threadTimes(t, own[i].pid))) })
	net := x[len(x)-1]
	return table + fmt.Sprintf("| messages of it and to it | 0 | %.1f |\n| bytes of these | 0 | %.0f |\n", float64(net.messages())/pairs, float64(net.bytes())/pairs)
}
