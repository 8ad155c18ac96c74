package bpf

import (
	"fmt"
	"sync"
)

// A ring carries records of any size from the programs of all vCPUs to the host.
// Positions count bytes for ever; the low bits are the place in the buffer. A
// producer reserves room by compare and swap of the head, writes the record's header
// word, which was zero until then, as open, fills the record, and writes the header
// again: that publishes it. The consumer takes records in order, zeroes the consumed
// bytes, and only then moves the tail, so every header that a producer finds in its
// room is zero. It does so for many records at once: each move takes the tail's cache
// line from all producers. A record is never split: the rest at the end of the buffer
// is skipped with a header of its own.
//
// A producer can be stopped anywhere, and a task may never resume. The consumer can
// skip its record: an open header has the length, and if a producer has not even
// written that, all of its room is zero up to the next header. A record taken from
// after an open one is marked, and its room released in order.
//
// A header word:
//
//	63      48 47  41  40   39    31 30  29 28               0
//	+---------+------+-------+------+------+-----------------+
//	| vCPU    | 0    | taken | 0    | kind | bytes of data   |
//	+---------+------+-------+------+------+-----------------+
const (
	recNone      = 0 // nothing is written yet
	recData      = 1
	recDiscarded = 2
	recOpen      = 3 // not yet published

	recHeader    = 8
	recKindShift = 29
	recTaken     = 1 << 40
	recCPUShift  = 48
	recLength    = 1<<recKindShift - 1

	ringTries = 64 // of a reservation whose compare and swap keeps failing
)

// ringState is the host's private side of a ring.
type ringState struct {
	size int // of the buffer, a power of two

	mu        sync.Mutex
	tail      uint64 // bytes consumed; the word in the ring is a copy for producers
	corrupted uint64 // how often the contents made no sense
	read      uint64 // records delivered
	discarded uint64
	buf       []byte // of the record being delivered
	reset     bool   // the memory may have been reset: see ExpectReset
}

func (m *Map) planRing() (int, error) {
	n := m.spec.MaxEntries
	switch {
	case m.spec.KeySize != 0 || m.spec.ValueSize != 0:
		return 0, fmt.Errorf("a ring has neither keys nor values")
	case n < MinRingSize || n&(n-1) != 0:
		return 0, fmt.Errorf("size %d: want a power of two of at least %d", n, MinRingSize)
	case n > MaxRingSize:
		return 0, fmt.Errorf("size %d, more than %d: %w", n, MaxRingSize, ErrMapLimit)
	}
	m.ring.size = int(n)
	m.values = mapHeader
	return mapHeader + int(n), nil
}

// maxRecord is the most data of one record: with its header at most half the ring, so
// that an empty ring has room for it wherever the head is. It must also be within
// reach of a program's offsets.
func (m *Map) maxRecord() int { return min(m.ring.size/2-recHeader, offMask>>1) }

// reserve reserves n bytes and returns the offset of the data in the map. On failure
// it counts a lost record.
func (m *Map) reserve(n uint64) (int, bool) {
	if n > uint64(m.maxRecord()) {
		m.lose()
		return 0, false
	}
	mem, size := m.area.Bytes, uint64(m.ring.size)
	need := recHeader + (n+7)&^7
	for range ringTries {
		head := load64(mem, hdrHead) &^ 7 // a hostile guest may have made it odd
		at := head & (size - 1)
		skip := uint64(0)
		if at+need > size {
			skip = size - at
		}
		if head+skip+need-load64(mem, hdrTail) > size {
			break
		}
		if !cas64(mem, hdrHead, head, head+skip+need) {
			continue
		}
		if skip > 0 {
			store64(mem, m.values+int(at), (skip-recHeader)|recDiscarded<<recKindShift)
			at = 0
		}
		store64(mem, m.values+int(at), n|recOpen<<recKindShift)
		return m.values + int(at) + recHeader, true
	}
	m.lose()
	return 0, false
}

// RingWriter receives the records of programs on the host, out of reach of any guest.
// Its methods are called on the vCPU's thread; they take no lock and allocate
// nothing.
type RingWriter interface {
	// Reserve returns room for n bytes. Without room it returns nil, and counts a
	// lost record.
	Reserve(cpu, n int) []byte
	// Submit ends the latest reservation of that vCPU: the record is complete or, if
	// keep is not set, discarded.
	Submit(cpu int, keep bool)
}

// NewWriter makes a ring that passes programs' records to w. They run in the
// interpreter only. A program holds one record of it at a time.
func NewWriter(name string, cpus int, w RingWriter) *Map {
	m := &Map{spec: MapSpec{Name: name, Kind: RingBuf}, cpus: cpus, mem: Heap{}, writer: w}
	m.area, _ = m.mem.Alloc(mapHeader) // on the heap, which has no limit
	return m
}

// take reserves n bytes; ok is false if there is no room, which is counted.
func (m *Map) take(cpu int, n uint64) (r record, ok bool) {
	if m.writer != nil {
		if n <= offMask {
			r = record{ring: m, data: m.writer.Reserve(cpu, int(n))}
		}
		return r, r.data != nil
	}
	off, ok := m.reserve(n)
	if !ok {
		return record{}, false
	}
	return record{ring: m, off: off, data: m.area.Bytes[off : off+int(n)]}, true
}

// end ends a reservation.
func (r *record) end(kind uint64, cpu int) {
	if w := r.ring.writer; w != nil {
		w.Submit(cpu, kind == recData)
		return
	}
	r.ring.publish(r.off, uint64(len(r.data)), kind, cpu)
}

func (m *Map) lose() { add64(m.area.Bytes, hdrLost, 1) }

