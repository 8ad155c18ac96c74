package event

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestRingModel compares the ring with a list, over sizes that make records end at,
// before and after the buffer's end.
func TestRingModel(t *testing.T) {
	type record struct {
		cpu  int
		time int64
		rec  []byte
	}
	for _, size := range []int{256, 1024, 4096} {
		rnd := rand.New(rand.NewPCG(1, uint64(size)))
		r := ring{buf: make([]byte, size)}
		var model []record
		pos, stored, refused := uint64(0), 0, 0
		for i := range 20000 {
			if rnd.IntN(2) == 0 {
				w := record{i % 7, int64(i) - 100, make([]byte, 8+rnd.IntN(size/4))}
				for j := range w.rec {
					w.rec[j] = byte(rnd.Uint32())
				}
				le.PutUint64(w.rec[RecordTime:], uint64(w.time))
				if rnd.IntN(8) == 0 && r.reserve(0, 16) != nil {
					r.commit(false) // as if it had not been
				}
				if put(&r, w.cpu, w.rec) {
					model = append(model, w)
					stored++
				} else {
					refused++
					if len(model) == 0 {
						t.Fatalf("ring of %d: an empty ring refused %d bytes", size, len(w.rec))
					}
				}
			} else if len(model) > 0 {
				if pos >= r.head.Load() {
					t.Fatalf("ring of %d: %d records missing", size, len(model))
				}
				e := r.peek(pos)
				if e.cpu != model[0].cpu || e.time != model[0].time || !bytes.Equal(e.rec, model[0].rec) {
					t.Fatalf("ring of %d, step %d: got %+v, want %+v", size, i, e, model[0])
				}
				pos, model = e.next, model[1:]
				r.release(pos)
			}
			if len(model) == 0 && pos != r.head.Load() {
				t.Fatalf("ring of %d: nothing stored, but head %d is not at %d", size, r.head.Load(), pos)
			}
		}
		if stored == 0 || refused == 0 {
			t.Errorf("ring of %d: %d stored, %d refused: the test tests nothing", size, stored, refused)
		}
	}
}

func put(r *ring, cpu int, rec []byte) bool {
	to := r.reserve(cpu, len(rec))
	if to == nil {
		return false
	}
	copy(to, rec)
	r.commit(true)
	return true
}

func TestRingBounds(t *testing.T) {
	r := ring{buf: make([]byte, 256)}
	if put(&r, 0, make([]byte, 256-ringHeader+1)) {
		t.Error("a record larger than the ring was stored")
	}
	if !put(&r, 0, make([]byte, 256-ringHeader)) {
		t.Error("a record as large as the ring was lost")
	}
	if !r.full() || put(&r, 0, make([]byte, 8)) {
		t.Error("a full ring is not full")
	}
	r.release(r.peek(0).next)
	if r.full() || r.reserve(2, 8) == nil || r.reserve(2, 8) != nil {
		t.Error("an emptied ring gives no room, or twice")
	}
	if r.commit(true); r.peek(256).cpu != 2 {
		t.Error("the record is not there")
	}
}
