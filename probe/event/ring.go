package event

import (
	"sync/atomic"
)

// ring transports records from one producer, a vCPU's thread, to the hub, the only
// consumer; neither takes a lock. Before a record are 8 bytes (u32 length, u32 vCPU);
// it is padded to 8 and never wrapped: the length ringSkip says that the rest of the
// buffer is unused.
type ring struct {
	buf []byte // length is a power of two

	_ [64]byte // the producer's line
	// busy is set while an event is being made, so a consumer that sees an empty ring
	// that is not busy knows that later events have later times.
	busy atomic.Bool
	head atomic.Uint64 // bytes written so far
	next uint64        // head after the reserved record; 0: none is reserved

	_    [64]byte // the consumer's line
	tail atomic.Uint64
	_    [64]byte
}

const (
	ringHeader = 8
	ringAlign  = 8
	ringSkip   = 1<<32 - 1
)

// reserve returns room for a record of n bytes of a vCPU, which commit publishes; nil
// if there is no room, or one is already reserved. Producer only.
func (r *ring) reserve(cpu, n int) []byte {
	head, size := r.head.Load(), uint64(len(r.buf))
	need := uint64(ringHeader+n+ringAlign-1) &^ (ringAlign - 1)
	at := head & (size - 1)
	skip := uint64(0)
	if at+need > size {
		skip = size - at
	}
	if head+skip+need-r.tail.Load() > size || r.next != 0 {
		return nil
	}
	if skip > 0 {
		le.PutUint32(r.buf[at:], ringSkip)
		at = 0
	}
	le.PutUint32(r.buf[at:], uint32(n))
	le.PutUint32(r.buf[at+4:], uint32(cpu))
	r.next = head + skip + need
	return r.buf[at+ringHeader:][:n:n]
}

// commit ends a reservation: if keep is set it publishes the record, otherwise it
// discards it. Producer only.
func (r *ring) commit(keep bool) {
	if keep && r.next != 0 {
		r.head.Store(r.next)
	}
	r.next = 0
}

// entry is a record in a ring, as the consumer sees it.
type entry struct {
	cpu  int
	time int64
	rec  []byte // in the ring: valid until release
	pos  uint64 // its position
	next uint64 // position of the next one
}

// peek returns the record at pos, which is below head. Consumer only.
func (r *ring) peek(pos uint64) entry {
	size := uint64(len(r.buf))
	at := pos & (size - 1)
	if le.Uint32(r.buf[at:]) == ringSkip {
		pos += size - at
		at = 0
	}
	n := uint64(le.Uint32(r.buf[at:]))
	rec := r.buf[at+ringHeader:][:n]
	return entry{
		cpu: int(le.Uint32(r.buf[at+4:])), time: int64(le.Uint64(rec[RecordTime:])), rec: rec,
		pos: pos, next: pos + (ringHeader+n+ringAlign-1)&^(ringAlign-1),
	}
}

// release returns the room of everything before next to the producer.
func (r *ring) release(next uint64) { r.tail.Store(next) }

// full reports whether the ring is so full that the consumer should hurry.
func (r *ring) full() bool { return r.head.Load()-r.tail.Load() > uint64(len(r.buf))/2 }
