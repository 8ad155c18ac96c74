package machine

import (
	"slices"
	"sync"
	"testing"
)

// TestStopQueue has several wait for their turn at once, of which some give up: the others have it in the order of their tickets.
func TestStopQueue(t *testing.T) {
	const n = 20
	var mu sync.Mutex
	q := newStopQueue(&mu)
	var cut [n]bool
	var order, left []int
	mu.Lock()
	held := q.join()
	q.wait(held, func() bool { return false })
	var wg sync.WaitGroup
	for i := range n {
		ticket := q.join()
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			if !q.wait(ticket, func() bool { return cut[i] }) {
				left = append(left, i)
				return
			}
			order = append(order, i)
			q.leave()
		})
	}
	// Some before their turn, two behind each other and the last one among them.
	for _, i := range []int{0, 5, 6, n - 1} {
		cut[i] = true
	}
	q.changed.Broadcast()
	mu.Unlock()
	for gone := 0; gone != 4; breathe() {
		mu.Lock()
		gone = len(left)
		mu.Unlock()
	}
	mu.Lock()
	if len(order) != 0 {
		t.Errorf("%v had their turn while another one had it", order)
	}
	q.leave()
	mu.Unlock()
	wg.Wait()
	slices.Sort(left)
	if want := []int{0, 5, 6, n - 1}; !slices.Equal(left, want) {
		t.Errorf("%v gave up, want %v", left, want)
	}
	if len(order) != n-4 || !slices.IsSorted(order) {
		t.Errorf("turns %v", order)
	}
	if q.serving != q.next || len(q.abandoned) != 0 {
		t.Errorf("serves %d of %d, given up %v", q.serving, q.next, q.abandoned)
	}
	// The queue goes on.
	if mu.Lock(); !q.wait(q.join(), func() bool { return true }) {
		t.Error("no turn in an empty queue")
	}
	mu.Unlock()
}
