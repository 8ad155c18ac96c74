package fleet

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// Order sorts values of several senders by time, as far as they arrive in time.
// A value is held back until all other senders are known to be past its time, or
// for at most settle. Its methods may be called from several goroutines.
type Order[T any] struct {
	settle time.Duration
	emit   func(v T, late bool) error
	size   func(v T) int // bytes; nil: not counted

	mu    sync.Mutex
	held  heldItems[T]
	bytes int              // of held
	heard map[string]int64 // last time of each sender that has not ended
	seq   uint64
	last  int64 // of the values given to emit
	late  uint64
	err   error
	timer *time.Timer
}

// maxHeld and maxHeldBytes bound the values that are held back.
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

// NewOrder returns an order that passes values to emit. emit is called by one
// goroutine at a time, and its error is returned by all later calls. settle is
// how long a value is held back at most.
func NewOrder[T any](settle time.Duration, emit func(v T, late bool) error) *Order[T] {
	return &Order[T]{settle: settle, emit: emit, heard: map[string]int64{}, last: math.MinInt64}
}

// LimitBytes also bounds the values that are held back in bytes.
func (o *Order[T]) LimitBytes(size func(v T) int) *Order[T] {
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

// Begin announces a sender: everything is held back until it has sent its first
// time, or has ended.
func (o *Order[T]) Begin(sender string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard[sender] = math.MinInt64
}

// Advance says that a sender will not send anything earlier than that.
func (o *Order[T]) Advance(sender string, at int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was, ok := o.heard[sender]; ok {
		o.heard[sender] = max(was, at)
	}
	return o.give()
}

// Put adds a sender's value, with a time in nanoseconds on a clock that all
// senders share.
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

// LastTime returns the last time that a sender has sent, for a following value
// that has no time of its own.
func (o *Order[T]) LastTime(sender string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heard[sender]
}

// End says that a sender sends nothing more.
func (o *Order[T]) End(sender string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.heard, sender)
	return o.give()
}

// give emits the values that need not be held back. The caller has mu.
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
					_ = o.give() // the next caller gets the error
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

// Close emits all held values, and returns how many came after a value with a
// later time.
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
