package http

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// records calls each with what comes of a stream until its end, which it returns.
func records(h *harness, s *remote.Stream, each func(api.Record)) api.End {
	for {
		rec, err := s.Next()
		if err != nil {
			h.Fatal(err)
		}
		if rec.Type == api.RecordEnd {
			return decode[api.End](h, rec)
		}
		each(rec)
	}
}

// addUp adds maps of a daemon, as they were sent, and returns how many elements they have.
func addUp(h *harness, total *script.Total, name string, parts []json.RawMessage) (elements int) {
	for _, part := range parts {
		var states []script.MapState
		if err := json.Unmarshal(part, &states); err != nil {
			h.Fatal(err)
		}
		for _, m := range states {
			elements += len(m.Elements)
		}
		total.Add(name, states)
	}
	return elements
}

// maps measures a script whose maps have so many keys in each daemon.
func (f *fleetCost) maps(keys int) {
	var mu sync.Mutex
	last := map[string][]json.RawMessage{}
	var begun, full, over sync.WaitGroup
	begun.Add(len(f.ds))
	full.Add(len(f.ds))
	ctx, end := context.WithCancel(patience.Context(f.t))
	defer end()
	over.Go(func() {
		f.forEachDaemon(len(f.ds), func(d fleet.Daemon, h *harness, c *remote.Client) {
			s, err := c.RunScript(h.ctx, api.RunScript{Script: `kprobe:do_fork { @n = count(); @by[arg0] = count(); }`, Data: true})
			if err != nil {
				h.Fatal(err)
			}
			defer s.Close()
			start := next[api.Start](h, s, api.RecordStart)
			defer context.AfterFunc(ctx, func() { _ = c.EndStream(h.ctx, start.Stream) })() // an error leaves it going, until the test's time is over
			begun.Done()
			filled := sync.OnceFunc(full.Done)
			var parts []json.RawMessage
			records(h, s, func(rec api.Record) {
				if rec.Type != api.RecordMaps {
					return
				}
				m := decode[api.ScriptMaps](h, rec)
				if parts = append(parts, m.Maps); m.More {
					return
				}
				if addUp(h, &script.Total{}, d.Name, parts) == keys+1 {
					mu.Lock()
					last[d.Name] = parts
					mu.Unlock()
					filled()
				}
				parts = nil
			})
		})
	})
	begun.Wait()
	for _, h := range f.hs {
		for k := range keys {
			h.g.hit(f.t, 0, "do_fork", 0, func(r *probe.Regs) { r.RDI = uint64(k) })
		}
	}
	full.Wait()
	before, began := f.s.traffic("test"), time.Now()
	time.Sleep(mapsFor) // is what is measured
	x, took := f.s.traffic("test").sub(before), time.Since(began).Seconds()
	end()
	over.Wait()
	var merge []float64
	for range 5 {
		began := time.Now()
		var total script.Total
		for _, name := range slices.Sorted(maps.Keys(last)) {
			addUp(f.hs[name], &total, name, last[name])
		}
		total.Print(false, func(string) {})
		merge = append(merge, time.Since(began).Seconds()*1e3)
	}
	of := fmt.Sprintf("`run`, %d keys in each daemon: ", keys)
	f.put(of+"messages to the client each second", linear, 0, float64(x.got)/took)
	f.put(of+"kB to the client each second", linear, 1, float64(x.gotBytes)/took/1e3)
	f.put(of+"adding and printing all of them once, ms", linear, 1, quantile(merge, 2))
}