// publish ends a reservation of n bytes whose data is at off.
func (m *Map) publish(off int, n uint64, kind uint64, cpu int) {
	store64(m.area.Bytes, off-recHeader, n|kind<<recKindShift|uint64(cpu)<<recCPUShift)
}

// Record is one record from a ring. Data is a private copy, valid until the callback
// returns.
type Record struct {
	CPU  int // vCPU whose program wrote it, as reported by the guest
	Data []byte
}

// Drain passes all published records to f in the order of their reservation, until
// the ring is empty or f returns false, and returns their number. It stops at a
// record that is still being written. The contents of the ring are not trusted: a
// head or a header that makes no sense empties the ring and counts as a corruption.
// Only one Drain may run at a time, and it reads at most a whole ring; f must not
// call the ring's methods.
func (m *Map) Drain(f func(Record) bool) int { return m.DrainPast(false, f).Records }

// Drained is the result of a DrainPast, and the state of the ring then.
type Drained struct {
	Records int
	Head    uint64   // position of the next record
	Open    []uint64 // positions of the records being written, as far as it read
}

// DrainPast is Drain; if past is set it skips records that are still being written.
func (m *Map) DrainPast(past bool, f func(Record) bool) (d Drained) {
	if m.spec.Kind != RingBuf || m.writer != nil {
		return d
	}
	r := &m.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	mem, size := m.area.Bytes, uint64(r.size)
	head := load64(mem, hdrHead)
	d.Head = head
	if r.reset && head == 0 {
		r.tail = 0
	}
	if head&7 != 0 || head-r.tail > size {
		m.resync(head)
		return d
	}
	pos := r.tail
	for more := true; more && pos != head; {
		at := pos & (size - 1)
		word := load64(mem, m.values+int(at))
		kind, length := word>>recKindShift&3, word&recLength
		whole := recHeader + (length+7)&^7
		switch {
		case kind == recNone && word != 0, kind != recNone && (at+whole > size || whole > head-pos):
			m.resync(head)
			return d
		case kind == recNone:
			whole = m.zeros(at, min(size-at, head-pos))
		}
		if kind == recNone || kind == recOpen {
			if len(d.Open) == 0 {
				m.release(pos)
			}
			if d.Open = append(d.Open, pos); !past {
				return d
			}
			pos += whole
			continue
		}
		if kind == recData && word&recTaken == 0 {
			r.buf = append(r.buf[:0], mem[m.values+int(at)+recHeader:][:length]...)
			r.read++
			d.Records++
			more = f(Record{CPU: int(word >> recCPUShift), Data: r.buf})
		}
		pos += whole
		switch {
		case len(d.Open) > 0:
			store64(mem, m.values+int(at), word|recTaken)
			continue
		case kind == recDiscarded:
			r.discarded++
		}
		if pos-r.tail >= min(size/8, releaseBytes) {
			m.release(pos)
		}
	}
	if len(d.Open) == 0 {
		m.release(pos)
	}
	return d
}

// releaseBytes is how much is released to producers at once, if the ring is not
// small.
const releaseBytes = 4096

// release releases the room up to pos to producers, zeroed.
func (m *Map) release(pos uint64) {
	r := &m.ring
	if pos == r.tail {
		return
	}
	buf := m.area.Bytes[m.values:][:r.size]
	from, to := r.tail&uint64(r.size-1), pos&uint64(r.size-1)
	if to <= from {
		clear(buf[from:])
		from = 0
	}
	clear(buf[from:to])
	r.tail = pos
	store64(m.area.Bytes, hdrTail, pos)
}

// ExpectReset says that the memory of a ring is reset with the guest's from now on, until it is called with false: contents that do not follow the last ones are
// then no corruption. It does nothing to other maps.
func (m *Map) ExpectReset(yes bool) {
	r := &m.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reset = yes
}

// zeros returns how many of the n bytes at offset at of the buffer, in whole words, are
// zero.
func (m *Map) zeros(at, n uint64) (k uint64) {
	for k < n && load64(m.area.Bytes, m.values+int(at+k)) == 0 {
		k += 8
	}
	return k
}

// resync empties a ring whose contents make no sense. A producer that is writing at
// this moment publishes into room that is no longer its own: the worst result is
// another corruption.
func (m *Map) resync(head uint64) {
	r := &m.ring
	if !r.reset {
		r.corrupted++
	}
	clear(m.area.Bytes[m.values:])
	head = (head + 7) &^ 7
	r.tail = head
	store64(m.area.Bytes, hdrHead, head)
	store64(m.area.Bytes, hdrTail, head)
}

// RingStats are the counts of a ring. Lost comes from memory that the guest
// can write, the others are the host's own.
type RingStats struct {
	Read      uint64 // records delivered by Drain
	Lost      uint64 // records lost for lack of room
	Discarded uint64 // records that programs discarded, and ends of the buffer skipped
	Corrupted uint64 // how often the contents made no sense and the ring was emptied
	Pending   uint64 // bytes reserved and not consumed
}

// RingStats returns the counts of a ring, zero for other maps.
func (m *Map) RingStats() RingStats {
	if m.spec.Kind != RingBuf {
		return RingStats{}
	}
	m.ring.mu.Lock()
	defer m.ring.mu.Unlock()
	s := RingStats{Read: m.ring.read, Lost: load64(m.area.Bytes, hdrLost), Discarded: m.ring.discarded, Corrupted: m.ring.corrupted}
	if p := load64(m.area.Bytes, hdrHead) - m.ring.tail; p <= uint64(m.ring.size) {
		s.Pending = p
	}
	return s
}
