package machine

import "sync"

// stopQueue orders the callers that stop the world. Each takes a ticket, and has
// its turn when the ticket is served, so a vCPU that stops the world again and
// again cannot starve an outside caller. A ticket can be returned unused.
// Machine.mu guards it.
type stopQueue struct {
	next      uint64          // the next ticket
	serving   uint64          // the ticket whose turn it is
	abandoned map[uint64]bool // tickets that must not be served
	changed   *sync.Cond      // serving, or the result of cut
}

func newStopQueue(mu *sync.Mutex) stopQueue {
	return stopQueue{abandoned: map[uint64]bool{}, changed: sync.NewCond(mu)}
}

// join returns a ticket.
func (q *stopQueue) join() (ticket uint64) {
	q.next++
	return q.next - 1
}

// wait waits for the ticket's turn. If cut returns true before that, wait
// returns the ticket unused and returns false. The caller that makes cut true
// broadcasts changed.
func (q *stopQueue) wait(ticket uint64, cut func() bool) bool {
	for q.serving != ticket {
		if cut() {
			q.abandoned[ticket] = true
			return false
		}
		q.changed.Wait()
	}
	return true
}

// leave ends the turn of the ticket that is being served.
func (q *stopQueue) leave() {
	q.serving++
	for ; q.abandoned[q.serving]; q.serving++ {
		delete(q.abandoned, q.serving)
	}
	q.changed.Broadcast()
}
