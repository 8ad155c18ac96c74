package program

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// faults makes the guest's kernel resume the faults of programs that run in the guest,
// if it handles them itself (guest.FaultProfile): by a probe on the function that
// looks for a place to resume at, which exists while there are such programs.
type faults struct {
	mu    sync.Mutex
	users int // programs
	probe *probe.Kprobe
}

// hold has the faults of one more program resumed. It fails if the kernel's function
// cannot be probed.
func (f *faults) hold(e *probe.Engine, how *guest.FaultProfile) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users == 0 {
		k := FaultProbe(e, how)
		if err := e.Register(k); err != nil {
			return fmt.Errorf("its loads may fault, and the guest's kernel cannot be made to resume them: %w", err)
		}
		f.probe = k
	}
	f.users++
	return nil
}

// release is the opposite of hold: no run of the program is under way, and none begins
// any more.
func (f *faults) release(e *probe.Engine) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users == 0 {
		// The error is that the engine is closed, and the guest with it.
		_ = e.Unregister(f.probe)
		f.probe = nil
	}
}

// FaultProbe returns the probe that has the guest's kernel resume the faults of stages.
// A Runtime registers it for its programs; others who give the engine stages with
// fixups do so themselves.
func FaultProbe(e *probe.Engine, how *guest.FaultProfile) *probe.Kprobe {
	return &probe.Kprobe{Name: "faults", Symbol: how.Fixup, Essential: true, Pre: func(c *probe.Context) int { return resumeFault(e, c) }}
}

// resumeFault is the handler. RDI is the address of struct pt_regs. If its RIP is a
// load of a stage, it becomes the load's fixup and the function returns true. All
// other faults are the kernel's own.
func resumeFault(e *probe.Engine, c *probe.Context) int {
	if c.CPL != 0 {
		return 0
	}
	at := guest.GVA(c.Regs.RDI) + x86.PtIP
	var word [8]byte
	if c.Read(at, word[:]) != nil {
		return 0
	}
	to, ok := e.FixupAt(guest.GVA(binary.LittleEndian.Uint64(word[:])))
	if !ok {
		return 0
	}
	back, err := c.Caller()
	if err != nil {
		return 0
	}
	binary.LittleEndian.PutUint64(word[:], uint64(to))
	if c.Write(at, word[:]) != nil {
		return 0
	}
	c.ReturnTo(back, 1)
	return 1
}
