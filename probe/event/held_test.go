package event

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestHeldModel compares the heap with a sorted list.
func TestHeldModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h held
	var model []heldEvent
	for i := range 20000 {
		if r.IntN(5) < 3 {
			e := heldEvent{time: int64(r.IntN(50)), number: uint64(i), cpu: i % 3}
			h.push(e)
			at, _ := slices.BinarySearchFunc(model, e, func(a, b heldEvent) int {
				if a.before(&b) {
					return -1
				}
				return 1
			})
			model = slices.Insert(model, at, e)
		} else if len(model) > 0 {
			if e := h.pop(); e.time != model[0].time || e.number != model[0].number || e.cpu != model[0].cpu {
				t.Fatalf("step %d: %+v, want %+v", i, e, model[0])
			}
			model = model[1:]
		}
		if len(h) != len(model) {
			t.Fatalf("step %d: %d events, want %d", i, len(h), len(model))
		}
	}
}
