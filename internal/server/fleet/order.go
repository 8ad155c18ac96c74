package fleet

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// Order brings what several send into the order of its times, as far as it comes in time: what has a later time is held
// back until all others are known to be behind it, or for a while. Its methods may be called from several goroutines.
type Order[T any] struct {
	settle time.Duration
	emit   func(v T, late bool) error
	size   func(v T) int // bytes; nil: not counted

	mu    sync.Mutex
	held  heldItems[T]
	bytes int              // of held
	heard map[string]int64 // by sender, of those that have not ended: its last time
	seq   uint64
	last  int64 // of what was given to emit
	late  uint64
	err   error
	timer *time.Timer
}

// maxHeld and maxHeldBytes bound what is held back.
const (
	maxHeld      = 1 << 16
	maxHeldBytes = 64 << 20
)

type heldItem[T any] struct {
	v    T
	time int64
	seq  uint64
	came time.Time
}

type heldItems[T any] []heldItem[T]

// Len implements heap.Interface.
func (h heldItems[T]) Len() int { return len(h) }

// Less implements heap.Interface.
func (h heldItems[T]) Less(i, j int) bool {
	if h[i].time != h[j].time {
		return h[i].time < h[j].time
	}
	return h[i].seq < h[j].seq
}

// Swap implements heap.Interface.
func (h heldItems[T]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *heldItems[T]) Push(x any) { *h = append(*h, x.(heldItem[T])) }

// Pop implements heap.Interface.
func (h *heldItems[T]) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// NewOrder returns an order that gives to emit, which is called by one goroutine at a time, and whose error is returned by
// all that follows. Settle is how long something is held back at most.
func NewOrder[T any](settle time.Duration, emit func(v T, late bool) error) *Order[T] {
	return &Order[T]{settle: settle, emit: emit, heard: map[string]int64{}, last: math.MinInt64}
}

// Sized has what is held back bounded in bytes as well.
func (o *Order[T]) Sized(size func(v T) int) *Order[T] {
	o.size = size
	return o
}

// bytesOf is the size of something.
func (o *Order[T]) bytesOf(v T) int {
	if o.size == nil {
		return 0
	}
	return o.size(v)
}

// Begin says that there will be a sender: all is held back until it has said its first time, or has ended.
func (o *Order[T]) Begin(sender string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard[sender] = math.MinInt64
}

// Heard says that nothing earlier than that comes from a sender any more.
func (o *Order[T]) Heard(sender string, at int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was, ok := o.heard[sender]; ok {
		o.heard[sender] = max(was, at)
	}
	return o.give()
}

// Put takes what a sender has sent, of a time in nanoseconds on a clock that all have.
func (o *Order[T]) Put(sender string, at int64, v T) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was, ok := o.heard[sender]; ok {
		o.heard[sender] = max(was, at)
	}
	o.seq++
	o.bytes += o.bytesOf(v)
	heap.Push(&o.held, heldItem[T]{v, at, o.seq, time.Now()})
	return o.give()
}

// Last is the last time of what a sender has sent, for what comes behind that and has no time of its own.
func (o *Order[T]) Last(sender string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heard[sender]
}

// End says that a sender sends nothing any more.
func (o *Order[T]) End(sender string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.heard, sender)
	return o.give()
}

// give gives what needs not be held back. The caller has mu.
func (o *Order[T]) give() error {
	known := int64(math.MaxInt64)
	for _, t := range o.heard {
		known = min(known, t)
	}
	for o.err == nil && len(o.held) > 0 {
		x := o.held[0]
		if age := time.Since(x.came); x.time > known && len(o.held) <= maxHeld && o.bytes <= maxHeldBytes && (age < o.settle || known == math.MinInt64) {
			if o.timer == nil && known != math.MinInt64 {
				o.timer = time.AfterFunc(o.settle-age, func() {
					o.mu.Lock()
					defer o.mu.Unlock()
					o.timer = nil
					_ = o.give() // who comes next learns of it
				})
			}
			break
		}
		heap.Pop(&o.held)
		o.bytes -= o.bytesOf(x.v)
		late := x.time < o.last
		if late {
			o.late++
		}
		o.last = max(o.last, x.time)
		o.err = o.emit(x.v, late)
	}
	return o.err
}

// Close gives all that is held, and returns how much came behind something later.
func (o *Order[T]) Close() (late uint64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.heard)
	err = o.give()
	if o.timer != nil {
		o.timer.Stop()
	}
	return o.late, err
}
