package event

import (
	"context"
	"io"
	"slices"
	"sync"
)

// Event is one event as subscribers receive it. It may be kept and shared, but not
// changed.
type Event struct {
	Source *Source
	CPU    int
	Time   int64  // host monotonic nanoseconds
	Seq    uint64 // number of the event in the hub, over all sources, from 0
	Data   []byte // the record: see Decode
	Lost   uint64 // events that this subscriber lost just before this one
	Late   bool   // this subscriber has received one with a later time: see HubOptions.Window
}

// Decode reads the record. While a filter runs there is no record.
func (e Event) Decode() (*Record, error) { return e.Source.Layout.Decode(e.Data) }

// Payload returns the data passed to Source.Put.
func (e Event) Payload() []byte { return e.Data[recordHeader:] }

// Chooser selects events. It runs on the hub's goroutine: it must be quick, must not
// use the hub, and gets no Data.
type Chooser func(Event) bool

// Queue bounds the events that a subscription holds for its reader. The zero value of
// each field means its default.
type Queue struct {
	Events int // default 8192
	Bytes  int // of records; default 8 MiB

	// Lose, unless nil, is called with an event that finds the queue full. It runs
	// like a Chooser.
	Lose func(Event)
}

// Subscription is one reader's bounded queue of events.
type Subscription struct {
	hub    *Hub
	filter Chooser
	from   []uint64 // where the subscription begins: per vCPU in its ring, then the number of Put

	mu        sync.Mutex
	limit     Queue
	queue     []Event // the oldest is at first
	first     int
	bytes     int
	delivered uint64
	lost      uint64 // since the last queued event
	lostTotal uint64
	time      int64 // of the latest queued event
	late      uint64
	ended     bool
	ready     chan struct{} // capacity 1: something has changed
}

// maxIdleQueue bounds the capacity of an empty queue, in events.
const maxIdleQueue = 1024

// SubscriptionCounts are the numbers of a subscription's events by outcome: each
// event that was stored after Subscribe and selected by its filter is counted once.
type SubscriptionCounts struct {
	Delivered uint64 // returned by Next
	Lost      uint64 // found the queue full, or were in it at Close
	Pending   uint64 // are in the queue
	Late      uint64 // queued events that came after one with a later time
}

// Subscribe returns a queue of the events that are stored from now on. filter may be
// nil. On a closed hub the subscription has already ended.
func (h *Hub) Subscribe(filter Chooser, limit Queue) *Subscription {
	if limit.Events <= 0 {
		limit.Events = 8192
	}
	if limit.Bytes <= 0 {
		limit.Bytes = 8 << 20
	}
	s := &Subscription{hub: h, filter: filter, limit: limit, ready: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.prods {
		s.from = append(s.from, p.head.Load())
	}
	h.putMu.Lock()
	s.from = append(s.from, h.number+1)
	h.putMu.Unlock()
	if h.ended {
		s.end()
	} else {
		h.subs = append(h.subs, s)
	}
	return s
}

// push adds an event or counts it as lost. Hub's goroutine only.
func (s *Subscription) push(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue)-s.first >= s.limit.Events || s.bytes+len(e.Data) > s.limit.Bytes {
		s.lost++
		s.lostTotal++
		if s.limit.Lose != nil {
			s.limit.Lose(e)
		}
		return
	}
	e.Lost, s.lost = s.lost, 0
	if e.Late = e.Time < s.time; e.Late {
		s.late++
	}
	s.time = max(s.time, e.Time)
	// Reuse the front before growing: the queue's memory stays within twice its
	// maximum since it was last empty.
	if len(s.queue) == cap(s.queue) && s.first > len(s.queue)/2 {
		n := copy(s.queue, s.queue[s.first:])
		clear(s.queue[n:])
		s.queue, s.first = s.queue[:n], 0
	}
	s.queue = append(s.queue, e)
	s.bytes += len(e.Data)
	s.signal()
}

func (s *Subscription) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

func (s *Subscription) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.signal()
}

// Next returns the next event, waiting for it. It returns io.EOF once the hub
// or the subscription is closed and the queue is empty, or the error of ctx.
// One goroutine at a time may call it.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		e, ok, ended := s.TryNext()
		switch {
		case ok:
			return e, nil
		case ended:
			return Event{}, io.EOF
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// TryNext returns the next event, if any, and whether the subscription has ended.
func (s *Subscription) TryNext() (e Event, ok, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == len(s.queue) {
		if s.queue, s.first = s.queue[:0], 0; cap(s.queue) > maxIdleQueue {
			s.queue = nil // a reader that was once slow may live as long as the daemon
		}
		return Event{}, false, s.ended
	}
	e = s.queue[s.first]
	s.queue[s.first] = Event{}
	s.first++
	s.bytes -= len(e.Data)
	s.delivered++
	return e, true, false
}

// Ready returns a channel that has a value when TryNext may return something new.
// Next uses the same one.
func (s *Subscription) Ready() <-chan struct{} { return s.ready }

// Counts returns the counts so far.
func (s *Subscription) Counts() SubscriptionCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SubscriptionCounts{Delivered: s.delivered, Lost: s.lostTotal, Pending: uint64(len(s.queue) - s.first), Late: s.late}
}

// Stop ends the subscription after the events in the queue.
func (s *Subscription) Stop() {
	s.hub.mu.Lock()
	s.hub.subs = slices.DeleteFunc(s.hub.subs, func(o *Subscription) bool { return o == s })
	s.hub.mu.Unlock()
	s.end()
}

// Close is Stop, and counts the events in the queue as lost. It returns the final
// counts and may be called again.
func (s *Subscription) Close() SubscriptionCounts {
	s.Stop()
	s.mu.Lock()
	n := uint64(len(s.queue) - s.first)
	s.lost += n
	s.lostTotal += n
	s.queue, s.first, s.bytes = nil, 0, 0
	s.mu.Unlock()
	return s.Counts()
}
