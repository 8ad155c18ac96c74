package event

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hubClock is a hub that does not run by itself, with a clock that counts its calls.
type hubClock struct {
	*Hub
	t       *testing.T
	now     int64
	sub     *Subscription
	cursors []cursor
}

func newHubClock(t *testing.T) *hubClock {
	x := &hubClock{t: t}
	x.Hub = newHub(2, HubOptions{Clock: func() int64 { x.now++; return x.now }, Window: 1000})
	x.sub = x.Subscribe(nil, Queue{})
	x.cursors = make([]cursor, len(x.prods))
	return x
}

// checkPass makes a pass, and wants the events of these times, a late one with a minus.
func (x *hubClock) checkPass(sure int64, want outcome, times ...int64) {
	x.t.Helper()
	if out, _ := x.deliverDue(x.cursors, sure); out != want {
		x.t.Errorf("outcome %v, want %v", out, want)
	}
	for _, w := range times {
		if e, ok, _ := x.sub.TryNext(); !ok || e.Time != max(w, -w) || e.Late != (w < 0) {
			x.t.Errorf("got event %v of time %d, late %v, want time %d", ok, e.Time, e.Late, w)
		}
	}
	if e, ok, _ := x.sub.TryNext(); ok {
		x.t.Errorf("unexpected event of time %d", e.Time)
	}
}

// TestWaits makes the events of one vCPU wait for one that is being made on
// another, and lets the window end the wait.
func TestWaits(t *testing.T) {
	h := newHubClock(t)
	src := testSource(t, h.Hub, "e")
	const always = math.MaxInt64
	h.checkPass(always, drained) // the clock is at 1

	src.Begin(1)
	early := h.clock() // 2
	emit(src, 0, 8)    // 3
	h.checkPass(always, waiting)
	finish(src, 1, early, 8)
	h.checkPass(always, drained, 2, 3)

	src.Begin(1)
	late := h.clock() // 6
	emit(src, 0, 8)   // 7
	h.now = 1005
	h.checkPass(always, waiting) // at 1006
	h.checkPass(always, drained, 7)
	finish(src, 1, late, 8)
	h.checkPass(always, drained, -6)
	if h.reordered != 1 || h.sub.Counts().Late != 1 {
		t.Errorf("reordered %d, late %d, want 1", h.reordered, h.sub.Counts().Late)
	}

	// An event younger than the pass may have one before it on another vCPU.
	src.Begin(0)
	finish(src, 0, 5000, 8)
	h.checkPass(always, later)
	h.now = 5000
	h.checkPass(always, drained, 5000)
}

// TestWaitsForFeed merges events passed to Put, in no order, with those of a vCPU:
// each waits for possible earlier ones, but no longer than the window.
func TestWaitsForFeed(t *testing.T) {
	h := newHubClock(t)
	src := testSource(t, h.Hub, "e")
	put := func(times ...int64) {
		for _, at := range times {
			src.Put(1, at, nil)
		}
	}
	h.now = 100
	put(30, 10, 20)
	src.Begin(0)
	finish(src, 0, 25, 8)
	h.checkPass(10, waiting)
	h.checkPass(26, waiting, 10, 20, 25)
	put(28, 27)
	h.checkPass(30, waiting, 27, 28)
	h.checkPass(31, drained, 30)

	put(90)
	h.now = 1089 // the pass is at 1090
	h.checkPass(50, drained, 90)
	put(80, 95)
	h.checkPass(95, waiting, -80)
	h.checkPass(math.MaxInt64, drained, 95)
	if n := h.heldBytes.Load(); n != 0 || len(h.held) != 0 {
		t.Errorf("%d bytes, %d events are left", n, len(h.held))
	}
}

// feedOf is a Feed that a test tells what to do.
type feedOf func() (n int, sure int64, active bool)

func (f feedOf) Poll() (n int, sure int64, active bool) { return f() }

// TestFeed wants what a feed has within the time of a poll, in order with what the
// vCPUs make, also where there is never anything that is sure.
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(1, HubOptions{})
		src := testSource(t, h, "e")
		sub := h.Subscribe(nil, Queue{})
		var mu sync.Mutex
		var come []int64
		sure := int64(math.MaxInt64)
		h.SetFeed(feedOf(func() (int, int64, bool) {
			mu.Lock()
			defer mu.Unlock()
			n := len(come)
			for _, at := range come {
				src.Put(0, at, []byte{1})
			}
			come = nil
			return n, min(sure, h.Now()), true
		}))
		h.Wake()
		wait := func(what string, n uint64, d time.Duration) {
			t.Helper()
			time.Sleep(d) // in the bubble's time
			synctest.Wait()
			if p := sub.Counts().Pending; p != n {
				t.Errorf("%s: %d events, want %d", what, p, n)
			}
		}
		wait("nothing", 0, time.Second)
		mu.Lock()
		come = append(come, h.Now())
		mu.Unlock()
		wait("put", 1, maxPoll+time.Millisecond)
		emit(src, 0, 8)
		wait("emitted", 2, minPoll)
		mu.Lock()
		sure = h.Now()
		mu.Unlock()
		time.Sleep(time.Millisecond)
		emit(src, 0, 8)
		wait("emitted where nothing is sure", 2, 29*time.Millisecond)
		wait("and the window is over", 3, 3*time.Millisecond)
		emit(src, 0, 8)
		mu.Lock()
		come = append(come, h.Now())
		mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := h.Sync(ctx); err != nil || sub.Counts().Pending != 5 {
			t.Errorf("synchronised: %v, %d events, want 5", err, sub.Counts().Pending)
		}
		if c := h.Close(); c.Reordered != 0 {
			t.Errorf("%d out of order", c.Reordered)
		}
	})
}

// TestSyncOfEarlyClock: Sync waits for what the feed had when it was called, also where the clock of who made it is before the hub's, and
// the poll takes its time.
func TestSyncOfEarlyClock(t *testing.T) {
	for _, early := range []time.Duration{0, time.Microsecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			h := NewHub(1, HubOptions{})
			src := testSource(t, h, "e")
			sub := h.Subscribe(nil, Queue{})
			var come atomic.Bool
			h.SetFeed(feedOf(func() (n int, sure int64, active bool) {
				time.Sleep(time.Microsecond) // in the bubble's time
				if come.Swap(false) {
					src.Put(0, h.Now()+int64(early), []byte{1})
					n++
				}
				return n, h.Now() - int64(time.Millisecond), true
			}))
			h.Wake()
			for range 20 {
				come.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				err := h.Sync(ctx)
				cancel()
				if _, ok, _ := sub.TryNext(); err != nil || !ok {
					t.Errorf("%v: synchronised: %v, event %v", early, err, ok)
				}
				time.Sleep(time.Second)
			}
			h.Close()
		})
	}
}

// TestWindow wants an event although another vCPU's thread never finishes its
// own, and Close to wait for it.
func TestWindow(t *testing.T) {
	h := NewHub(2, HubOptions{Window: time.Nanosecond})
	src := testSource(t, h, "e")
	sub := h.Subscribe(nil, Queue{})
	src.Begin(1)
	time := h.clock()
	emit(src, 0, 8)
	if e, err := sub.Next(context.Background()); err != nil || e.CPU != 0 {
		t.Fatalf("got %+v, %v", e, err)
	}
	finish(src, 1, time, 8)
	if e, err := sub.Next(context.Background()); err != nil || e.CPU != 1 {
		t.Fatalf("got %+v, %v", e, err)
	}
	if c := h.Close(); c.Reordered != 1 {
		t.Errorf("reordered %d, want 1", c.Reordered)
	}
}
