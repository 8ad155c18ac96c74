package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

func TestNewMapLimits(t *testing.T) {
	const arr, hsh = Array, Hash
	for _, tt := range []struct {
		name string
		spec MapSpec
		ok   bool
	}{
		{"array", MapSpec{Kind: arr, KeySize: 4, ValueSize: 1, MaxEntries: 1}, true},
		{"key of 3", MapSpec{Kind: arr, KeySize: 3, ValueSize: 1, MaxEntries: 1}, false},
		{"no value", MapSpec{Kind: arr, KeySize: 4, MaxEntries: 1}, false},
		{"no entries", MapSpec{Kind: arr, KeySize: 4, ValueSize: 1}, false},
		{"largest value", MapSpec{Kind: arr, KeySize: 4, ValueSize: MaxValueSize, MaxEntries: 1}, true},
		{"value too large", MapSpec{Kind: arr, KeySize: 4, ValueSize: MaxValueSize + 1, MaxEntries: 1}, false},
		{"most entries", MapSpec{Kind: arr, KeySize: 4, ValueSize: 1, MaxEntries: MaxEntries}, true},
		{"too many entries", MapSpec{Kind: arr, KeySize: 4, ValueSize: 1, MaxEntries: MaxEntries + 1}, false},
		{"too much memory", MapSpec{Kind: arr, KeySize: 4, ValueSize: 1 << 10, MaxEntries: 1 << 19}, false},
		{"contents too long", MapSpec{Kind: arr, KeySize: 4, ValueSize: 1, MaxEntries: 1, Contents: []byte("ab")}, false},
		{"largest key", MapSpec{Kind: hsh, KeySize: MaxKeySize, ValueSize: 1, MaxEntries: 1}, true},
		{"key too large", MapSpec{Kind: hsh, KeySize: MaxKeySize + 1, ValueSize: 1, MaxEntries: 1}, false},
		{"no key", MapSpec{Kind: hsh, ValueSize: 1, MaxEntries: 1}, false},
		{"smallest ring", MapSpec{Kind: RingBuf, MaxEntries: MinRingSize}, true},
		{"ring too small", MapSpec{Kind: RingBuf, MaxEntries: MinRingSize / 2}, false},
		{"ring of no power", MapSpec{Kind: RingBuf, MaxEntries: 3 * MinRingSize}, false},
		{"ring too large", MapSpec{Kind: RingBuf, MaxEntries: 2 * MaxRingSize}, false},
		{"ring with key", MapSpec{Kind: RingBuf, KeySize: 4, MaxEntries: MinRingSize}, false},
		{"perf events", MapSpec{Kind: PerfEvents, KeySize: 4, ValueSize: 4}, true},
		{"other kind", MapSpec{Kind: 11, KeySize: 4, ValueSize: 4, MaxEntries: 1}, false},
		{"kind 4 billion", MapSpec{Kind: 1<<32 - 1, KeySize: 4, ValueSize: 4, MaxEntries: 1}, false},
	} {
		m, err := NewMap(tt.spec, 2, Heap{})
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v, want accepted %v", tt.name, err, tt.ok)
		}
		if err == nil {
			m.Close()
			m.Close()
		}
	}
	for _, cpus := range []int{0, 1025} {
		if _, err := NewMap(arraySpec, cpus, Heap{}); err == nil {
			t.Errorf("%d vCPUs accepted", cpus)
		}
	}
}

