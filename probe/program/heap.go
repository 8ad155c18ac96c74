package program

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// ErrMapMemory is the cause if maps would take more of the host's memory than the
// runtime may use.
var ErrMapMemory = errors.New("no more memory for maps on the host")

// heap is the host's memory for the maps of all programs.
type heap struct {
	limit int64 // bytes
	used  atomic.Int64
}

// collectAt is the number of freed bytes that justify a collection, which returns
// them to the system at once.
const collectAt = 16 << 20

// Alloc implements bpf.Memory. The error is ErrMapMemory.
func (h *heap) Alloc(size int) (bpf.Area, error) {
	if used := h.used.Add(int64(size)); used > h.limit {
		h.used.Add(-int64(size))
		return bpf.Area{}, fmt.Errorf("%w: %d of %d bytes are in use", ErrMapMemory, used-int64(size), h.limit)
	}
	return bpf.Heap{}.Alloc(size)
}

// Free implements bpf.Memory.
func (h *heap) Free(a bpf.Area) {
	h.used.Add(-int64(len(a.Bytes)))
	if len(a.Bytes) >= collectAt {
		go debug.FreeOSMemory() // after the callers have dropped it
	}
}