// events measures hits of all daemons that come to one client in the order of time, and wait for it where there are more than room of a daemon.
func (f *fleetCost) events(how string, room int) {
	hits := allEvents / len(f.ds)
	var mu sync.Mutex
	var seen, lost, emitted uint64
	order := fleet.NewOrder(250*time.Millisecond, func(api.Hit, bool) error { // called by one at a time
		emitted++
		return nil
	})
	var begun sync.WaitGroup
	begun.Add(len(f.ds))
	before := f.s.traffic("test")
	var first, last time.Time
	f.forEachDaemon(len(f.ds), func(d fleet.Daemon, h *harness, c *remote.Client) {
		order.Begin(d.Name)
		defer func() { _ = order.End(d.Name) }() // emit has no error
		s, err := c.Events(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:e do_fork n=%di:u64"}}})
		if err != nil {
			h.Fatal(err)
		}
		defer s.Close()
		start := next[api.Start](h, s, api.RecordStart)
		begun.Done()
		begun.Wait()
		began, places, made := time.Now(), make(chan struct{}, room), make(chan time.Time, 1)
		go func() {
			for i := range hits {
				places <- struct{}{}
				h.g.hit(f.t, i%2, "do_fork", start.Probes[0].Offset, func(r *probe.Regs) { r.RDI = uint64(i) })
			}
			made <- time.Now()
			_ = c.EndStream(h.ctx, start.Stream) // an error leaves it going, until the test's time is over
		}()
		mine := uint64(0)
		e := records(h, s, func(rec api.Record) {
			switch rec.Type {
			case api.RecordHit:
				hit := decode[api.Hit](h, rec)
				_ = order.Put(d.Name, start.Epoch.UnixNano()+hit.TimeNS, hit) // as above
				mine++
				<-places
			case api.RecordLost:
				for range decode[api.Lost](h, rec).Lost {
					<-places
				}
			}
		})
		if e.Delivered != mine || e.Delivered+e.Lost != uint64(hits) || e.Probes[0].Stats.Hits != uint64(hits) {
			f.t.Errorf("%s: %d delivered, %d lost, %d hits, %d seen; want %d", d.Name, e.Delivered, e.Lost, e.Probes[0].Stats.Hits, mine, hits)
		}
		mu.Lock()
		defer mu.Unlock()
		if seen, lost = seen+mine, lost+e.Lost; first.IsZero() || began.Before(first) {
			first = began
		}
		if at := <-made; at.After(last) {
			last = at
		}
	})
	took := time.Since(first).Seconds()
	if _, err := order.Close(); err != nil || emitted != seen {
		f.t.Errorf("%d of %d are in order: %v", emitted, seen, err)
	}
	f.rate("`trace`, hits "+how, "come", hits, last.Sub(first), seen, took, lost, f.s.traffic("test").sub(before).gotBytes)
}

// rate puts what has become of so many hits of each daemon.
func (f *fleetCost) rate(of, how string, hits int, made time.Duration, events uint64, took float64, lost uint64, bytes int64) {
	all := float64(hits * len(f.ds))
	f.put(of+": hits each second", bound, 0, all/made.Seconds())
	f.put(of+": events that "+how+" each second", bound, 0, float64(events)/took)
	f.put(of+": lost, and counted, %", bound, 1, 100*float64(lost)/all)
	f.put(of+": bytes of an event", constant, 0, float64(bytes)/float64(max(1, events)))
}

// measurePublished measures what a script that is left to the fleet prints.
func (f *fleetCost) measurePublished() {
	hits := allEvents / len(f.ds)
	def := defineScript(f.t, f.n, f.ds, "prints", `kprobe:do_fork { printf("%d\n", arg0); }`)
	before, began := f.s.traffic("guestprobed"), time.Now()
	var wg sync.WaitGroup
	for _, h := range f.hs {
		wg.Go(func() {
			for i := range hits {
				h.g.hit(f.t, i%2, "do_fork", 0, func(r *probe.Regs) { r.RDI = uint64(i) })
			}
		})
	}
	wg.Wait()
	made, ctx := time.Since(began), patience.Context(f.t)
	if _, _, err := f.n.Withdraw(ctx, "prints"); err != nil {
		f.t.Fatal(err)
	}
	for final := 0; final < len(f.ds); time.Sleep(20 * time.Millisecond) { // until another question to the server
		final = 0
		if err := f.n.Snapshots(ctx, def.ID, func(h fleet.Head, _ []byte) error {
			if h.Final { // it is behind all events
				final++
			}
			return nil
		}); err != nil {
			f.t.Fatal(err)
		}
	}
	took, x := time.Since(began).Seconds(), f.s.traffic("guestprobed").sub(before)
	k, err := readOnce(ctx, f.n, def)
	if err != nil {
		f.t.Fatal(err)
	}
	kept, lost := uint64(0), uint64(0)
	for daemon, h := range k.heads {
		if h.Hits != uint64(hits) || h.To+h.Lost != h.Hits {
			f.t.Errorf("%s: %d hits, %d printed, %d lost; want %d", daemon, h.Hits, h.To, h.Lost, hits)
		}
		kept, lost = kept+k.events[daemon], lost+h.Lost+h.To-k.events[daemon]
	}
	if all := uint64(hits * len(f.ds)); kept+lost != all || uint64(len(k.lines)) != kept {
		f.t.Errorf("%d kept, %d lines, %d lost; want %d", kept, len(k.lines), lost, all)
	}
	f.rate("`run --detach`, hits at once", "are kept", hits, made, kept, took, lost, x.sentBytes)
}
