package event

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// testSource returns a source whose events are made without an engine.
func testSource(t testing.TB, h *Hub, name string) *Source {
	return h.Source(compile(t, "p:"+name+" vfs_read %di", Options{}), nil)
}

// emit makes an event of n bytes on a vCPU, as a handler does.
func emit(s *Source, cpu, n int) bool {
	s.Begin(cpu)
	return finish(s, cpu, s.hub.clock(), n)
}

// finish ends what Begin has begun, with an event of that time.
func finish(s *Source, cpu int, time int64, n int) bool {
	defer s.End(cpu)
	rec := s.Reserve(cpu, recordHeader+n)
	if rec == nil {
		return false
	}
	le.PutUint64(rec[RecordTime:], uint64(time))
	le.PutUint32(rec[RecordMark:], s.Mark(AtPre))
	s.Submit(cpu, true)
	return true
}

func sum(c Counts) uint64 { return c.Stored + c.Lost }

// read reads all events up to the end of sub.
func read(t testing.TB, sub *Subscription) (all []Event) {
	for {
		e, err := sub.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Error(err)
			return all
		}
		all = append(all, e)
	}
}

// TestOrder has four vCPUs emit at the same time and wants the events in the
// order of their times, none missing.
func TestOrder(t *testing.T) {
	const cpus, each = 4, 5000
	for _, coalesce := range []time.Duration{-1, 0} {
		h := NewHub(cpus, HubOptions{Window: time.Hour, Coalesce: coalesce})
		src := testSource(t, h, "e")
		sub := h.Subscribe(nil, Queue{Events: cpus * each})
		var wg sync.WaitGroup
		for cpu := range cpus {
			wg.Go(func() {
				for range each {
					if !emit(src, cpu, 64) {
						t.Error("lost with room for all")
						return
					}
				}
			})
		}
		wg.Wait()
		counts := h.Close()
		all := read(t, sub)
		if len(all) != cpus*each || counts.Total() != (Counts{Stored: cpus * each}) || counts.Reordered != 0 {
			t.Errorf("coalesce %v: %d events, counts %+v", coalesce, len(all), counts)
		}
		for i := 1; i < len(all); i++ {
			if all[i].Time < all[i-1].Time || all[i].Seq != all[i-1].Seq+1 {
				t.Fatalf("event %d: time %d, seq %d after %d, %d", i, all[i].Time, all[i].Seq, all[i-1].Time, all[i-1].Seq)
			}
		}
	}
}

// TestAccounting floods small rings and small queues from several vCPUs, with
// subscribers that come, read slowly and go, and closes in the middle. Every
// event must be in exactly one count.
func TestAccounting(t *testing.T) {
	const cpus, each = 3, 20000
	h := NewHub(cpus, HubOptions{RingBytes: 4096, Coalesce: -1})
	sources := []*Source{testSource(t, h, "a"), testSource(t, h, "b")}
	onlyB := func(e Event) bool { return e.Source == sources[1] }
	allSub := h.Subscribe(nil, Queue{Events: 8})
	bSub := h.Subscribe(onlyB, Queue{Bytes: 512})

	var emitted [2][cpus]atomic.Uint64
	var producers, readers sync.WaitGroup
	half := make(chan struct{})
	for cpu := range cpus {
		producers.Go(func() {
			for i := range each {
				which := (i + cpu) % 2
				emitted[which][cpu].Add(1)
				emit(sources[which], cpu, i%200)
				if cpu == 0 && i == each/2 {
					close(half)
				}
			}
		})
	}
	got := make([]uint64, 2)
	for i, sub := range []*Subscription{allSub, bSub} {
		readers.Go(func() {
			lost := uint64(0)
			for _, e := range read(t, sub) {
				got[i]++
				lost += e.Lost
				if i == 1 && e.Source != sources[1] {
					t.Error("filter let something else through")
				}
			}
			if c := sub.Counts(); lost > c.Lost {
				t.Errorf("events announce %d lost, counts say %d", lost, c.Lost)
			}
		})
	}
	// A reader that goes away with a full queue.
	brief := h.Subscribe(nil, Queue{Events: 1})
	<-half
	c := brief.Close()
	if c.Pending != 0 || c.Delivered != 0 || c != brief.Close() {
		t.Errorf("closed subscription: %+v, then %+v", c, brief.Close())
	}
	counts := h.Close()
	readers.Wait()
	producers.Wait()

	for i, s := range sources {
		for cpu := range cpus {
			if n, want := sum(s.cpuCounts(cpu)), emitted[i][cpu].Load(); n != want {
				t.Errorf("source %d, cpu %d: stored + lost = %d, emitted %d", i, cpu, n, want)
			}
		}
	}
	final := h.Counts()
	if counts.Total().Stored != final.Total().Stored {
		t.Errorf("stored after Close: %d, then %d", counts.Total().Stored, final.Total().Stored)
	}
	if n := final.Total(); n.Lost == 0 || n.Stored == 0 || n.Stored != sources[0].Counts().Stored+sources[1].Counts().Stored {
		t.Errorf("totals %+v, sources %+v and %+v", n, sources[0].Counts(), sources[1].Counts())
	}
	for i, want := range []uint64{final.Total().Stored, sources[1].Counts().Stored} {
		c := []*Subscription{allSub, bSub}[i].Counts()
		if c.Delivered != got[i] || c.Pending != 0 || c.Delivered+c.Lost != want {
			t.Errorf("subscription %d: %+v, read %d, stored %d", i, c, got[i], want)
		}
	}
}

