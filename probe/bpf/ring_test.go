package bpf

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

func ringPut(m *Map, data []byte, cpu int) bool {
	off, ok := m.reserve(uint64(len(data)))
	if ok {
		copy(m.area.Bytes[off:], data)
		m.publish(off, uint64(len(data)), recData, cpu)
	}
	return ok
}

// TestRingModel puts and drains records of random sizes and wants them back in
// order, whole, and what found no room counted.
func TestRingModel(t *testing.T) {
	m := testMaps(t, Heap{}, ringSpec)[0]
	rng := rand.New(rand.NewPCG(4, 5))
	var want [][]byte
	lost := uint64(0)
	for i := range 20000 {
		if rng.IntN(3) > 0 {
			data := bytes.Repeat([]byte{byte(i)}, rng.IntN([]int{20, 300, MinRingSize/2 - 7}[rng.IntN(3)]+1))
			if ringPut(m, data, i&1) {
				want = append(want, data)
			} else {
				lost++
			}
			continue
		}
		stop := rng.IntN(10)
		m.Drain(func(r Record) bool {
			if !bytes.Equal(r.Data, want[0]) {
				t.Fatalf("record of %d bytes of %d, want %d bytes", len(r.Data), r.Data, len(want[0]))
			}
			want = want[1:]
			stop--
			return stop > 0
		})
	}
	for m.Drain(func(Record) bool { want = want[1:]; return true }) > 0 {
	}
	if s := m.RingStats(); len(want) != 0 || s.Lost != lost || s.Corrupted != 0 || s.Pending != 0 {
		t.Errorf("%d records are missing; %+v, want %d lost", len(want), s, lost)
	}
	for i, b := range m.area.Bytes[mapHeader:] {
		if b != 0 {
			t.Fatalf("byte %d of an empty ring is %#x", i, b)
		}
	}
}

func TestRingSizes(t *testing.T) {
	m := testMaps(t, Heap{}, ringSpec)[0]
	largest := MinRingSize/2 - recHeader
	for _, tt := range []struct {
		n  int
		ok bool
	}{{0, true}, {1, true}, {7, true}, {8, true}, {largest - 1, true}, {largest, true}, {largest + 1, false}} {
		for start := range uint64(MinRingSize / 8) { // wherever the head is
			store64(m.area.Bytes, hdrHead, 8*start)
			store64(m.area.Bytes, hdrTail, 8*start)
			m.ring.tail = 8 * start
			if ok := ringPut(m, make([]byte, tt.n), 1); ok != tt.ok {
				t.Fatalf("%d bytes at %d: stored %v, want %v", tt.n, 8*start, ok, tt.ok)
			}
			n := m.Drain(func(r Record) bool { return len(r.Data) == tt.n && r.CPU == 1 })
			if tt.ok != (n == 1) {
				t.Fatalf("%d bytes at %d: drained %d", tt.n, 8*start, n)
			}
		}
	}
}

// TestRingConcurrent has several producers and one consumer, and wants each
// producer's records in order and every one either read or counted as lost.
func TestRingConcurrent(t *testing.T) {
	m := testMaps(t, Heap{}, ringSpec)[0]
	const producers, each = 3, 5000
	var done atomic.Int32
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			defer done.Add(1)
			for i := range each {
				ringPut(m, bytes.Repeat(u64(uint64(i+1)), 1+i%5), p)
			}
		})
	}
	last := [producers]uint64{}
	read := uint64(0)
	drain := func() {
		read += uint64(m.Drain(func(r Record) bool {
			n := le64(r.Data)
			if n <= last[r.CPU] || len(r.Data) != int(8*(1+(n-1)%5)) || le64(r.Data[len(r.Data)-8:]) != n {
				t.Errorf("producer %d: record %d of %d bytes after %d", r.CPU, n, len(r.Data), last[r.CPU])
			}
			last[r.CPU] = n
			return true
		}))
	}
	for done.Load() < producers {
		drain()
	}
	wg.Wait()
	drain()
	if s := m.RingStats(); s.Read != read || s.Read+s.Lost != producers*each || s.Corrupted != 0 {
		t.Errorf("read %d, %+v: want %d in all", read, s, producers*each)
	}
}

