package http

import (
	"context"
	"runtime"
	"runtime/metrics"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// effort bounds the resources of requests that compile. They run one at a time,
// and none begins or continues while the daemon's own memory is above its limit.
// Any goroutine may use it.
type effort struct {
	slot  chan struct{} // capacity 1: held while something is compiled
	limit uint64        // bytes of live heap, see --memory-limit
	used  func() uint64 // live heap
}

func newEffort(limit uint64) effort {
	return effort{slot: make(chan struct{}, 1), limit: limit, used: liveHeap}
}

// liveHeap returns the bytes of the heap that are in use, or were when garbage was last collected.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// begin waits until no other request compiles. Call done to give the next
// request its turn. It fails if the client is gone, or if there is no memory.
func (e *effort) begin(ctx context.Context) (done func(), err error) {
	select {
	case e.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := e.room(); err != nil {
		<-e.slot
		return nil, err
	}
	return func() { <-e.slot }, nil
}

// room returns an error while the daemon uses as much memory as it may, without
// garbage.
func (e *effort) room() error {
	if e.used() < e.limit {
		return nil
	}
	if runtime.GC(); e.used() < e.limit {
		return nil
	}
	return &api.Error{
		Code: api.CodeTooMany, Errno: "ENOMEM", Message: "the daemon uses more memory than --memory-limit " + formatSize(e.limit) + " allows",
		Detail: "detach scripts and programs, or start guestprobed with a larger --memory-limit",
	}
}

// stop returns the reason to end a compilation early: the client is gone, or
// there is no memory.
func (e *effort) stop(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return e.room()
}