// TestCloseIsTheEnd: Close passes on everything that was stored, while producers
// continue.
func TestCloseIsTheEnd(t *testing.T) {
	for range 50 {
		h := NewHub(2, HubOptions{})
		src := testSource(t, h, "e")
		sub := h.Subscribe(nil, Queue{Events: 1 << 20})
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for cpu := range 2 {
			wg.Go(func() {
				for {
					emit(src, cpu, 16)
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		stored := h.Close().Total().Stored
		n := uint64(len(read(t, sub)))
		close(stop)
		wg.Wait()
		if n != stored || src.Counts().Stored != stored {
			t.Fatalf("delivered %d, stored %d at Close, %d in the end", n, stored, src.Counts().Stored)
		}
		if emit(src, 0, 16) {
			t.Fatal("stored after Close")
		}
	}
}

// TestCloseWaits for an event that is being made, on a thread that got past
// the check for closing before it was set.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(2, HubOptions{})
		src := testSource(t, h, "e")
		sub := h.Subscribe(nil, Queue{})
		src.Begin(1)
		rec := src.Reserve(1, recordHeader)
		closed := make(chan HubCounts)
		go func() { closed <- h.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("closed with an event in the making")
		default:
		}
		le.PutUint32(rec[RecordMark:], src.Mark(AtPre))
		src.Submit(1, true)
		src.End(1)
		if c := <-closed; c.Total().Stored != 1 || len(read(t, sub)) != 1 {
			t.Errorf("the event is missing: %+v", c)
		}
	})
}

func TestSubscribeOnClosedHub(t *testing.T) {
	h := NewHub(1, HubOptions{})
	h.Close()
	if c := h.Close(); c.Total() != (Counts{}) {
		t.Errorf("second Close: %+v", c)
	}
	sub := h.Subscribe(nil, Queue{})
	if _, err := sub.Next(context.Background()); !errors.Is(err, io.EOF) {
		t.Errorf("Next: %v, want EOF", err)
	}
}

func TestNextContext(t *testing.T) {
	h := NewHub(1, HubOptions{})
	defer h.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := h.Subscribe(nil, Queue{}).Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %v, want canceled", err)
	}
}

// TestSubscribeFromNow: events stored before are not delivered.
func TestSubscribeFromNow(t *testing.T) {
	h := newHub(2, HubOptions{}) // not running: everything stays in the rings
	src := testSource(t, h, "e")
	old := h.Subscribe(nil, Queue{})
	emit(src, 0, 1)
	emit(src, 1, 2)
	fresh := h.Subscribe(nil, Queue{})
	emit(src, 0, 3)
	go h.run()
	h.Close()
	if n := len(read(t, old)); n != 3 {
		t.Errorf("old subscription: %d events, want 3", n)
	}
	if all := read(t, fresh); len(all) != 1 || len(all[0].Payload()) != 3 {
		t.Errorf("fresh subscription: %+v, want the third event", all)
	}
}

// TestSourceClose wants a closed source to keep its counts and to leave the
// hub when its last event has been handed on.
func TestSourceClose(t *testing.T) {
	h := newHub(1, HubOptions{})
	a, b := testSource(t, h, "a"), testSource(t, h, "b")
	sub := h.Subscribe(nil, Queue{})
	emit(a, 0, 8)
	emit(b, 0, 8)
	a.Close()
	a.Close()
	if emit(a, 0, 8) {
		t.Error("a closed source stored")
	}
	go h.run()
	if e, err := sub.Next(context.Background()); err != nil || e.Source != a || !strings.HasPrefix(e.Source.String(), "kprobes/a#") {
		t.Fatalf("got %+v, %v", e, err)
	}
	c := h.Close()
	if len(h.sources) != 1 || h.sources[b.id] != b || len(h.closed) != 0 {
		t.Errorf("sources %v, closed %v: want b only", h.sources, h.closed)
	}
	if c.Total() != (Counts{Stored: 2, Lost: 1}) || a.Counts() != (Counts{Stored: 1, Lost: 1}) {
		t.Errorf("hub %+v, source %+v", c.Total(), a.Counts())
	}
}

// TestSourceCloseWaits for an event that got past the check for closed.
func TestSourceCloseWaits(t *testing.T) {
	h := newHub(1, HubOptions{})
	src := testSource(t, h, "e")
	sub := h.Subscribe(nil, Queue{})
	cursors := make([]cursor, len(h.prods))
	src.Begin(0)
	rec := src.Reserve(0, recordHeader)
	src.Close()
	h.deliverDue(cursors, math.MaxInt64)
	le.PutUint32(rec[RecordMark:], src.Mark(AtPre))
	src.Submit(0, true)
	src.End(0)
	h.deliverDue(cursors, math.MaxInt64)
	if e, ok, _ := sub.TryNext(); !ok || e.Source != src || len(h.sources) != 0 {
		t.Errorf("event %v of %v; %d sources left", ok, e.Source, len(h.sources))
	}
}

