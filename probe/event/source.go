package event

import (
	"fmt"
	"sync/atomic"
)

// Source is one probe as a producer of events. On a vCPU's thread, in a handler, a
// program makes an event between Begin and End, in memory of Reserve; none of the
// four takes a lock or allocates. Events that were made elsewhere are passed to Put.
type Source struct {
	// Layout decodes the records; Owner is their owner. Both are set by Hub.Source
	// and not changed.
	Layout *Layout
	Owner  any

	hub     *Hub
	id      uint32 // 1 to maxSource
	cpus    []cpuCounts
	closed  atomic.Bool
	drained uint64 // passed on; under the hub's mutex
}

// maxSource is the largest id of a source: a record's mark has 2 more bits.
const maxSource = 1<<30 - 1

// Mark is the word at RecordMark in records of s.
func (s *Source) Mark(at Moment) uint32 { return s.id<<2 | uint32(at) }

// Counts are the numbers of events of a source by outcome, on one vCPU or in total.
// Their sum is the number of events emitted.
type Counts struct {
	Stored uint64 // stored in a vCPU's ring; the hub passes each of them on
	Lost   uint64 // found no room in the ring, or source or hub was closed
}

// cpuCounts is written by one vCPU's thread and has a cache line of its own.
type cpuCounts struct {
	stored, lost atomic.Uint64
	_            [48]byte
}

// Begin and End frame the making of events on a vCPU's thread: their times must be
// read in between.
func (s *Source) Begin(cpu int) { s.hub.prods[cpu].busy.Store(true) }

// End ends the making of events.
func (s *Source) End(cpu int) { s.hub.endEvent(s.hub.prods[cpu]) }

// Reserve returns room for a record of n bytes in a vCPU's ring; nil if the record is
// lost, which is counted. Submit must follow before the next one.
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

// Submit stores the record of the last Reserve on that vCPU; if keep is not set it is
// lost.
func (s *Source) Submit(cpu int, keep bool) {
	s.hub.prods[cpu].commit(keep)
	if keep {
		s.cpus[cpu].stored.Add(1)
	} else {
		s.cpus[cpu].lost.Add(1)
	}
}

// Put stores an event that was made elsewhere, for example by an object's program:
// data can be anything, and is returned by Event.Payload. It is lost if it is longer
// than a record may be, if there is no such vCPU, and if too many wait to be passed
// on. It may be called from any goroutine.
func (s *Source) Put(cpu int, time int64, data []byte) bool {
	return s.put(cpu, time, AtPre, recordHeader+len(data), func(rec []byte) { copy(rec[recordHeader:], data) })
}

// PutRecord is Put for a record of s's Layout that a program in the guest has made:
// it does not trust the record's own mark.
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
	// The time in it need not be trusted: the hub waits for an event with a future
	// time. The duration of a return is still the one that it claims.
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

// Lose counts n events of a vCPU that were lost before they could be passed to Put.
func (s *Source) Lose(cpu int, n uint64) { s.cpus[cpu].lost.Add(n) }

// Counts returns the totals over all vCPUs. While events are being emitted it is a
// snapshot; the numbers only grow.
func (s *Source) Counts() Counts {
	var c Counts
	for i := range s.cpus {
		c.add(s.cpuCounts(i))
	}
	return c
}

// cpuCounts returns the counts of one vCPU.
func (s *Source) cpuCounts(cpu int) Counts {
	return Counts{Stored: s.cpus[cpu].stored.Load(), Lost: s.cpus[cpu].lost.Load()}
}

func (c *Counts) add(d Counts) {
	c.Stored += d.Stored
	c.Lost += d.Lost
}

// Close says that the probe of s has been unregistered. Events in the rings are still
// passed on; later ones would count as lost. It may be called again.
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
