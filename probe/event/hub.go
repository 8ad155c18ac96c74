package event

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// HubOptions sizes a Hub. The zero value of each field stands for its default.
type HubOptions struct {
	// RingBytes is the size of each vCPU's ring, rounded up to a power of two;
	// default 1 MiB. A record of more than half of it can be lost in an empty ring.
	RingBytes int
	// Window bounds how long the hub holds an event back to keep it in order, from its
	// time on: while a vCPU's thread is stopped in the middle of making an earlier one, or
	// its Feed may still have one; default 30 ms. Otherwise nothing is held back.
	Window time.Duration
	// Coalesce bounds how often a vCPU's thread pays for waking the hub's
	// goroutine, several microseconds each: once awake, the hub asks to be
	// woken again only after so long without an event, and looks at the rings
	// when it is over. Events reach subscribers later by at most this; default
	// 1 ms, negative for none.
	Coalesce time.Duration
	// Clock returns monotonic nanoseconds; default CLOCK_MONOTONIC of the
	// host. It is called on the vCPUs' threads.
	Clock func() int64
}

// Feed brings events from elsewhere: out of rings that a guest fills, which cannot
// wake anyone.
type Feed interface {
	// Poll puts (Source.Put) what has come, and returns how much, the time before which
	// nothing more will come, and whether there is anything to be polled. The hub's
	// goroutine calls it, now and then while there is.
	Poll() (n int, sure int64, active bool)
}

// How often a Feed is polled: soon after there was something, or while events wait for
// it, and ever less often while there is nothing.
const (
	minPoll = time.Millisecond
	maxPoll = 16 * time.Millisecond
)

// Hub takes events out of the vCPUs' rings, and those of its Feed, in the order of their
// times and hands them to subscribers. One goroutine does all of it; Close ends it.
type Hub struct {
	clock    func() int64
	window   time.Duration
	coalesce time.Duration
	cpus     int
	prods    []*ring // the vCPUs'
	feed     atomic.Pointer[Feed]

	held      held         // the goroutine's own
	heldBytes atomic.Int64 // of held and inbox together

	putMu    sync.Mutex  // guards what follows
	inbox    []heldEvent // of Put, on their way to held
	number   uint64      // of the latest
	putArena arena

	nap     atomic.Uint32 // what the goroutine waits for, or is about to
	wake    chan struct{} // capacity 1
	closing atomic.Bool   // nothing is stored any more
	done    chan struct{} // the goroutine has ended

	mu        sync.Mutex // guards all below
	sources   map[uint32]*Source
	lastID    uint32
	closed    []*Source // still in sources
	gone      []Counts  // per vCPU, of sources that are no more in sources
	subs      []*Subscription
	waiters   []waiter
	ended     bool
	seq       uint64
	lastTime  int64
	reordered uint64
	arena     arena
}

// What the hub's goroutine waits for. Whoever ends a wait sets awake first, so
// that it is ended once.
const (
	awake   = iota
	resting // for the time to go by, or a ring to be half full
	asleep  // for any event
)

// NewHub returns a running hub for the given number of vCPUs.
func NewHub(cpus int, opt HubOptions) *Hub {
	h := newHub(cpus, opt)
	go h.run()
	return h
}

func newHub(cpus int, opt HubOptions) *Hub {
	if opt.RingBytes <= 0 {
		opt.RingBytes = 1 << 20
	}
	if opt.Window <= 0 {
		opt.Window = 30 * time.Millisecond
	}
	if opt.Coalesce == 0 {
		opt.Coalesce = time.Millisecond
	}
	if opt.Clock == nil {
		opt.Clock = monotonic()
	}
	h := &Hub{
		clock: opt.Clock, window: opt.Window, coalesce: opt.Coalesce,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		sources: make(map[uint32]*Source), gone: make([]Counts, cpus), cpus: cpus,
	}
	size := 1 << bits.Len(uint(max(opt.RingBytes, 256)-1))
	for range cpus {
		h.prods = append(h.prods, &ring{buf: make([]byte, size)})
	}
	return h
}