func TestArrayMap(t *testing.T) {
	m := testMaps(t, Heap{}, arraySpec)[0]
	one := [][]byte{bytes.Repeat([]byte{1}, 16)}
	for _, tt := range []struct {
		key  uint32
		flag uint64
		want error
	}{
		{0, UpdateAny, nil}, {1, UpdateExist, nil}, {1, UpdateNoExist, ErrKeyExists}, {2, UpdateAny, ErrMapFull}, {0, 3, ErrMapKind},
	} {
		if err := m.Update(u32(tt.key), one, tt.flag); !errors.Is(err, tt.want) {
			t.Errorf("update %d with flag %d: %v, want %v", tt.key, tt.flag, err, tt.want)
		}
	}
	if _, err := m.Lookup(u32(2)); !errors.Is(err, ErrKeyNotFound) {
		t.Errorf("lookup behind the end: %v", err)
	}
	if err := m.Delete(u32(0)); !errors.Is(err, ErrMapKind) {
		t.Errorf("delete: %v", err)
	}
	if err := m.Update(u32(0)[:3], one, 0); err == nil {
		t.Error("a key of 3 bytes was accepted")
	}
	if err := m.Update(u32(0), [][]byte{{1}}, 0); err == nil {
		t.Error("a value of 1 byte was accepted")
	}
	n := 0
	m.Walk(func(key []byte, vals [][]byte) bool {
		if binary.LittleEndian.Uint32(key) != uint32(n) || !bytes.Equal(vals[0], one[0]) {
			t.Errorf("entry %d: % x = % x", n, key, vals)
		}
		n++
		return true
	})
	if n != 2 {
		t.Errorf("%d entries, want 2", n)
	}
}

// TestHashModel runs random operations on hashes of several shapes and on a Go
// map, and wants the same results.
func TestHashModel(t *testing.T) {
	for _, s := range []MapSpec{
		{Kind: Hash, KeySize: 1, ValueSize: 1, MaxEntries: 20},
		{Kind: Hash, KeySize: 4, ValueSize: 8, MaxEntries: 7},
		{Kind: Hash, KeySize: 8, ValueSize: 3, MaxEntries: 64},
		{Kind: Hash, KeySize: 23, ValueSize: 100, MaxEntries: 500},
		{Kind: PerCPUHash, KeySize: 5, ValueSize: 12, MaxEntries: 30},
	} {
		t.Run(fmt.Sprintf("%v key %d", s.Kind, s.KeySize), func(t *testing.T) {
			m, model := testMaps(t, Heap{}, s)[0], map[string]string{}
			rng := rand.New(rand.NewPCG(1, 2))
			for range 20000 {
				key := make([]byte, s.KeySize)
				key[0] = byte(rng.IntN(int(s.MaxEntries) * 3 / 2))
				if len(key) > 1 {
					key[len(key)-1] = byte(rng.IntN(int(s.MaxEntries)*3/2) >> 8)
				}
				vals := m.newValues()
				for _, v := range vals {
					v[0], v[len(v)-1] = byte(rng.Uint32()), byte(rng.Uint32())
				}
				flat := string(bytes.Join(vals, nil))
				old, have := model[string(key)]
				flag := uint64(rng.IntN(3))
				var want error
				switch rng.IntN(5) {
				case 0:
					if !have {
						want = ErrKeyNotFound
					}
					delete(model, string(key))
					if err := m.Delete(key); !errors.Is(err, want) {
						t.Fatalf("delete: %v, want %v", err, want)
					}
				case 1:
					got, err := m.Lookup(key)
					if have != (err == nil) || have && string(bytes.Join(got, nil)) != old {
						t.Fatalf("lookup: %q, %v, want %q, %v", got, err, old, have)
					}
				default:
					switch {
					case have && flag == UpdateNoExist:
						want = ErrKeyExists
					case !have && flag == UpdateExist:
						want = ErrKeyNotFound
					case !have && len(model) == int(s.MaxEntries):
						want = ErrMapFull
					default:
						model[string(key)] = flat
					}
					if err := m.Update(key, vals, flag); !errors.Is(err, want) {
						t.Fatalf("update with %d of %d entries: %v, want %v", len(model), s.MaxEntries, err, want)
					}
				}
			}
			n := 0
			m.Walk(func(key []byte, vals [][]byte) bool {
				n++
				if model[string(key)] != string(bytes.Join(vals, nil)) {
					t.Errorf("key % x differs", key)
				}
				return true
			})
			if c := load64(m.area.Bytes, hdrCount); n != len(model) || c != uint64(n) {
				t.Errorf("%d keys, header says %d, want %d", n, c, len(model))
			}
		})
	}
}

