package http

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	nats "github.com/nats-io/nats-server/v2/server"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// keepReplicas has servers keep what a fleet's do, each of it on so many.
func keepReplicas(t *testing.T, n *fleet.Network, replicas int) {
	t.Helper()
	b := fleet.DefaultBounds()
	b.EventsBytes, b.MapsBytes, b.Replicas = 64<<20, 64<<20, replicas
	for ctx := patience.Context(t); ; {
		err := n.Prepare(ctx, b)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// defineScript leaves a script to the fleet, and waits until the daemons follow it.
func defineScript(t *testing.T, n *fleet.Network, ds []fleet.Daemon, name, text string) fleet.Definition {
	t.Helper()
	ctx := patience.Context(t)
	body, err := json.Marshal(api.Definition{Script: &api.RunScript{Script: text}})
	if err != nil {
		t.Fatal(err)
	}
	def, x, err := n.Define(ctx, fleet.Definition{Name: name}, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		awaitFollowed(t, n, d, x.Revision, 1)
	}
	return def
}

// awaitFollowed waits until a daemon has followed the definitions so far, and has so many.
func awaitFollowed(t *testing.T, n *fleet.Network, d fleet.Daemon, revision uint64, want int) {
	t.Helper()
	ctx, c := patience.Context(t), reach(t, n, d)
	for {
		st, err := c.Fleet(ctx, revision)
		if err != nil {
			t.Fatalf("%s: %v", d.Name, err)
		}
		if st.Revision < revision {
			continue
		}
		for _, x := range st.Definitions {
			if x.Error != nil {
				t.Fatalf("%s: %v", d.Name, x.Error)
			}
		}
		if len(st.Definitions) != want {
			t.Fatalf("%s: %d definitions, want %d", d.Name, len(st.Definitions), want)
		}
		return
	}
}

// kept is what a fleet's servers have of a definition.
type kept struct {
	heads  map[string]fleet.Head // of the last maps, by daemon
	final  int                   // of these are the last ones
	total  script.Total
	events map[string]uint64 // that can be read, by daemon
	lines  map[string]int    // printed, with the daemon's name
}

// readKept reads it as often as it takes to be what is wanted.
func readKept(t *testing.T, n *fleet.Network, def fleet.Definition, wanted func(*kept) bool) *kept {
	t.Helper()
	ctx := patience.Context(t)
	for {
		k, err := readOnce(ctx, n, def)
		if err == nil && wanted(k) {
			return k
		}
		if ctx.Err() != nil {
			t.Fatalf("%v; %+v", err, k)
		}
		time.Sleep(10 * time.Millisecond) // another question to the servers
	}
}

func readOnce(ctx context.Context, n *fleet.Network, def fleet.Definition) (*kept, error) {
	k := &kept{heads: map[string]fleet.Head{}, events: map[string]uint64{}, lines: map[string]int{}}
	last := map[string][]byte{}
	if err := n.Snapshots(ctx, def.ID, func(h fleet.Head, records []byte) error {
		if h.Seq > k.heads[h.Daemon].Seq {
			k.heads[h.Daemon], last[h.Daemon] = h, bytes.Clone(records)
		}
		return nil
	}); err != nil {
		return k, err
	}
	for _, daemon := range slices.Sorted(maps.Keys(last)) {
		if k.heads[daemon].Final {
			k.final++
		}
		for line := range bytes.Lines(last[daemon]) {
			var m script.MapState
			if err := json.Unmarshal(line, &m); err != nil {
				return k, err
			}
			k.total.Add(daemon, []script.MapState{m})
		}
	}
	return k, n.Events(ctx, def.ID, func(h fleet.Head, records []byte) error {
		k.events[h.Daemon] += h.To - h.From
		for line := range bytes.Lines(records) {
			if rec, err := api.ReadRecord(line); err == nil && rec.Type == api.RecordOutput {
				var o api.Output
				if err := json.Unmarshal(rec.Data, &o); err != nil {
					return err
				}
				for text := range strings.Lines(o.Text) {
					k.lines[h.Daemon+" "+strings.TrimSpace(text)]++
				}
			}
		}
		return nil
	})
}

// sums are the maps as they are printed.
func (k *kept) sums() string {
	var text strings.Builder
	k.total.Print(false, func(s string) { text.WriteString(s) })
	return text.String()
}

// line carries bytes between daemons and a server, and can be cut.
type line struct {
	net.Listener
	to string

	mu    sync.Mutex
	isCut bool
	conns map[net.Conn]bool
}

func newLine(t *testing.T, to string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &line{Listener: l, to: to, conns: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.carry(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.set(true)
		all.Wait()
	})
	return p
}

// set cuts the line, and what goes over it, or mends it.
func (p *line) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCut = cut; cut {
		for c := range p.conns {
			c.Close()
		}
		clear(p.conns)
	}
}

// hold notes a connection, unless the line is cut.
func (p *line) hold(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCut {
		c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *line) carry(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", p.to)
	if err != nil || !p.hold(c) {
		return
	}
	defer s.Close()
	if !p.hold(s) {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(s, c)
		s.Close()
	}()
	_, _ = io.Copy(c, s)
	c.Close()
	<-back
}

// fleetSize is how many servers and daemons TestFleetKept has, and how long a line is cut: few, or as make fleet says.
func fleetSize(t *testing.T) (servers, daemons int, cut time.Duration) {
	t.Helper()
	text := os.Getenv("GUESTPROBE_FLEET")
	n, err := strconv.Atoi(cmp.Or(text, "0"))
	switch {
	case err != nil || n < 0 || n > 0 && n < 3:
		t.Fatalf("GUESTPROBE_FLEET=%s: want a number of daemons, at least 3", text)
	case n > 0:
		return 3, n, 30 * time.Second
	}
	return 1, 3, 0
}

// TestFleetKept: what daemons print and count for a script of the fleet is kept once, whatever becomes of a server and of their lines: that of
// vm0 is cut for a while, vm1 is gone for good. All that it waits for is an event.
func TestFleetKept(t *testing.T) {
	const half = 200
	servers, daemons, pause := fleetSize(t)
	c := keepers(t, servers)
	away := map[string]*line{"vm0": newLine(t, c.addr(servers-1)), "vm1": newLine(t, c.addr(servers-1))}
	hs, n, ds := startFleet(t, daemons, c.urls, func(o *options) {
		if l := away[o.fleetName]; l != nil {
			o.fleet.URL = "nats://" + l.Addr().String() // which knows no way around it
		}
		o.fleetMaps = time.Duration(daemons) * 10 * time.Millisecond
	})
	keepReplicas(t, n, servers)
	def := defineScript(t, n, ds, "counts", `kprobe:do_fork { @n = count(); @by[arg0 % 2] = count(); @h = hist(arg0); printf("%d\n", arg0); }`)
	hits := func(from int, left ...string) {
		for _, d := range ds {
			for i := range half {
				if !slices.Contains(left, d.Name) {
					hs[d.Name].g.hit(t, i%2, "do_fork", 0, func(r *probe.Regs) { r.RDI = uint64(from + i) })
				}
			}
		}
	}
	hits(0)
	sums := func(all uint64) []string {
		return []string{fmt.Sprintf("@n: %d\n", all), fmt.Sprintf("@by[0]: %d\n", all/2), fmt.Sprintf("@by[1]: %d\n", all/2)}
	}
	readKept(t, n, def, func(k *kept) bool {
		if h := k.heads["vm1"]; h.Hits != half || k.events["vm1"]+h.Lost != half {
			return false
		}
		text := k.sums()
		return !slices.ContainsFunc(sums(uint64(daemons*half)), func(s string) bool { return !strings.Contains(text, s) })
	})
	away["vm1"].set(true)
	away["vm0"].set(true)
	c.end(0)
	hits(half, "vm1")
	time.Sleep(pause) // it is how long the line is cut, and nothing is waited for
	if servers == 1 {
		c.begin(t, 0)
	}
	away["vm0"].set(false)
	for ctx := patience.Context(t); ; {
		_, _, err := n.Withdraw(ctx, "counts")
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	k := readKept(t, n, def, func(k *kept) bool { return k.final == daemons-1 })
	lost, all := uint64(0), uint64(0)
	for _, d := range ds {
		h, want := k.heads[d.Name], uint64(2*half)
		if d.Name == "vm1" { // what it has printed may be later than its last maps
			want, h.To = half, k.events["vm1"]
		}
		if h.Hits != want || h.Missed != 0 || h.To+h.Lost != want || k.events[d.Name] != h.To {
			t.Errorf("%s: %d hits, %d missed, %d printed, of which %d are kept, and %d lost; want %d", h.Daemon, h.Hits, h.Missed, h.To, k.events[d.Name], h.Lost, want)
		}
		lost, all = lost+h.Lost, all+want
	}
	if len(k.heads) != daemons || uint64(len(k.lines))+lost != all {
		t.Errorf("%d runs, %d lines that differ and %d lost; want %d and %d", len(k.heads), len(k.lines), lost, daemons, all)
	}
	for line, n := range k.lines {
		if n != 1 {
			t.Errorf("%q has come %d times", line, n)
		}
	}
	for _, want := range sums(all) {
		if !strings.Contains(k.sums(), want) {
			t.Errorf("the sums are\n%s, want %q", k.sums(), want)
		}
	}
}

// TestFleetKeepsCounts: a daemon that comes later runs what was left to the fleet, and the last counts of one that is gone stay.
func TestFleetKeepsCounts(t *testing.T) {
	c := keepers(t, 1)
	hs, n, ds := startFleet(t, 1, c.urls, nil)
	keepReplicas(t, n, 1)
	def := defineScript(t, n, ds, "counts", `kprobe:do_fork { @n = count(); @last = arg0; }`)
	ctx, cancel := context.WithCancel(patience.Context(t))
	defer cancel()
	come, over := make(chan fleet.Daemon), make(chan error, 1)
	go func() {
		over <- n.Arrivals(ctx, fleet.Look{Quiet: 10 * time.Millisecond}, ds, func(d fleet.Daemon) { come <- d })
	}()
	late := serveFake(t, func(o *options) { o.fleet.URL, o.fleetName = c.urls[0], "late" })
	d := <-come
	cancel()
	if err := <-over; err != nil || d.Name != "late" {
		t.Fatalf("%s has come: %v", d.Name, err)
	}
	x, err := n.Definitions(patience.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	awaitFollowed(t, n, d, x.Revision, 1)
	for i := range 10 {
		hs[ds[0].Name].g.hit(t, 0, "do_fork", 0, func(r *probe.Regs) { r.RDI = uint64(i) })
		late.g.hit(t, 0, "do_fork", 0, func(r *probe.Regs) { r.RDI = uint64(i) })
	}
	late.stop()
	if _, _, err := n.Withdraw(patience.Context(t), "counts"); err != nil {
		t.Fatal(err)
	}
	k := readKept(t, n, def, func(k *kept) bool { return k.final == 2 })
	if want := "@last[late]: 9\n@last[vm0]: 9\n@n: 20\n"; strings.ReplaceAll(k.sums(), "\n\n", "\n") != "\n"+want && strings.ReplaceAll(k.sums(), "\n\n", "\n") != want {
		t.Errorf("the sums are\n%s, want\n%s", k.sums(), want)
	}
}

// keptServers are servers that keep what a fleet's do, each on a loopback address of its own: its ports are nobody else's, also when it begins again.
type keptServers struct {
	opts    []*nats.Options
	running []*nats.Server
	urls    []string
}

func keepers(t *testing.T, n int) *keptServers {
	t.Helper()
	c := &keptServers{running: make([]*nats.Server, n)}
	for i := range n {
		host := ownAddress()
		o := &nats.Options{
			Host: host, Port: 4222, ServerName: fmt.Sprint("s", i), NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		}
		if n > 1 { // nobody is told of other servers than he knows
			o.Cluster = nats.ClusterOpts{Name: "fleet", Host: host, Port: 6222, NoAdvertise: true}
		}
		c.opts, c.urls = append(c.opts, o), append(c.urls, fmt.Sprintf("nats://%s:4222", host))
	}
	for _, o := range c.opts {
		for _, other := range c.opts {
			if n > 1 {
				o.Routes = append(o.Routes, nats.RoutesFromStr("nats://"+other.Host+":6222")...)
			}
		}
	}
	for i := range n {
		c.begin(t, i)
	}
	t.Cleanup(func() {
		for i := range n {
			c.end(i)
		}
	})
	for _, s := range c.running {
		for !s.ReadyForConnections(time.Second) {
			if patience.Context(t).Err() != nil {
				t.Fatal("a server does not begin")
			}
		}
	}
	return c
}

// ownAddress is a loopback address that nobody else is likely to have.
func ownAddress() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(256), 1+rand.N(254))
}

func (c *keptServers) addr(i int) string { return strings.TrimPrefix(c.urls[i], "nats://") }

// begin starts a server, with what it has kept.
func (c *keptServers) begin(t *testing.T, i int) {
	t.Helper()
	s, err := nats.NewServer(c.opts[i].Clone())
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	c.running[i] = s
}

// end ends a server, if it runs.
func (c *keptServers) end(i int) {
	if s := c.running[i]; s != nil {
		s.Shutdown()
		s.WaitForShutdown()
		c.running[i] = nil
	}
}
