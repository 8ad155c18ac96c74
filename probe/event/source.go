package event

import (
	"fmt"
	"sync/atomic"
)

// Source is one probe as a producer of events. On a vCPU's thread, in a handler, a
// program makes one between Begin and End, in memory of Reserve; none of the four takes
// a lock or allocates. What was made elsewhere is Put.
type Source struct {
	// Layout reads the records; Owner is whose they are. Both are set by
	// Hub.Source and not changed.
	Layout *Layout
	Owner  any

	hub     *Hub
	id      uint32 // 1 to maxSource
	cpus    []cpuCounts
	closed  atomic.Bool
	drained uint64 // handed on; under the hub's mutex
}

// maxSource is the largest id of a source: a record's mark has 2 more bits.
const maxSource = 1<<30 - 1

// Mark is what stands at RecordMark in records of s.
func (s *Source) Mark(at Moment) uint32 { return s.id<<2 | uint32(at) }

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

// Begin and End frame the making of events on a vCPU's thread: their times must be
// read in between.
func (s *Source) Begin(cpu int) { s.hub.prods[cpu].busy.Store(true) }

// End ends what Begin has begun.
func (s *Source) End(cpu int) { s.hub.endEvent(s.hub.prods[cpu]) }

// Reserve gives room for a record of n bytes in a vCPU's ring; nil when it is lost,
// which is counted. Submit must follow before the next one.
func (s *Source) Reserve(cpu, n int) []byte {
	var b []byte
	if n >= recordHeader && n <= maxRecord && !s.closed.Load() && !s.hub.closing.Load() {
		b = s.hub.prods[cpu].reserve(cpu, n)
	}
	if b == nil {
		s.cpus[cpu].lost.Add(1)
	}
	return b
}

// Submit stores the record of the last Reserve on that vCPU; without keep it is lost.
func (s *Source) Submit(cpu int, keep bool) {
	s.hub.prods[cpu].commit(keep)
	if keep {
		s.cpus[cpu].stored.Add(1)
	} else {
		s.cpus[cpu].lost.Add(1)
	}
}

// Put stores an event that was made elsewhere, as by an object's program: data is
// anything, and Event.Payload has it. It is lost when it is longer than a record may
// be, on a vCPU that there is not, and when too many wait to be handed on. It may be
// called from any goroutine.
func (s *Source) Put(cpu int, time int64, data []byte) bool {
	return s.put(cpu, time, AtPre, recordHeader+len(data), func(rec []byte) { copy(rec[recordHeader:], data) })
}

// PutRecord is Put for a record of s's Layout, which a program in the guest has made:
// whose it is is not for that to say.
func (s *Source) PutRecord(cpu int, rec []byte) bool {
	if len(rec) < recordHeader {
		return s.put(cpu, 0, AtPre, maxRecord+1, nil)
	}
	return s.put(cpu, int64(le.Uint64(rec)), markMoment(le.Uint32(rec[RecordMark:])), len(rec), func(to []byte) { copy(to, rec) })
}

func (s *Source) put(cpu int, time int64, at Moment, n int, fill func([]byte)) bool {
	h := s.hub
	if cpu < 0 || cpu >= len(s.cpus) {
		cpu, n = 0, maxRecord+1
	}
	defer h.wakeIfAsked(false)
	h.putMu.Lock()
	defer h.putMu.Unlock()
	if n > maxRecord || s.closed.Load() || h.closing.Load() || h.heldBytes.Load()+int64(n) > maxHeld {
		s.cpus[cpu].lost.Add(1)
		return false
	}
	h.heldBytes.Add(int64(n))
	h.number++
	rec := h.putArena.take(n)
	fill(rec)
	// Whoever says the time need not be trusted: the hub waits for what has a
	// time to come. A return lasts as long as is said all the same.
	said := time
	time = max(0, min(time, h.clock()))
	if entered := s.Layout.Entered; at == AtReturn && entered != 0 && n >= entered+8 {
		le.PutUint64(rec[entered:], le.Uint64(rec[entered:])+uint64(time-said))
	}
	le.PutUint64(rec[RecordTime:], uint64(time))
	le.PutUint32(rec[RecordMark:], s.Mark(at))
	h.inbox = append(h.inbox, heldEvent{time, h.number, cpu, rec})
	s.cpus[cpu].stored.Add(1)
	return true
}

// Lose counts n events of a vCPU that were lost before they could be Put.
func (s *Source) Lose(cpu int, n uint64) { s.cpus[cpu].lost.Add(n) }

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
func (s *Source) String() string { return fmt.Sprintf("%s#%d", s.Layout.Def().Name(), s.id) }