// monotonic returns a clock of CLOCK_MONOTONIC. The runtime reads that clock
// without a system call; it only does not tell its origin.
func monotonic() func() int64 {
	var ts unix.Timespec
	base := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("BUG: event: CLOCK_MONOTONIC: " + err.Error()) // POSIX has it; no argument can be wrong
	}
	origin := ts.Nano()
	return func() int64 { return origin + int64(time.Since(base)) }
}

// Now returns the time on the clock of the events.
func (h *Hub) Now() int64 { return h.clock() }

// Source adds a producer of events.
func (h *Hub) Source(f *Layout, owner any) *Source {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ok := false; !ok; ok = h.lastID != 0 && h.sources[h.lastID] == nil {
		h.lastID = (h.lastID + 1) & maxSource
	}
	s := &Source{Layout: f, Owner: owner, hub: h, id: h.lastID, cpus: make([]cpuCounts, h.cpus)}
	h.sources[s.id] = s
	return s
}

// retire takes out of the table those of the first n closed sources that are
// drained. Since they were closed every ring has been seen idle, so they have
// no event any more. The mutex is held.
func (h *Hub) retire(n int) {
	h.closed = slices.DeleteFunc(h.closed, func(s *Source) bool {
		if n--; n < 0 || s.drained != s.Counts().Stored {
			return false
		}
		delete(h.sources, s.id)
		for i := range h.gone {
			h.gone[i].add(s.CPUCounts(i))
		}
		return true
	})
}

// HubCounts are the counts of a hub over its life.
type HubCounts struct {
	CPUs      []Counts // by vCPU, of all sources that there ever were
	Reordered uint64   // events handed on after one with a later time
}

// Total returns the sum over the vCPUs.
func (c HubCounts) Total() (sum Counts) {
	for _, n := range c.CPUs {
		sum.add(n)
	}
	return sum
}

// Counts returns the counts so far.
func (h *Hub) Counts() HubCounts {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := HubCounts{CPUs: append([]Counts(nil), h.gone...), Reordered: h.reordered}
	for _, s := range h.sources {
		for i := range c.CPUs {
			c.CPUs[i].add(s.CPUCounts(i))
		}
	}
	return c
}

// Close stores no more events (what is emitted from now on is counted as
// lost), hands on all that are stored, ends every subscription and returns the
// final counts. It may be called again.
func (h *Hub) Close() HubCounts {
	h.closing.Store(true)
	h.kick()
	<-h.done
	return h.Counts()
}

// endEvent says that no event is being made any more.
func (h *Hub) endEvent(p *ring) {
	p.busy.Store(false)
	h.wakeIfAsked(p.full())
}

// wakeIfAsked wakes the hub where it has asked for that: asleep for any event, and resting
// when something is full.
//
// The hub sets nap before it looks at the rings for the last time, and the ring was
// changed before nap is read: one of the two sees the other (Go's atomics are
// sequentially consistent).
func (h *Hub) wakeIfAsked(full bool) {
	if nap := h.nap.Load(); nap == asleep || nap == resting && full {
		if h.nap.CompareAndSwap(nap, awake) {
			h.kick()
		}
	}
}

// SetFeed sets what events come from beside the vCPUs' threads.
func (h *Hub) SetFeed(f Feed) { h.feed.Store(&f) }

// Wake has the Feed polled soon. It may be called from any goroutine, and never blocks.
func (h *Hub) Wake() { h.kick() }

// kick ends whatever the hub's goroutine waits for, now or next. It never
// blocks.
func (h *Hub) kick() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// arena is memory of which records are cut off the front.
type arena []byte

// take returns n bytes that are never given out again.
func (a *arena) take(n int) []byte {
	// Small, because one event that a slow reader holds keeps the whole chunk.
	const chunk = 4 << 10
	if n > len(*a) {
		*a = make([]byte, max(chunk, n))
	}
	b := (*a)[:n:n]
	*a = (*a)[n:]
	return b
}
