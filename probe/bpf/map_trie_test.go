package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

// TestTrie compares a trie with a list of prefixes.
func TestTrie(t *testing.T) {
	m := testMaps(t, Heap{}, MapSpec{Name: "lpm", Kind: LPMTrie, KeySize: 7, ValueSize: 8, MaxEntries: 40})[0]
	r := rand.New(rand.NewPCG(3, 4))
	type entry struct {
		bits  int
		data  [3]byte
		value uint64
	}
	var model []entry
	covers := func(bits int, a, b [3]byte) bool {
		for i := range bits {
			if (a[i/8]^b[i/8])>>(7-i%8)&1 != 0 {
				return false
			}
		}
		return true
	}
	find := func(bits int, data [3]byte) int {
		for i, e := range model {
			if e.bits == bits && covers(bits, e.data, data) {
				return i
			}
		}
		return -1
	}
	key := func(bits int, data [3]byte) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, uint32(bits)), data[:]...)
	}
	full, deleted := 0, 0
	for step := range uint64(20000) {
		bits := r.IntN(25)
		data := [3]byte{byte(r.IntN(4)) << 6, byte(r.IntN(3)) << 5, byte(r.IntN(2))}
		at := find(bits, data)
		switch op := r.IntN(8); {
		case op < 3:
			want := 0
			flags := uint64(op)
			switch {
			case at >= 0 && flags == UpdateNoExist:
				want = errExist
			case at < 0 && flags == UpdateExist:
				want = errNoEnt
			case at < 0 && len(model) == 40:
				want = errNoSpace
				full++
			case at < 0:
				model = append(model, entry{bits, data, step})
			default:
				model[at].value = step
			}
			if e := m.update(key(bits, data), u64(step), flags, 0); e != want {
				t.Fatalf("step %d: update: errno %d, want %d", step, e, want)
			}
		case op == 3:
			want := errNoEnt
			if at >= 0 {
				want = 0
				model = append(model[:at], model[at+1:]...)
				deleted++
			}
			if e := m.remove(key(bits, data)); e != want {
				t.Fatalf("step %d: delete: errno %d, want %d", step, e, want)
			}
		default:
			best := -1
			for i, e := range model {
				if e.bits <= bits && covers(e.bits, e.data, data) && (best < 0 || e.bits > model[best].bits) {
					best = i
				}
			}
			slot, ok := m.find(key(bits, data))
			if ok != (best >= 0) || ok && le64(m.valueAt(slot, 0)) != model[best].value {
				t.Fatalf("step %d: %d bits of %v: found %v, the model has %d", step, bits, data, ok, best)
			}
		}
	}
	if full == 0 || deleted == 0 {
		t.Errorf("full %d times, %d deleted", full, deleted)
	}
	n := 0
	m.Walk(func(k []byte, vals [][]byte) bool {
		n++
		bits := int(binary.LittleEndian.Uint32(k))
		if at := find(bits, [3]byte(k[4:])); at < 0 || model[at].value != le64(vals[0]) {
			t.Errorf("key %v is not in the model", k)
		}
		return true
	})
	if n != len(model) {
		t.Errorf("%d keys, want %d", n, len(model))
	}
	long := key(25, [3]byte{})
	if _, ok := m.find(long); ok || m.update(long, u64(1), UpdateAny, 0) != errInval || m.remove(long) != errInval || m.update(key(1, [3]byte{}), u64(1), 4, 0) != errInval {
		t.Error("a length of 25 bits, or an unknown flag")
	}
	if err := m.Update(key(24, [3]byte{1, 2, 3}), [][]byte{u64(5)}, UpdateAny); err != nil && !errors.Is(err, ErrMapFull) {
		t.Error(err)
	}
	for _, size := range []uint32{4, 261} {
		if _, err := NewMap(MapSpec{Name: "lpm", Kind: LPMTrie, KeySize: size, ValueSize: 8, MaxEntries: 4}, 1, Heap{}); !errors.Is(err, ErrMapLimit) {
			t.Errorf("keys of %d bytes: %v", size, err)
		}
	}
	// A program that uses one runs on the host.
	p, err := New(Spec{Kind: Kprobe, Maps: []*Map{m}, Insns: mustAssemble(t, "stw [r10-8], 24\nstw [r10-4], 0\nmov r2, r10\nadd r2, -8\nldmap r1, 0\ncall 1\njeq r0, 0, none\nldxdw r0, [r0+0]\nnone:\nexit")})
	if err != nil {
		t.Fatal(err)
	}
	if why := p.HostReason(); why != `map "lpm" is a lpm_trie, which only the host has` {
		t.Error(why)
	}
	if w := p.Warnings(); len(w) != 0 {
		t.Error(&w[0])
	}
	if _, err := NewVM(p, 0).Run(make([]byte, RegsSize), NoEnv{}); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(new(trieBuffer).shorten(key(24, [3]byte{255, 255, 255}), 9), key(9, [3]byte{255, 128, 0})) {
		t.Error("the bits after the length stay")
	}
}

// TestTrieShared: programs on several vCPUs change and search a trie at the same time,
// without a lock and without allocations.
func TestTrieShared(t *testing.T) {
	m := testMaps(t, Heap{}, MapSpec{Name: "lpm", Kind: LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 64})[0]
	key := func(bits uint32, a, b byte) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, bits), a, b, 0, 0)
	}
	if e := m.update(key(4, 0x10, 0), u64(4), UpdateAny, 0); e != 0 {
		t.Fatal(e)
	}
	var all sync.WaitGroup
	for cpu := range byte(4) {
		all.Go(func() {
			own, wide := key(16, 0x10, cpu), key(32, 0x10, cpu)
			for range 5000 {
				if e := m.update(own, u64(uint64(cpu)+100), UpdateNoExist, 0); e != 0 {
					t.Errorf("update: errno %d", e)
					return
				}
				if slot, ok := m.find(wide); !ok || le64(m.valueAt(slot, 0)) != uint64(cpu)+100 {
					t.Errorf("vCPU %d does not find its key", cpu)
				}
				if e := m.remove(own); e != 0 {
					t.Errorf("delete: errno %d", e)
				}
				if slot, ok := m.find(wide); !ok || le64(m.valueAt(slot, 0)) != 4 {
					t.Errorf("vCPU %d does not find the shorter key", cpu)
				}
			}
		})
	}
	all.Wait()
	at, wide := key(16, 0x10, 9), key(32, 0x10, 9)
	if n := testing.AllocsPerRun(100, func() { m.update(at, at[:8], UpdateAny, 0); m.find(wide); m.remove(at) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
