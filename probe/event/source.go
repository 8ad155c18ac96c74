package event

import (
	"fmt"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/probe"
)

// Source is one probe as a producer of events. Its Emit methods run on the
// vCPUs' threads, in handlers: they take no lock and allocate nothing.
type Source struct {
	// Fetcher makes the records; Tag is the owner's. Both are set by
	// Hub.Source and not changed.
	Fetcher *Fetcher
	Tag     any

	hub     *Hub
	id      uint32 // never 0
	cpus    []cpuCounts
	closed  atomic.Bool
	drained uint64 // handed on; under the hub's mutex
}

// Counts says what became of the events of a source, on one vCPU or in total.
// Their sum is the number of events emitted.
type Counts struct {
	Stored uint64 // went into a vCPU's ring; the hub hands each of them on
	Lost   uint64 // found no room in the ring, or source or hub closed
}

// cpuCounts is written by one vCPU's thread and has a cache line of its own.
type cpuCounts struct {
	stored, lost atomic.Uint64
	_            [48]byte
}

// Emit captures a hit and stores its event; false when it was lost, which is
// counted. For the pre handler of a p definition.
func (s *Source) Emit(c *probe.Context) bool {
	p := s.hub.begin(c.CPU)
	time := s.hub.clock()
	return s.finish(p, c.CPU, time, s.Fetcher.Capture(c, p.buf))
}

// EmitPost is Emit for a post handler: see Fetcher.CapturePost.
func (s *Source) EmitPost(c *probe.Context) bool {
	p := s.hub.begin(c.CPU)
	time := s.hub.clock()
	return s.finish(p, c.CPU, time, s.Fetcher.CapturePost(c, p.buf))
}

// EntrySize returns the number of bytes that Enter fills: a return probe's
// probe.Kretprobe.DataSize.
func (s *Source) EntrySize() int { return 8 + s.Fetcher.EntrySize() }

// Enter is for the entry handler of an r definition: it notes in data, which
// has EntrySize bytes, what the return needs.
func (s *Source) Enter(c *probe.Context, data []byte) {
	le.PutUint64(data, uint64(s.hub.clock()))
	s.Fetcher.CaptureEntry(c, data[8:])
}

// EmitReturn is Emit for the return handler of an r definition. Entry is what
// Enter has filled for this activation.
func (s *Source) EmitReturn(c *probe.Context, entry []byte) bool {
	p := s.hub.begin(c.CPU)
	time := s.hub.clock()
	n := s.Fetcher.CaptureReturn(c, entry[8:], p.buf)
	le.PutUint64(p.buf[s.Fetcher.duration:], uint64(time)-le.Uint64(entry))
	return s.finish(p, c.CPU, time, n)
}

// putPrefix is what stands before a record in the ring of Put: its vCPU.
const putPrefix = 4

// Put stores an event that was made elsewhere, as by a program in the guest; it
// is lost when it is longer than 65535 bytes, and on a vCPU that there is not.
// Data is anything; Event.Decode needs what the Fetcher makes. Unlike Emit it may
// be called from any goroutine. Such events come later than those of the vCPUs'
// threads: the hub hands them on as they come, and counts those that are out of
// order.
func (s *Source) Put(cpu int, time int64, data []byte) bool {
	if cpu < 0 || cpu >= len(s.cpus) {
		s.cpus[0].lost.Add(1)
		return false
	}
	h := s.hub
	h.putMu.Lock()
	defer h.putMu.Unlock()
	if len(data) > maxRecord {
		s.cpus[cpu].lost.Add(1)
		return false
	}
	p := h.begin(h.cpus)
	// Whoever says the time need not be trusted: the hub waits for what has a
	// time to come.
	time = max(0, min(time, h.clock()))
	le.PutUint32(p.buf, uint32(cpu))
	return s.finish(p, cpu, time, putPrefix+copy(p.buf[putPrefix:], data))
}

// Lose counts n events of a vCPU that were lost before they could be Put.
func (s *Source) Lose(cpu int, n uint64) { s.cpus[cpu].lost.Add(n) }

// finish stores the first n bytes of p's buffer.
func (s *Source) finish(p *producer, cpu int, time int64, n int) bool {
	stored := !s.closed.Load() && !s.hub.closing.Load() && p.put(s.id, time, p.buf[:n])
	if stored {
		s.cpus[cpu].stored.Add(1)
	} else {
		s.cpus[cpu].lost.Add(1)
	}
	s.hub.end(p)
	return stored
}

// Counts returns the totals over all vCPUs. While events are being emitted it
// is a moment's view; the numbers only grow.
func (s *Source) Counts() Counts {
	var c Counts
	for i := range s.cpus {
		c.add(s.CPUCounts(i))
	}
	return c
}

// CPUCounts returns what became of the events on one vCPU.
func (s *Source) CPUCounts(cpu int) Counts {
	return Counts{Stored: s.cpus[cpu].stored.Load(), Lost: s.cpus[cpu].lost.Load()}
}

func (c *Counts) add(d Counts) {
	c.Stored += d.Stored
	c.Lost += d.Lost
}

// Close says that the probe of s has been unregistered. What is in the rings is
// handed on; what were still emitted would be counted as lost. It may be
// called again.
func (s *Source) Close() {
	if s.closed.Swap(true) {
		return
	}
	s.hub.mu.Lock()
	s.hub.closed = append(s.hub.closed, s)
	s.hub.mu.Unlock()
	s.hub.kick()
}

// String names the source for logs.
func (s *Source) String() string { return fmt.Sprintf("%s#%d", s.Fetcher.Def().Name(), s.id) }
