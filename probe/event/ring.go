package event

import (
	"sync/atomic"
)

// ring carries records from one vCPU's thread to the hub. There is one
// producer and one consumer; neither takes a lock. A record is a header of 16
// bytes (u32 length, u32 source, u64 time) and its bytes, padded to 16, never
// wrapped: a header with source 0 says that the rest of the buffer is unused.
type ring struct {
	buf []byte // length is a power of two

	_ [64]byte // the producer's line
	// busy is set while an event is being made, so that the consumer, seeing
	// an empty ring that is not busy, knows that whatever comes later has a
	// later time.
	busy atomic.Bool
	head atomic.Uint64 // bytes ever written

	_    [64]byte // the consumer's line
	tail atomic.Uint64
	_    [64]byte
}

const (
	ringHeader = 16
	ringAlign  = 16
)

// put appends a record; false when there is no room. Producer only.
func (r *ring) put(source uint32, time int64, rec []byte) bool {
	head, size := r.head.Load(), uint64(len(r.buf))
	need := uint64(ringHeader+len(rec)+ringAlign-1) &^ (ringAlign - 1)
	at := head & (size - 1)
	skip := uint64(0)
	if at+need > size {
		skip = size - at
	}
	if head+skip+need-r.tail.Load() > size {
		return false
	}
	if skip > 0 {
		le.PutUint64(r.buf[at:], 0)
		at = 0
	}
	le.PutUint32(r.buf[at:], uint32(len(rec)))
	le.PutUint32(r.buf[at+4:], source)
	le.PutUint64(r.buf[at+8:], uint64(time))
	copy(r.buf[at+ringHeader:], rec)
	r.head.Store(head + skip + need)
	return true
}

// entry is a record in a ring, as the consumer sees it.
type entry struct {
	source uint32
	time   int64
	rec    []byte // in the ring: valid until release
	pos    uint64 // where it began
	next   uint64 // where the next one begins
}

// peek returns the record at pos, which is below head. Consumer only.
func (r *ring) peek(pos uint64) entry {
	size := uint64(len(r.buf))
	at := pos & (size - 1)
	if le.Uint32(r.buf[at+4:]) == 0 {
		pos += size - at
		at = 0
	}
	n := uint64(le.Uint32(r.buf[at:]))
	return entry{
		source: le.Uint32(r.buf[at+4:]),
		time:   int64(le.Uint64(r.buf[at+8:])),
		rec:    r.buf[at+ringHeader : at+ringHeader+n],
		pos:    pos,
		next:   pos + (ringHeader+n+ringAlign-1)&^(ringAlign-1),
	}
}

// release gives the room of everything before next back to the producer.
func (r *ring) release(next uint64) { r.tail.Store(next) }

// full reports whether the consumer had better hurry.
func (r *ring) full() bool { return r.head.Load()-r.tail.Load() > uint64(len(r.buf))/2 }
