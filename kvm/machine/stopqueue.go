package machine

import "sync"

// stopQueue is the order of those who stop the world. Each takes a ticket, and has its turn when that is served: so a vCPU
// that stops the world again and again cannot starve a caller from outside. A ticket can be given up. Machine.mu guards it.
type stopQueue struct {
	next    uint64          // the next ticket
	serving uint64          // the ticket whose turn it is
	givenUp map[uint64]bool // tickets that are not to be served
	changed *sync.Cond      // serving, or what cut says
}

func newStopQueue(mu *sync.Mutex) stopQueue {
	return stopQueue{givenUp: map[uint64]bool{}, changed: sync.NewCond(mu)}
}

// join returns a ticket.
func (q *stopQueue) join() (ticket uint64) {
	q.next++
	return q.next - 1
}

// wait waits for the ticket's turn. If cut returns true before that, wait gives the ticket up and returns false. The caller that makes cut true
// broadcasts changed.
func (q *stopQueue) wait(ticket uint64, cut func() bool) bool {
	for q.serving != ticket {
		if cut() {
			q.givenUp[ticket] = true
			return false
		}
		q.changed.Wait()
	}
	return true
}

// leave ends the turn of the one that is served.
func (q *stopQueue) leave() {
	q.serving++
	for ; q.givenUp[q.serving]; q.serving++ {
		delete(q.givenUp, q.serving)
	}
	q.changed.Broadcast()
}