// TestRest: the hub rests after an event, events wait during the rest, and a ring
// that fills ends it at once.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(1, HubOptions{RingBytes: 4096, Coalesce: time.Hour})
		src := testSource(t, h, "e")
		sub := h.Subscribe(nil, Queue{})
		pending := func(when string, want uint64) {
			t.Helper()
			synctest.Wait()
			if n := sub.Counts().Pending; n != want {
				t.Errorf("%s: %d events, want %d", when, n, want)
			}
		}
		emit(src, 0, 40)
		pending("asleep", 1)
		for range 32 { // of 64 bytes each: half of the ring
			emit(src, 0, 40)
		}
		pending("resting", 1)
		emit(src, 0, 40)
		pending("resting with a ring half full", 34)
		emit(src, 0, 40)
		pending("resting again", 34)
		time.Sleep(time.Hour) // in the bubble's time
		pending("rested", 35)
		time.Sleep(time.Hour)
		emit(src, 0, 40)
		pending("asleep again", 36)
		h.Close()
	})
}

// TestSync: Sync ends the hub's rest, waits for events that are held back, and fails
// when its context ends.
func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(2, HubOptions{Coalesce: time.Hour, Window: time.Hour})
		src := testSource(t, h, "e")
		sub := h.Subscribe(nil, Queue{})
		for i := range 5 {
			emit(src, i%2, 8)
			if err := h.Sync(t.Context()); err != nil || sub.Counts().Pending != uint64(i+1) {
				t.Fatalf("%d events after %d: %v", sub.Counts().Pending, i+1, err)
			}
		}
		src.Begin(1)
		emit(src, 0, 8)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := h.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with an event held back: %v", err)
		}
		src.End(1)
		if err := h.Sync(t.Context()); err != nil || sub.Counts().Pending != 6 {
			t.Errorf("%d events, %v", sub.Counts().Pending, err)
		}
		h.Close()
		if len(h.waiters) != 0 {
			t.Errorf("%d waiters left", len(h.waiters))
		}
		if err := h.Sync(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestQueueMemory reads in step with the writer for long and wants the queue
// not to grow.
func TestQueueMemory(t *testing.T) {
	s := &Subscription{hub: newHub(0, HubOptions{}), limit: Queue{Events: 16, Bytes: 1000}, ready: make(chan struct{}, 1)}
	for i := range uint64(5000) {
		s.push(Event{Seq: i, Data: make([]byte, 10)})
		if i >= 8 {
			if e, ok, _ := s.TryNext(); !ok || e.Seq != i-8 {
				t.Fatalf("event %d: got %d", i-8, e.Seq)
			}
		}
	}
	if cap(s.queue) > 64 {
		t.Errorf("a queue of 9 events has room for %d", cap(s.queue))
	}
	for i := range 100 {
		s.push(Event{Seq: uint64(i), Data: make([]byte, 300)})
	}
	if c := s.Counts(); c.Pending != 11 || c.Lost != 97 {
		t.Errorf("byte limit: %+v, want 8+3 pending and 97 lost", c)
	}
	s.TryNext()
	s.push(Event{})
	for range 10 {
		if e, _, _ := s.TryNext(); e.Lost != 0 {
			t.Errorf("event %d: %d lost before it, want 0", e.Seq, e.Lost)
		}
	}
	if e, _, _ := s.TryNext(); e.Lost != 97 {
		t.Errorf("%d lost before the event behind the gap, want 97", e.Lost)
	}

	// What a reader that fell back once has needed is given back when it has read all.
	s = &Subscription{hub: newHub(0, HubOptions{}), limit: Queue{Events: 8192, Bytes: 1 << 20}, ready: make(chan struct{}, 1)}
	for i := range uint64(8192) {
		s.push(Event{Seq: i})
	}
	for i := range uint64(8192) {
		if e, ok, _ := s.TryNext(); !ok || e.Seq != i {
			t.Fatalf("event %d: got %d", i, e.Seq)
		}
	}
	if _, ok, _ := s.TryNext(); ok || cap(s.queue) > 1024 {
		t.Errorf("an empty queue has room for %d events", cap(s.queue))
	}
	s.push(Event{Seq: 1})
	if e, ok, _ := s.TryNext(); !ok || e.Seq != 1 {
		t.Errorf("then it has %+v, %v; want event 1", e, ok)
	}
}

// TestEmitAllocates nothing: clock, ring and wake-up together.
func TestEmitAllocates(t *testing.T) {
	h := NewHub(1, HubOptions{Coalesce: -1})
	src := testSource(t, h, "e")
	allocs := testing.AllocsPerRun(1000, func() { emit(src, 0, 40) })
	if c := h.Close().Total(); allocs != 0 || sum(c) != 1001 {
		t.Errorf("%v allocations per event, counts %+v", allocs, c)
	}
}
