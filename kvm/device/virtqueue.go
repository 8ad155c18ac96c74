package device

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Limits of a queue. The driver may choose fewer entries.
const (
	queueMax = 128      // entries
	chainMax = 16 << 20 // bytes of one request: more than any driver asks of these devices
)

// Layout of a split virtqueue (Virtio 1.2, 2.7).
const (
	descSize  = 16
	descNext  = 1 << 0
	descWrite = 1 << 1

	availNoInterrupt = 1 << 0 // in the driver's flags
	usedNoNotify     = 1 << 0 // in ours
)

// errMalformed: the contents of a queue break the protocol.
var errMalformed = errors.New("malformed request")

// queue is a split virtqueue in guest memory. The guest may change any part of
// it at any time, to any value. So each field is read once and checked after
// that.
type queue struct {
	ram               *guest.Memory
	size              uint16 // entries, as the driver chose
	ready             bool
	desc, avail, used guest.GPA

	table     []byte // of descriptors
	ring      []byte // of used entries
	nextAvail uint16 // number of the next entry of the driver's ring
	nextUsed  uint16
	chain     chain
}

// chain is a request: the bytes that the device reads, and the bytes that it
// writes.
type chain struct {
	head    uint16 // its first descriptor
	out, in [][]byte
}

// start starts with an empty queue, at the address that the driver has given.
func (q *queue) start() error {
	n := int(q.size)
	switch {
	case n == 0 || n > queueMax || n&(n-1) != 0:
		return fmt.Errorf("%w: a queue of %d entries", errMalformed, n)
	case q.desc%16 != 0 || q.avail%2 != 0 || q.used%4 != 0:
		return fmt.Errorf("%w: rings at %v, %v, %v", errMalformed, q.desc, q.avail, q.used)
	}
	var err, err2, err3 error
	q.table, err = q.ram.Slice(q.desc, descSize*n)
	q.ring, err2 = q.ram.Slice(q.used, 4+8*n)
	_, err3 = q.ram.Slice(q.avail, 4+2*n)
	if err := errors.Join(err, err2, err3); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	q.nextAvail, q.nextUsed, q.ready = 0, 0, true
	return nil
}

// load16 reads an aligned word that the guest may be writing, as it was at one moment.
func (q *queue) load16(pa guest.GPA) uint16 {
	b, err := q.ram.Slice(pa&^7, 8)
	if err != nil {
		panic("BUG: a queue that was checked: " + err.Error()) // regions are whole pages
	}
	return uint16(guest.AtomicWords(b)[0].Load() >> (8 * (pa & 7)))
}

// store16 writes an aligned word, after all earlier writes and before all later
// reads.
func (q *queue) store16(pa guest.GPA, v uint16) {
	b, err := q.ram.Slice(pa&^7, 8)
	if err != nil {
		panic("BUG: a queue that was checked: " + err.Error())
	}
	w, shift := &guest.AtomicWords(b)[0], 8*(pa&7)
	for {
		old := w.Load()
		if w.CompareAndSwap(old, old&^(0xffff<<shift)|uint64(v)<<shift) {
			return
		}
	}
}

// next returns the oldest request that was not pushed back, or nil without one.
// It is valid until the following call.
func (q *queue) next() (*chain, error) {
	switch n := q.load16(q.avail+2) - q.nextAvail; {
	case n == 0:
		return nil, nil
	case n > q.size:
		return nil, fmt.Errorf("%w: %d requests in a queue of %d", errMalformed, n, q.size)
	}
	c := &q.chain
	c.head = q.load16(q.avail + 4 + 2*guest.GPA(q.nextAvail%q.size))
	c.out, c.in = c.out[:0], c.in[:0]
	total := 0
	for i, n := c.head, uint16(0); ; n++ {
		if i >= q.size || n == q.size {
			return nil, fmt.Errorf("%w: descriptor %d of a queue of %d, %d before it", errMalformed, i, q.size, n)
		}
		var d [descSize]byte
		copy(d[:], q.table[descSize*int(i):])
		le := binary.LittleEndian
		addr, size, flags := guest.GPA(le.Uint64(d[:])), le.Uint32(d[8:]), le.Uint16(d[12:])
		if total += int(size); total > chainMax || flags&^(descNext|descWrite) != 0 {
			return nil, fmt.Errorf("%w: descriptor with flags %#x, %d bytes so far", errMalformed, flags, total)
		}
		b, err := q.ram.Slice(addr, int(size))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		switch {
		case flags&descWrite != 0:
			c.in = append(c.in, b)
		case len(c.in) > 0:
			return nil, fmt.Errorf("%w: a descriptor to read after one to write", errMalformed)
		default:
			c.out = append(c.out, b)
		}
		if flags&descNext == 0 {
			return c, nil
		}
		i = le.Uint16(d[14:])
	}
}

// push returns the request of next to the driver, with the number of bytes that
// were written into it, and reports whether the driver wants an interrupt.
func (q *queue) push(c *chain, written uint32) bool {
	q.nextAvail++
	at := 4 + 8*int(q.nextUsed%q.size)
	binary.LittleEndian.PutUint32(q.ring[at:], uint32(c.head))
	binary.LittleEndian.PutUint32(q.ring[at+4:], written)
	q.nextUsed++
	q.store16(q.used+2, q.nextUsed)
	return q.load16(q.avail)&availNoInterrupt == 0
}

// setNoNotify tells the driver whether notifications are useful.
func (q *queue) setNoNotify(on bool) {
	if on {
		q.store16(q.used, usedNoNotify)
	} else {
		q.store16(q.used, 0)
	}
}

// gather copies bytes of b, one part after the other, to p, and returns how many.
func gather(p []byte, b [][]byte) int {
	n := 0
	for _, part := range b {
		n += copy(p[n:], part)
	}
	return n
}

// totalLen returns how many bytes the parts of b have.
func totalLen(b [][]byte) (n int) {
	for _, part := range b {
		n += len(part)
	}
	return n
}

// cut returns b from byte from to byte to, without copying; both lie inside.
func cut(b [][]byte, from, to int) [][]byte {
	var out [][]byte
	for _, part := range b {
		if lo, hi := max(from, 0), min(to, len(part)); lo < hi {
			out = append(out, part[lo:hi])
		}
		from, to = from-len(part), to-len(part)
	}
	return out
}
