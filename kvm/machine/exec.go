package machine

import (
	"fmt"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// execAreas allocates the memory that Boot has set aside for the engine, from
// the bottom up. The engine reuses what it has (probe/code). A reset starts
// over.
type execAreas struct {
	mu           sync.Mutex
	kernel, user execArea

	kernelFar, userFar farPages
}

type execArea struct {
	guest.Area
	used uint64
}

// newExecArea returns an area whose first bytes are not allocated. The guest
// knows the area's address from the boot information, and words with that
// address must not be taken for pointers into a probe's code.
func newExecArea(a guest.Area) execArea { return execArea{Area: a, used: min(allocAlign, a.Size)} }

// reset starts over with the areas of a booted guest.
func (e *execAreas) reset(b *guest.BootState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kernel, e.user = newExecArea(b.KernelExec), newExecArea(b.UserExec)
	e.kernelFar, e.userFar = newFarPages(b.KernelFar), newFarPages(b.UserFar)
}

// find returns the physical address of the n executable bytes at a, if all are
// in one area or far page.
func (e *execAreas) find(a guest.GVA, n uint64) (guest.GPA, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range []*execArea{&e.kernel, &e.user} {
		if off := uint64(a - x.GVA); off < x.Size && n <= x.Size-off {
			return x.GPA + guest.GPA(off), true
		}
	}
	if pa, ok := e.kernelFar.find(a, n); ok {
		return pa, true
	}
	return e.userFar.find(a, n)
}

// allocAlign is the alignment of allocations in bytes.
const allocAlign = 64

// rel32Reach is the range of a rel32 jump or a RIP-relative operand, less room
// for the instruction itself.
const rel32Reach = 1<<31 - guest.PageSize

// within reports whether all of the n bytes at a can reach near, and the other
// way round, modulo 2^64.
func within(a, near guest.GVA, n uint64) bool {
	lo, hi := int64(a-near), int64(a+guest.GVA(n)-near)
	return lo > -rel32Reach && lo < rel32Reach && hi > -rel32Reach && hi < rel32Reach
}

// AllocExec implements probe.Target. The returned memory is aligned to 64 bytes
// and filled with int3.
func (m target) AllocExec(near guest.GVA, size int) (guest.GVA, error) {
	fail := func(format string, args ...any) (guest.GVA, error) {
		return 0, &outOfExecError{Near: near, Size: size, Why: fmt.Sprintf(format, args...)}
	}
	if size <= 0 {
		return fail("size must be positive")
	}
	m.memory.RLock()
	defer m.memory.RUnlock()
	if m.freed {
		return 0, fmt.Errorf("allocate executable memory: %w", ErrClosed)
	}
	user := m.Image().IsUserText(near)
	if why := m.payload().noExecReason(user); why != "" {
		return fail("%s", why)
	}
	m.exec.mu.Lock()
	area, name := &m.exec.kernel, "kernel"
	if user {
		area, name = &m.exec.user, "user"
	}
	n := (uint64(size) + allocAlign - 1) &^ (allocAlign - 1)
	if n > area.Size-area.used {
		m.exec.mu.Unlock()
		return fail("the %s exec area has %d of %d bytes left", name, area.Size-area.used, area.Size)
	}
	a := area.GVA + guest.GVA(area.used)
	if !within(a, near, n) {
		m.exec.mu.Unlock()
		return fail("the %s exec area at %v is out of reach", name, area.GVA)
	}
	gpa := area.GPA + guest.GPA(area.used)
	area.used += n
	m.exec.mu.Unlock()

	b, err := m.mem.Slice(gpa, int(n))
	if err != nil {
		return fail("%v", err)
	}
	fillInt3(b)
	return a, nil
}

func fillInt3(b []byte) {
	for i := range b {
		b[i] = x86.Int3
	}
}

// WriteExec implements probe.Target.
func (m target) WriteExec(addr guest.GVA, p []byte) error {
	m.memory.RLock()
	defer m.memory.RUnlock()
	if m.freed {
		return fmt.Errorf("write executable memory: %w", ErrClosed)
	}
	gpa, ok := m.exec.find(addr, uint64(len(p)))
	if !ok {
		return fmt.Errorf("write %d executable bytes at %v: not in an exec area", len(p), addr)
	}
	b, err := m.mem.Slice(gpa, len(p))
	if err != nil {
		return fmt.Errorf("write executable bytes: %w", err)
	}
	copy(b, p)
	return nil
}
