package device

import (
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// Where the tests' guest has what. Its memory ends at ramSize, and behind it is memory of the same
// host process that no device may touch.
const (
	ramSize  = 1 << 20
	ringAt   = 0x1000 // of queue 0; 0x3000 on for each further one
	ringStep = 0x3000
	availAt  = 0x1000 // from the queue's ringAt
	usedAt   = 0x2004 // so that no entry shares a word with the index, which is read at any time
	dataAt   = 0x20000
)

// newRAM returns the guest's memory.
func newRAM(t testing.TB) (*guest.Memory, []byte) {
	t.Helper()
	b := make([]byte, ramSize)
	m := new(guest.Memory)
	if err := m.Add(0, b, "ram"); err != nil {
		t.Fatal(err)
	}
	return m, b
}

// driver is a guest's driver of one virtio device, written after the specification's side for drivers.
type driver struct {
	t    *testing.T
	p    *Platform
	l    *lines
	n    int // of the device
	mem  []byte
	data int // next free byte for buffers
	used map[int]uint16
	free map[int]uint16 // next descriptor, of as many as there are
}

func (d *driver) get(reg int) uint32 {
	d.t.Helper()
	var b [4]byte
	if !d.p.Read(guest.GPA(0xfeb00000+d.n*0x1000+reg), b[:]) {
		d.t.Fatalf("no device %d", d.n)
	}
	return binary.LittleEndian.Uint32(b[:])
}

func (d *driver) set(reg int, x uint32) {
	d.t.Helper()
	if !d.p.Write(guest.GPA(0xfeb00000+d.n*0x1000+reg), binary.LittleEndian.AppendUint32(nil, x)) {
		d.t.Fatalf("no device %d", d.n)
	}
}

// line is the device's interrupt line.
func (d *driver) line() uint32 { return uint32(16 + d.n) }

// offeredFeatures returns the device's features.
func (d *driver) offeredFeatures() uint64 {
	d.set(0x14, 1)
	hi := d.get(0x10)
	d.set(0x14, 0)
	return uint64(hi)<<32 | uint64(d.get(0x10))
}

// negotiate resets the device and agrees on features. It is false when the device refuses.
func (d *driver) negotiate(features uint64) bool {
	d.set(0x70, 0)
	d.set(0x70, 1)
	d.set(0x70, 3)
	for i := range uint32(2) {
		d.set(0x24, i)
		d.set(0x20, uint32(features>>(32*i)))
	}
	d.set(0x70, 0xb)
	return d.get(0x70) == 0xb
}

// bringUp brings the device up with one or more queues of a size.
func (d *driver) bringUp(features uint64, queues int, size uint16) {
	d.t.Helper()
	if !d.negotiate(features) {
		d.t.Fatalf("features %#x are refused", features)
	}
	d.data, d.used, d.free = dataAt, map[int]uint16{}, map[int]uint16{}
	clear(d.mem[:dataAt])
	for q := range queues {
		d.queue(q, size)
	}
	d.set(0x70, 0xf)
}

// queue sets a queue up: descriptors, driver's ring, device's ring, a page for each.
func (d *driver) queue(q int, size uint16) {
	d.set(0x30, uint32(q))
	d.set(0x38, uint32(size))
	at := uint32(ringAt + q*ringStep)
	for reg, offset := range map[int]uint32{0x80: 0, 0x90: availAt, 0xa0: usedAt} {
		d.set(reg, at+offset)
		d.set(reg+4, 0)
	}
	d.set(0x44, 1)
}

// put16 and get16 are aligned words, written and read as a processor does, while the device does the same.
func (d *driver) put16(at int, x uint16) {
	w, shift := d.word(at)
	w.Store(w.Load()&^(0xffff<<shift) | uint64(x)<<shift)
}

func (d *driver) get16(at int) uint16 {
	w, shift := d.word(at)
	return uint16(w.Load() >> shift)
}

func (d *driver) word(at int) (*atomic.Uint64, int) {
	return &guest.AtomicWords(d.mem[at&^7 : at&^7+8])[0], at % 8 * 8
}

// desc writes a descriptor.
func (d *driver) desc(q, i int, addr uint64, size uint32, flags, next uint16) {
	at := ringAt + q*ringStep + 16*i
	binary.LittleEndian.PutUint64(d.mem[at:], addr)
	binary.LittleEndian.PutUint32(d.mem[at+8:], size)
	binary.LittleEndian.PutUint16(d.mem[at+12:], flags)
	binary.LittleEndian.PutUint16(d.mem[at+14:], next)
}

// offer puts a chain into the driver's ring, where the device does not see it before the index says so.
func (d *driver) offer(q int, head uint16) {
	avail := ringAt + q*ringStep + availAt
	n := d.get16(avail + 2)
	d.put16(avail+4+2*int(n%queueMax), head)
	d.put16(avail+2, n+1)
}

// add makes a request of parts to read and room for parts to write, and returns the latter. The
// queue has queueMax entries.
func (d *driver) add(q int, out [][]byte, in []int) [][]byte {
	var room [][]byte
	head := d.free[q]
	total := len(out) + len(in)
	for i := range total {
		at, flags, size := d.data, uint16(0), 0
		if i < len(out) {
			size = copy(d.mem[at:], out[i])
		} else {
			size, flags = in[i-len(out)], 2
			room = append(room, d.mem[at:at+size])
		}
		if i < total-1 {
			flags |= 1
		}
		d.data += size
		n := d.free[q]
		d.free[q] = (n + 1) % queueMax
		d.desc(q, int(n), uint64(at), uint32(size), flags, d.free[q])
	}
	d.offer(q, head)
	return room
}

// notify tells the device of new requests.
func (d *driver) notify(q int) { d.set(0x50, uint32(q)) }

// awaitAnswer waits for an answer in a queue and returns the first descriptor and the length.
func (d *driver) awaitAnswer(q int) (head, length uint32) {
	d.t.Helper()
	used := ringAt + q*ringStep + usedAt
	for d.get16(used+2) == d.used[q] {
		d.l.wait(d.t, d.line())
		if got := d.get(0x60); got&^1 != 0 {
			d.t.Fatalf("interrupt status %#x", got)
		}
		d.set(0x64, d.get(0x60))
	}
	at := used + 4 + 8*int(d.used[q]%queueMax)
	d.used[q]++
	return binary.LittleEndian.Uint32(d.mem[at:]), binary.LittleEndian.Uint32(d.mem[at+4:])
}

// do is one request.
func (d *driver) do(q int, out [][]byte, in ...int) ([][]byte, uint32) {
	d.t.Helper()
	head := d.free[q]
	room := d.add(q, out, in)
	d.notify(q)
	got, n := d.awaitAnswer(q)
	if got != uint32(head) {
		d.t.Fatalf("descriptor %d is done, want %d", got, head)
	}
	return room, n
}
