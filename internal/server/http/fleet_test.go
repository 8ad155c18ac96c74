package http

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	nats "github.com/nats-io/nats-server/v2/server"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

var fleetDaemons = flag.Int("fleet-daemons", 6, "how many daemons tests of a fleet have")

// cluster starts servers that know of each other, and returns them and the address of all.
func cluster(t *testing.T, n int) (ss []*nats.Server, urls []string) {
	t.Helper()
	var routes []*url.URL
	for i := range n {
		s, err := nats.NewServer(&nats.Options{
			Host: "127.0.0.1", Port: nats.RANDOM_PORT, ServerName: fmt.Sprint("s", i), NoSigs: true, NoLog: true, Routes: routes,
			Cluster: nats.ClusterOpts{Name: "fleet", Host: "127.0.0.1", Port: nats.RANDOM_PORT},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		for !s.ReadyForConnections(time.Second) {
			if patience.Context(t).Err() != nil {
				t.Fatal("a server does not begin")
			}
		}
		routes = append(routes, &url.URL{Scheme: "nats", Host: s.ClusterAddr().String()})
		ss, urls = append(ss, s), append(urls, s.ClientURL())
	}
	return ss, urls
}

// startFleet starts daemons on fake guests, whose first servers are different ones, and returns them by name, and a network
// to reach them by.
func startFleet(t *testing.T, n int, urls []string, change func(*options)) (map[string]*harness, *fleet.Network, []fleet.Daemon) {
	t.Helper()
	hs := map[string]*harness{}
	for i := range n {
		name := fmt.Sprint("vm", i)
		hs[name] = serveFake(t, func(o *options) {
			k := i % len(urls)
			o.fleet.URL, o.fleetName = strings.Join(append(append([]string{}, urls[k:]...), urls[:k]...), ","), name
			if change != nil {
				change(o)
			}
		})
	}
	ctx := patience.Context(t)
	net, err := fleet.Connect(ctx, fleet.Address{URL: urls[len(urls)-1]}, "test", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(net.Close)
	ds, err := net.Find(ctx, fleet.Look{Expect: n, Quiet: 100 * time.Millisecond})
	if err != nil || len(ds) != n {
		t.Fatalf("%d daemons, %v; want %d", len(ds), err, n)
	}
	return hs, net, ds
}

// reach returns a client of a daemon.
func reach(t *testing.T, n *fleet.Network, d fleet.Daemon) *remote.Client {
	c := remote.NewWithDial(d.Name, func(ctx context.Context) (net.Conn, error) { return n.Dial(ctx, d, 64<<10) }, func() {})
	t.Cleanup(c.Close)
	return c
}

// TestFleetServerEnds: a server of a cluster that ends loses nothing of what daemons send, and doubles nothing.
func TestFleetServerEnds(t *testing.T) {
	const half = 150
	ss, urls := cluster(t, 3)
	hs, net, ds := startFleet(t, *fleetDaemons, urls, nil)
	var open, gone, over sync.WaitGroup
	open.Add(len(ds))
	gone.Add(1)
	for _, d := range ds {
		h, c := hs[d.Name], reach(t, net, d)
		over.Go(func() {
			opened := sync.OnceFunc(open.Done)
			defer opened()
			s, err := c.Events(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:e do_fork n=%di:u64"}}})
			if err != nil {
				t.Errorf("%s: %v", d.Name, err)
				return
			}
			defer s.Close()
			rec, err := s.Next()
			if err != nil {
				t.Errorf("%s: %v", d.Name, err)
				return
			}
			start := decode[api.Start](h, rec)
			hit := func(i int) {
				h.g.hit(t, i%2, "do_fork", start.Probes[0].Offset, func(r *probe.Regs) { r.RDI = uint64(i) })
			}
			for i := range half {
				hit(i)
			}
			opened()
			gone.Wait()
			for i := range half {
				hit(half + i)
			}
			seen := map[string]int{}
			for n := 0; n < 2*half; {
				rec, err := s.Next()
				if err != nil {
					t.Errorf("%s behind %d hits: %v", d.Name, n, err)
					return
				}
				if rec.Type == api.RecordHit {
					n++
					seen[fmt.Sprint(decode[api.Hit](h, rec).Args[0].Value)]++
				}
			}
			if err := c.EndStream(h.ctx, start.Stream); err != nil {
				t.Errorf("%s: %v", d.Name, err)
			}
			for {
				rec, err := s.Next()
				if err != nil {
					t.Errorf("%s: %v", d.Name, err)
					return
				}
				if rec.Type == api.RecordEnd {
					if end := decode[api.End](h, rec); end.Delivered != 2*half || end.Lost != 0 || end.Probes[0].Stats.Hits != 2*half || len(seen) != 2*half {
						t.Errorf("%s: %d delivered, %d lost, %d hits, %d seen; want %d", d.Name, end.Delivered, end.Lost, end.Probes[0].Stats.Hits, len(seen), 2*half)
					}
					return
				}
			}
		})
	}
	open.Wait()
	ss[0].Shutdown()
	gone.Done()
	over.Wait()
}

// TestFleetSlowReader: a stream over the fleet whose client does not read ends, and what did not come is counted.
func TestFleetSlowReader(t *testing.T) {
	const hits = 6000
	_, urls := cluster(t, 1)
	// So long may the daemon take to write that the stream has ended, too.
	hs, net, ds := startFleet(t, 1, urls, func(o *options) { o.stallTime = 2 * time.Second })
	h, c := hs[ds[0].Name], reach(t, net, ds[0])
	s, err := c.Events(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:e do_fork n=%di:u64", Regs: true}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	start := next[api.Start](h, s, api.RecordStart)
	for i := range hits {
		h.g.hit(t, i%2, "do_fork", start.Probes[0].Offset, nil)
	}
	h.awaitGone(0) // the stream has given up
	seen, end := uint64(0), api.End{}
	for end.Reason == "" {
		rec, err := s.Next()
		if err != nil {
			t.Fatalf("behind %d hits: %v", seen, err)
		}
		switch rec.Type {
		case api.RecordHit:
			seen++
		case api.RecordEnd:
			end = decode[api.End](h, rec)
		}
	}
	// On a slow machine the stream gives up before all hits were made: those behind its end are not its.
	if had := end.Probes[0].Stats.Hits; end.Reason != api.EndSlow || end.Delivered != seen || end.Delivered+end.Lost != had || had > hits || end.Lost == 0 {
		t.Errorf("%d hits have come; end %s: %d delivered, %d lost, want %d together", seen, end.Reason, end.Delivered, end.Lost, had)
	}
	if _, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
