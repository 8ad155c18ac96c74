package bpf

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// TestLRU: a full map makes room, and the most recently used elements stay.
func TestLRU(t *testing.T) {
	for _, kind := range []MapKind{LRUHash, PerCPULRU} {
		m := testMaps(t, Heap{}, MapSpec{Name: "lru", Kind: kind, KeySize: 4, ValueSize: 8, MaxEntries: 16})[0]
		r := rand.New(rand.NewPCG(1, uint64(kind)))
		var model []uint32 // keys, the one that was used longest ago first
		touch := func(k uint32) {
			model = append(slices.DeleteFunc(model, func(x uint32) bool { return x == k }), k)
			model = model[max(0, len(model)-16):]
		}
		for i := range 5000 {
			k := uint32(r.IntN(40))
			if r.IntN(3) == 0 {
				slot, ok := m.find(u32(k))
				if ok != slices.Contains(model, k) {
					t.Fatalf("%v, step %d: key %d found %v, the model has %v", kind, i, k, ok, model)
				}
				if ok {
					m.noteUse(slot)
					touch(k)
				}
				continue
			}
			if e := m.update(u32(k), u64(uint64(k)*3), UpdateAny, 1); e != 0 {
				t.Fatalf("%v, step %d: errno %d", kind, i, e)
			}
			touch(k)
		}
		n := 0
		m.Walk(func(key []byte, vals [][]byte) bool {
			n++
			if k := uint64(key[0]); !slices.Contains(model, uint32(k)) || le64(vals[m.copies()-1]) != 3*k {
				t.Errorf("%v: key %d has %v, the model %v", kind, k, vals, model)
			}
			return true
		})
		if n != 16 || load64(m.area.Bytes, hdrCount) != 16 {
			t.Errorf("%v: %d elements", kind, n)
		}
	}
	large := testMaps(t, Heap{}, MapSpec{Name: "lru", Kind: LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 2000})[0]
	for i := range uint64(20000) {
		if e := large.update(u64(i), u64(i), UpdateNoExist, 0); e != 0 {
			t.Fatalf("key %d: errno %d", i, e)
		}
		if v, err := large.Lookup(u64(i)); err != nil || le64(v[0]) != i {
			t.Fatal(i, v, err)
		}
	}
}

// TestQueues compares queues and stacks with slices.
func TestQueues(t *testing.T) {
	for _, kind := range []MapKind{Queue, Stack} {
		m := testMaps(t, Heap{}, MapSpec{Name: "q", Kind: kind, ValueSize: 8, MaxEntries: 5})[0]
		r := rand.New(rand.NewPCG(2, uint64(kind)))
		var model []uint64
		for i := range uint64(3000) {
			next := 0
			if kind == Stack {
				next = len(model) - 1
			}
			val := make([]byte, 8)
			switch op := r.IntN(5); {
			case op < 2:
				flags, want := uint64(op*UpdateExist), 0
				if len(model) == 5 {
					if want = errTooBig; flags == UpdateExist {
						want, model = 0, model[1:]
					}
				}
				if want == 0 {
					model = append(model, i)
				}
				if e := m.push(u64(i), flags); e != want {
					t.Fatalf("%v, step %d: push: errno %d, want %d", kind, i, e, want)
				}
			case len(model) == 0:
				val[0] = 9
				if e := m.takeValue(val, op == 3); e != errNoEnt || le64(val) != 0 {
					t.Fatalf("%v: errno %d, %v", kind, e, val)
				}
			default:
				if e := m.takeValue(val, op > 2); e != 0 || le64(val) != model[next] {
					t.Fatalf("%v, step %d: %v, errno %d, want %d", kind, i, val, e, model[next])
				}
				if op > 2 {
					model = slices.Delete(model, next, next+1)
				}
			}
			var all []uint64
			m.Walk(func(_ []byte, vals [][]byte) bool { all = append(all, le64(vals[0])); return true })
			if kind == Stack {
				slices.Reverse(all)
			}
			if !slices.Equal(all, model) {
				t.Fatalf("%v, step %d: %v, want %v", kind, i, all, model)
			}
		}
		if e := m.push(u64(1), UpdateNoExist); e != errInval {
			t.Errorf("%v: errno %d", kind, e)
		}
		if _, err := m.Lookup(nil); !errors.Is(err, ErrMapKind) {
			t.Error(err)
		}
	}
}

func TestBloom(t *testing.T) {
	m := testMaps(t, Heap{}, MapSpec{Name: "b", Kind: BloomFilter, ValueSize: 8, MaxEntries: 1000, Extra: 3})[0]
	wrong := 0
	for i := range uint64(1000) {
		if e := m.push(u64(i), UpdateAny); e != 0 {
			t.Fatal(e)
		}
	}
	for i := range uint64(10000) {
		switch e := m.bloomTest(u64(i)); {
		case i < 1000 && e != 0:
			t.Fatalf("value %d is not there", i)
		case i >= 1000 && e == 0:
			wrong++
		}
	}
	if wrong == 0 || wrong > 2000 { // 3 hashes and 8192 bits give 3%
		t.Errorf("%d of 9000 values that are not there", wrong)
	}
	if e := m.push(u64(1), UpdateExist); e != errInval {
		t.Error(e)
	}
}

