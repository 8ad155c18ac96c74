package session

import (
	"sync"

	"github.com/guestprobe/guestprobe/probe/event"
)

// Events says which probes make events for a subscription. Probes make events only
// while a subscription wants them.
type Events int

// The values of Events.
const (
	AllEvents    Events = iota // all probes
	ReturnEvents               // at least return probes
	NoEvents                   // none: the subscription gets the events made for others
)

// Subscription receives the events of a Session. See event.Subscription.
type Subscription struct {
	*event.Subscription
	release func()
}

// Subscribe begins to deliver events. choose selects events; it is called on the
// goroutine that merges the events and must not wait; nil selects all. A subscription
// whose queue is full loses events, and counts them.
func (st *Session) Subscribe(choose event.Chooser, limit event.Queue, events Events) *Subscription {
	x := &Subscription{release: func() {}}
	switch events {
	case AllEvents:
		st.listen(1)
		x.release = sync.OnceFunc(func() { st.listen(-1) })
	case ReturnEvents:
		st.listenReturns(1)
		x.release = sync.OnceFunc(func() { st.listenReturns(-1) })
	}
	x.Subscription = st.hub.Subscribe(choose, limit)
	return x
}

// Release ends the subscription's demand for events: from now on probes make events
// only for others. It may be called again.
func (x *Subscription) Release() { x.release() }

// Close ends the subscription, and returns its counts.
func (x *Subscription) Close() event.SubscriptionCounts {
	x.release()
	return x.Subscription.Close()
}

// ProbeOf returns the probe of an event.
func ProbeOf(ev event.Event) *Probe { return ev.Source.Owner.(*Probe) }

// TimeOf returns the time of an event in nanoseconds since Epoch.
func (st *Session) TimeOf(ev event.Event) int64 { return ev.Time - st.epoch }

// EventCounts returns the counts of events of all probes.
func (st *Session) EventCounts() event.HubCounts { return st.hub.Counts() }

// Listeners returns the number of subscriptions that want all events, and of those
// that want the events of return probes.
func (st *Session) Listeners() (all, returns int64) { return st.listeners.Load(), st.ofReturns.Load() }

// listen records that a subscription to all events was added (1) or removed (-1).
func (st *Session) listen(d int64) {
	st.listenMu.Lock()
	defer st.listenMu.Unlock()
	st.programs.Want(st.listeners.Add(d) > 0)
}

// listenReturns is listen for a reader of only the events of return probes: for it,
// other probes make none.
func (st *Session) listenReturns(d int64) {
	st.listenMu.Lock()
	defer st.listenMu.Unlock()
	st.programs.WantReturns(st.ofReturns.Add(d) > 0)
}

// Poll takes over the records that programs in the guest have written so far. The
// Session does so every few milliseconds while there is a subscription.
func (st *Session) Poll() { st.programs.Poll() }