// TestHashConcurrent lets several threads insert, update and delete the same
// few keys, and wants each key at most once, whole values, and a true count.
func TestHashConcurrent(t *testing.T) {
	m := testMaps(t, Heap{}, MapSpec{Name: "h", Kind: Hash, KeySize: 8, ValueSize: 16, MaxEntries: 40})[0]
	const workers, rounds, keys = 4, 3000, 12
	var wg sync.WaitGroup
	for w := range uint64(workers) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(w, 3))
			val := make([]byte, 16)
			for i := range uint64(rounds) {
				key := u64(rng.Uint64N(keys))
				binary.LittleEndian.PutUint64(val, w<<32|i)
				binary.LittleEndian.PutUint64(val[8:], ^(w<<32 | i))
				switch rng.IntN(4) {
				case 0:
					m.remove(key)
				case 1:
					if slot, ok := m.find(key); ok && slot > int(m.hash.mask) {
						t.Errorf("slot %d", slot)
					}
				default:
					m.update(key, val, UpdateAny, 0)
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	m.Walk(func(key []byte, vals [][]byte) bool {
		if seen[string(key)] {
			t.Errorf("key % x is there twice", key)
		}
		seen[string(key)] = true
		if a, b := le64(vals[0]), le64(vals[0][8:]); a != ^b {
			t.Errorf("key % x has a torn value %#x %#x", key, a, b)
		}
		return true
	})
	if c := load64(m.area.Bytes, hdrCount); c != uint64(len(seen)) {
		t.Errorf("header counts %d, there are %d", c, len(seen))
	}
}

// TestHashStalled: a slot that another vCPU claimed and never finished does not block
// other code forever.
func TestHashStalled(t *testing.T) {
	m := testMaps(t, Heap{}, hashSpec)[0]
	key, val := u32(5), u64(1)
	h := hashOf(key)
	at := slotWord(int(h & m.hash.mask))
	for _, state := range []uint64{slotClaimed, slotUpdating} {
		store64(m.area.Bytes, at, uint64(h)<<32|slotVersion|state)
		if state == slotUpdating {
			copyShared(m.keyAt(int(h&m.hash.mask)), key)
		}
		if e := m.update(key, val, UpdateAny, 0); e != errBusy {
			t.Errorf("state %d: update returns %d, want EBUSY", state, e)
		}
		if e := m.remove(key); e != errBusy {
			t.Errorf("state %d: delete returns %d, want EBUSY", state, e)
		}
		if _, ok := m.find(key); ok != (state == slotUpdating) {
			t.Errorf("state %d: found %v", state, ok)
		}
	}
}

// FuzzHostileMap fills the memory of maps with random bytes, as a hostile guest can.
// The host continues: no panic, no hang, nothing out of bounds.
func FuzzHostileMap(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint64(1))
	f.Add(bytes.Repeat([]byte{0xff}, 64), uint64(3))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1}, uint64(0))
	f.Fuzz(func(t *testing.T, fill []byte, key uint64) {
		if len(fill) == 0 {
			return
		}
		for _, m := range testMaps(t, Heap{}, hashSpec, perCPUSpec, ringSpec, MapSpec{Kind: PerCPUHash, KeySize: 8, ValueSize: 8, MaxEntries: 8}) {
			for i := range m.area.Bytes {
				m.area.Bytes[i] = fill[i%len(fill)]
			}
			k := u64(key)[:min(8, m.spec.KeySize)]
			if m.spec.Kind != RingBuf {
				m.find(k)
				m.update(k, make([]byte, 8), key%4, 0)
				m.remove(k)
				n := 0
				m.Walk(func([]byte, [][]byte) bool { n++; return true })
				if n > m.entries {
					t.Errorf("%d entries of %d", n, m.entries)
				}
				continue
			}
			for range 4 {
				total := 0
				m.Drain(func(r Record) bool { total += len(r.Data); return true })
				if total > m.ring.size {
					t.Errorf("%d bytes out of a ring of %d", total, m.ring.size)
				}
				if off, ok := m.reserve(key % 3000); ok {
					m.publish(off, key%3000, recData, 0)
				}
			}
			m.RingStats()
		}
	})
}