func TestStacks(t *testing.T) {
	m := testMaps(t, Heap{}, MapSpec{Name: "s", Kind: StackTrace, KeySize: 4, ValueSize: 64, MaxEntries: 6})[0]
	a := []uint64{1, 2, 3}
	id, e := m.keepStack(a, 0)
	if again, e2 := m.keepStack(a, 0); e != 0 || e2 != 0 || again != id || id > 7 {
		t.Fatal(id, again, e, e2)
	}
	if v, err := m.Lookup(u32(uint32(id))); err != nil || le64(v[0]) != 1 || le64(v[0][16:]) != 3 || le64(v[0][24:]) != 0 {
		t.Fatal(v, err)
	}
	var other []uint64 // one with the same number
	for i := uint64(0); other == nil; i++ {
		if n, e := testMaps(t, Heap{}, m.spec)[0].keepStack([]uint64{i, i}, 0); e == 0 && n == id {
			other = []uint64{i, i}
		}
	}
	if _, e := m.keepStack(other, 0); e != errExist {
		t.Error(e)
	}
	crowded := testMaps(t, Heap{}, m.spec)[0]
	for _, want := range []struct {
		stack []uint64
		id    int
	}{{a, id}, {other, (id + 1) % 8}, {other, (id + 1) % 8}, {a, id}} {
		if n, e := crowded.keepStack(want.stack, StackNear); e != 0 || n != want.id {
			t.Errorf("%v of two stacks with the number %d: %d, %d, want %d", want.stack, id, n, e, want.id)
		}
	}
	if n, e := m.keepStack(other, stackReuse); e != 0 || n != id {
		t.Error(n, e)
	}
	keys := 0
	m.Walk(func(key []byte, vals [][]byte) bool {
		keys++
		return le64(vals[0]) == other[0] && int(key[0]) == id
	})
	if keys != 1 {
		t.Error(keys)
	}
	if err := m.Delete(u32(uint32(id))); err != nil {
		t.Error(err)
	}
	if err := m.Delete(u32(uint32(id))); !errors.Is(err, ErrKeyNotFound) {
		t.Error(err)
	}
	if _, err := NewMap(MapSpec{Name: "s", Kind: StackTrace, KeySize: 4, ValueSize: 63, MaxEntries: 6}, 1, Heap{}); err == nil {
		t.Error("a stack of 63 bytes")
	}
}

// TestRestore: what Each tells of a map makes another one the same, whatever was in that.
func TestRestore(t *testing.T) {
	content := func(m *Map) (all [][][]byte) {
		m.Walk(func(key []byte, vals [][]byte) bool {
			e := [][]byte{bytes.Clone(key)}
			for _, v := range vals {
				e = append(e, bytes.Clone(v))
			}
			all = append(all, e)
			return true
		})
		return all
	}
	for _, kind := range []MapKind{Hash, PerCPUHash, LRUHash, Array, PerCPUArray, Queue, Stack, StackTrace} {
		spec := MapSpec{Name: "m", Kind: kind, KeySize: 4, ValueSize: 16, MaxEntries: 6}
		if kind == Queue || kind == Stack {
			spec.KeySize = 0
		}
		maps := testMaps(t, Heap{}, spec, spec)
		for i, m := range maps {
			for n := range uint64(3 + i) {
				vals := m.newValues()
				for c, v := range vals {
					copy(v, u64(1+n+10*uint64(i)+100*uint64(c)))
				}
				e := 0
				switch kind {
				case Queue, Stack:
					e = m.push(vals[0], 0)
				case StackTrace:
					_, e = m.keepStack([]uint64{7 + n + 10*uint64(i)}, StackNear)
				default:
					if err := m.Update(u32(uint32(n+uint64(i))), vals, UpdateAny); err != nil {
						t.Fatal(kind, err)
					}
				}
				if e != 0 {
					t.Fatal(kind, e)
				}
			}
		}
		want := content(maps[0])
		if len(want) < 3 {
			t.Fatalf("%s: %d entries", kind, len(want))
		}
		for _, m := range []*Map{maps[1], maps[0]} {
			if err := m.Restore(want); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			got := content(m)
			byKey := func(a, b [][]byte) int { return bytes.Compare(a[0], b[0]) }
			if kind != Queue && kind != Stack { // in any order
				slices.SortStableFunc(got, byKey)
				slices.SortStableFunc(want, byKey)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, want %v", kind, got, want)
			}
		}
		if kind == StackTrace {
			if id, e := maps[1].keepStack([]uint64{7}, 0); e != 0 || !slices.ContainsFunc(want, func(x [][]byte) bool { return bytes.Equal(x[0], u32(uint32(id))) }) {
				t.Errorf("the stack that was put back is not found: %d, %d", id, e)
			}
			if err := maps[1].Restore([][][]byte{{u32(8), make([]byte, 16)}}); err == nil {
				t.Error("a stack without a place and without addresses")
			}
		}
	}
}