// TestRingHostile breaks each word that the guest can write.
func TestRingHostile(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(m *Map)
		read int // records, of the two that were there
		bad  uint64
	}{
		{"nothing", func(m *Map) {}, 2, 0},
		{"head far ahead", func(m *Map) { store64(m.area.Bytes, hdrHead, 1<<40) }, 0, 1},
		{"head behind", func(m *Map) { store64(m.area.Bytes, hdrHead, ^uint64(7)) }, 0, 1},
		{"head odd", func(m *Map) { store64(m.area.Bytes, hdrHead, 33) }, 0, 1},
		{"head inside a record", func(m *Map) { store64(m.area.Bytes, hdrHead, 8) }, 0, 1},
		{"tail written", func(m *Map) { store64(m.area.Bytes, hdrTail, 12345) }, 2, 0},
		{"length huge", func(m *Map) { store64(m.area.Bytes, mapHeader, recData<<recKindShift|recLength) }, 0, 1},
		{"length beyond head", func(m *Map) { store64(m.area.Bytes, mapHeader, recData<<recKindShift|100) }, 0, 1},
		{"open beyond head", func(m *Map) { store64(m.area.Bytes, mapHeader, recOpen<<recKindShift|100) }, 0, 1},
		{"open with length", func(m *Map) { store64(m.area.Bytes, mapHeader, 8) }, 0, 1},
		{"open", func(m *Map) { store64(m.area.Bytes, mapHeader, 0) }, 0, 0},
		{"second broken", func(m *Map) { store64(m.area.Bytes, mapHeader+16, recData<<recKindShift|16) }, 1, 1},
	} {
		m := testMaps(t, Heap{}, ringSpec)[0]
		ringPut(m, u64(1), 0)
		ringPut(m, u64(2), 0)
		tt.do(m)
		n := m.Drain(func(Record) bool { return true })
		if s := m.RingStats(); n != tt.read || s.Corrupted != tt.bad {
			t.Errorf("%s: read %d, %+v, want %d read and %d corruptions", tt.name, n, s, tt.read, tt.bad)
		}
		if tt.bad > 0 && (!ringPut(m, u64(3), 0) || m.Drain(func(r Record) bool { return le64(r.Data) == 3 }) != 1) {
			t.Errorf("%s: the ring does not work afterwards: %+v", tt.name, m.RingStats())
		}
	}
}

// TestRingPast has producers that stop in the middle, before and after writing the
// open header, and continue at any later time or never: records that others publish
// after them are read once, and so are theirs, if they are ever published.
func TestRingPast(t *testing.T) {
	m := testMaps(t, Heap{}, ringSpec)[0]
	rng := rand.New(rand.NewPCG(9, 5))
	type pending struct {
		off, n int
		id     uint64
	}
	var stopped []pending
	want := map[uint64]int{} // bytes of published records that were not read
	id, lost, read := uint64(0), uint64(0), 0
	publish := func(p pending) {
		store64(m.area.Bytes, p.off-recHeader, uint64(p.n)|recOpen<<recKindShift)
		copy(m.area.Bytes[p.off:], bytes.Repeat(u64(p.id), p.n/8))
		m.publish(p.off, uint64(p.n), recData, 0)
		want[p.id] = p.n
	}
	for range 50000 {
		switch k := rng.IntN(10); {
		case k < 8:
			id++
			n := 8 * (1 + rng.IntN(12))
			off, ok := m.reserve(uint64(n))
			p := pending{off, n, id}
			switch {
			case !ok:
				lost++
			case len(stopped) < 5 && rng.IntN(9) == 0:
				if rng.IntN(2) == 0 {
					store64(m.area.Bytes, off-recHeader, 0)
				}
				stopped = append(stopped, p)
			default:
				publish(p)
			}
		case k < 9 && len(stopped) > 0:
			i := rng.IntN(len(stopped))
			publish(stopped[i])
			stopped = append(stopped[:i], stopped[i+1:]...)
		default:
			past := rng.IntN(2) == 0
			open := m.DrainPast(past, func(r Record) bool {
				n := le64(r.Data)
				if want[n] != len(r.Data) || le64(r.Data[len(r.Data)-8:]) != n {
					t.Fatalf("record %d of %d bytes, want %d", n, len(r.Data), want[n])
				}
				delete(want, n)
				read++
				return true
			}).Open != nil
			if open != (len(stopped) > 0) {
				t.Fatalf("open %v with %d producers stopped", open, len(stopped))
			}
			if past && len(want) > 0 {
				t.Fatalf("%d records were passed by", len(want))
			}
		}
	}
	for _, p := range stopped {
		publish(p)
	}
	read += m.Drain(func(Record) bool { return true })
	if s := m.RingStats(); s.Pending != 0 || s.Corrupted != 0 || s.Read != uint64(read) || uint64(read)+lost != id || lost == 0 {
		t.Errorf("read %d, lost %d of %d; %+v", read, lost, id, s)
	}
}

// TestRingReset: a ring whose memory is reset with the guest's is empty afterwards; unless that is expected, it is corrupted.
func TestRingReset(t *testing.T) {
	m := testMaps(t, Heap{}, ringSpec)[0]
	for i, want := range []uint64{0, 1, 1} {
		for range 3 {
			if !ringPut(m, []byte("12345"), 0) {
				t.Fatal("no room")
			}
		}
		if d := m.Drain(func(Record) bool { return true }); d != 3 {
			t.Fatalf("round %d: %d records", i, d)
		}
		m.ExpectReset(i != 1)
		clear(m.area.Bytes)
		m.Drain(func(Record) bool { t.Error("a record of a ring that was reset"); return true })
		m.ExpectReset(false)
		if s := m.RingStats(); s.Corrupted != want || s.Pending != 0 || s.Read != uint64(3*(i+1)) {
			t.Errorf("round %d: %+v, want %d corrupted", i, s, want)
		}
	}
}
