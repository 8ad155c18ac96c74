package event

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// HubOptions sizes a Hub. The zero value of each field means its default.
type HubOptions struct {
	// RingBytes is the size of each vCPU's ring, rounded up to a power of two;
	// default 1 MiB. A record of more than half of it can be lost even if the ring is
	// empty.
	RingBytes int
	// Window bounds how long the hub holds an event back to keep events in order,
	// counted from the event's time: while a vCPU's thread is stopped in the middle
	// of making an earlier one, or its Feed may still have one; default 30 ms.
	// Otherwise no event is held back.
	Window time.Duration
	// Coalesce bounds how often a vCPU's thread pays for waking the hub's goroutine,
	// which costs several microseconds. Once awake, the hub checks the rings
	// periodically, and asks to be woken again only after this time without an event.
	// Events reach subscribers later by at most this time; default 1 ms, negative for
	// none.
	Coalesce time.Duration
	// Clock returns monotonic nanoseconds; default CLOCK_MONOTONIC of the
	// host. It is called on the vCPUs' threads.
	Clock func() int64
}

// Feed supplies events from elsewhere: from rings that a guest fills, which cannot
// wake the hub.
type Feed interface {
	// Poll passes new events to Source.Put, and returns their number, a time before
	// which no more will come, and whether there is anything to poll. The hub's
	// goroutine calls it repeatedly while there is.
	Poll() (n int, sure int64, active bool)
}

// Polling intervals of a Feed: short after an event, or while events wait for it, and
// otherwise increasing.
const (
	minPoll = time.Millisecond
	maxPoll = 16 * time.Millisecond
)

// Hub takes events from the vCPUs' rings and its Feed, in the order of their times,
// and passes them to subscribers. One goroutine does all of it; Close stops it.
type Hub struct {
	clock    func() int64
	window   time.Duration
	coalesce time.Duration
	cpus     int
	prods    []*ring // the vCPUs'
	feed     atomic.Pointer[Feed]

	held      held         // of the goroutine only
	heldBytes atomic.Int64 // of held and inbox together

	putMu    sync.Mutex  // guards the fields below
	inbox    []heldEvent // of Put, on their way to held
	number   uint64      // of the latest event
	putArena arena

	nap     atomic.Uint32 // the state that the goroutine waits in, or is about to
	wake    chan struct{} // capacity 1
	closing atomic.Bool   // no more events are stored
	done    chan struct{} // the goroutine has ended

	mu        sync.Mutex // guards all fields below
	sources   map[uint32]*Source
	lastID    uint32
	closed    []*Source // still in sources
	gone      []Counts  // per vCPU, of sources that were removed from sources
	subs      []*Subscription
	waiters   []waiter
	ended     bool
	seq       uint64
	lastTime  int64
	reordered uint64
	arena     arena
}

// Wait states of the hub's goroutine. Code that ends a wait sets awake first, so that
// it is ended only once.
const (
	awake   = iota
	resting // until the time is up, or a ring is half full
	asleep  // until any event
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
		opt.Clock = monotonicClock()
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

// monotonicClock returns a clock of CLOCK_MONOTONIC. The runtime reads that clock
// without a system call, but does not tell its origin.
func monotonicClock() func() int64 {
	var ts unix.Timespec
	base := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("BUG: event: CLOCK_MONOTONIC: " + err.Error()) // POSIX has it; no argument can be wrong
	}
	origin := ts.Nano()
	return func() int64 { return origin + int64(time.Since(base)) }
}

// Now returns the time on the events' clock.
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

// retire removes the drained ones among the first n closed sources from the table.
// Since they were closed every ring has been seen idle, so they have no more events.
// Callers hold the mutex.
func (h *Hub) retire(n int) {
	h.closed = slices.DeleteFunc(h.closed, func(s *Source) bool {
		if n--; n < 0 || s.drained != s.Counts().Stored {
			return false
		}
		delete(h.sources, s.id)
		for i := range h.gone {
			h.gone[i].add(s.cpuCounts(i))
		}
		return true
	})
}

// HubCounts are the counts of a hub since its creation.
type HubCounts struct {
	CPUs      []Counts // by vCPU, of all sources so far
	Reordered uint64   // events passed on after one with a later time
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
			c.CPUs[i].add(s.cpuCounts(i))
		}
	}
	return c
}

// Close stops storing events (later ones count as lost), passes on all that are
// stored, ends every subscription and returns the final counts. It may be called
// again.
func (h *Hub) Close() HubCounts {
	h.closing.Store(true)
	h.kick()
	<-h.done
	return h.Counts()
}

// endEvent records that no event is being made any more.
func (h *Hub) endEvent(p *ring) {
	p.busy.Store(false)
	h.wakeIfAsked(p.full())
}

// wakeIfAsked wakes the hub if it has asked for that: asleep, for any event; resting,
// if something is full.
//
// The hub sets nap before its last look at the rings, and the ring was changed before
// nap is read: at least one of the two sees the other (Go's atomics are sequentially
// consistent).
func (h *Hub) wakeIfAsked(full bool) {
	if nap := h.nap.Load(); nap == asleep || nap == resting && full {
		if h.nap.CompareAndSwap(nap, awake) {
			h.kick()
		}
	}
}

// SetFeed sets the source of events other than the vCPUs' threads.
func (h *Hub) SetFeed(f Feed) { h.feed.Store(&f) }

// Wake makes the hub poll the Feed soon. It may be called from any goroutine, and
// never blocks.
func (h *Hub) Wake() { h.kick() }

// kick ends the goroutine's current or next wait. It never blocks.
func (h *Hub) kick() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// arena is memory from which records are allocated front to back.
type arena []byte

// take returns n bytes that are never reused.
func (a *arena) take(n int) []byte {
	// Small, because one event held by a slow reader keeps the whole chunk.
	const chunk = 4 << 10
	if n > len(*a) {
		*a = make([]byte, max(chunk, n))
	}
	b := (*a)[:n:n]
	*a = (*a)[n:]
	return b
}
