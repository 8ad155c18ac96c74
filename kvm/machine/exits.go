package machine

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
)

// Bits of registers.
const (
	cr0PE     = 1 << 0  // SDM Vol. 3, 2.5
	dr6Step   = 1 << 14 // BS: single step (SDM Vol. 3, 18.2.3)
	dr6Points = 0xf     // B0..B3: breakpoint conditions
)

// handle handles one exit. It runs on the vCPU's thread.
//
// No path here changes RIP on an I/O exit unless it means to send the guest
// elsewhere: some hosts leave RIP at the out instruction and step over it at the
// next KVM_RUN if and only if RIP is still there.
func (v *vcpu) handle() {
	v.countExit()
	v.callOnExit()
	v.midIO = false
	if v.readTrap() {
		v.n.traps.inc()
		if v.endTimeAlone() {
			return
		}
		if !v.m.cfg.TimeHits {
			v.dispatch()
			return
		}
		start := time.Now()
		v.dispatch()
		v.n.trapNs.add(uint64(time.Since(start)))
		return
	}
	switch r := v.exit.Reason; r {
	case kvm.ReasonInterrupted, kvm.ReasonIntr:
		v.kvm.ClearKick()
	case kvm.ReasonInterruptWindow:
		// deliverTick uses it.
	case kvm.ReasonSetTPR:
		// The guest has lowered its CR8 (KVM API document, section 5, KVM_EXIT_SET_TPR),
		// which is also in the page.
	case kvm.ReasonIO:
		v.handlePort()
	case kvm.ReasonMMIO:
		v.handleMMIO()
	case kvm.ReasonHLT:
		v.handleHalt()
	case kvm.ReasonShutdown:
		if !v.guard.endBlamed() {
			v.crash(CrashTripleFault, v.m.implicitHint("triple fault: an exception could not be delivered, nor the double fault for it"))
		}
	case kvm.ReasonInternalError:
		v.handleInternalError()
	case kvm.ReasonFailEntry:
		v.crash(CrashEntry, fmt.Sprintf("the processor refused to enter the guest, hardware reason %#x", v.exit.FailEntry.Reason))
	default:
		v.crash(CrashExit, fmt.Sprintf("unexpected exit %v", r))
	}
}

// countExit counts the exit.
func (v *trapFrame) countExit() {
	switch r := v.exit.Reason; {
	case r == kvm.ReasonInterrupted:
		v.n.interrupted.inc()
	case r < kvm.Reason(kvm.NumReasons):
		v.n.exits[r].inc()
	}
}

// handlePort serves an I/O instruction. Ports without a device read as all ones,
// as on a real bus.
func (v *vcpu) handlePort() {
	io := &v.exit.IO
	v.midIO = true
	if v.m.payload().handlePort(v) || !io.In {
		return
	}
	for i := range io.Data {
		io.Data[i] = 0xff
	}
}

// littleEndian returns the number in 1 to 8 bytes.
func littleEndian(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:])
}

// handleMMIO serves an access to physical memory that does not exist: reads are
// all ones and writes are dropped, as on a real bus. Writes to the engine's
// executable pages arrive here too, if the host protects them.
func (v *vcpu) handleMMIO() {
	v.midIO = true
	if v.refuseLoad() || v.handleWatchedAccess() || v.handleTextWrite() || v.m.payload().handleMMIO(v) {
		return
	}
	v.m.turns.unlock(v)
	if !v.exit.MMIO.Write {
		v.kvm.SetMMIO([8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	}
}

// refuseLoad handles a load by a program that runs in the guest: a handler on the host
// would find no memory there. No device notices it, and the program resumes as after a
// fault. Of a watched page it reads the memory, and that is not an access of the
// guest's.
func (v *vcpu) refuseLoad() bool {
	to, ok := v.m.engine.FixupAt(guest.GVA(v.regs.RIP))
	x := &v.exit.MMIO
	if !ok || x.Write {
		return false
	}
	if v.m.watch.find(guest.GPA(x.GPA)) != nil {
		if b, err := v.m.mem.Slice(guest.GPA(x.GPA), int(min(x.Len, 8))); err == nil {
			var now [8]byte
			copy(now[:], b)
			v.kvm.SetMMIO(now)
			return true
		}
	}
	v.m.turns.unlock(v)
	v.kvm.SetMMIO([8]byte{})
	v.completeExit()
	if v.exit.Reason == kvm.ReasonInterrupted && v.regs.RIP != uint64(to) {
		v.regs.RIP = uint64(to)
		v.kvm.SetRegsDirty()
	}
	return true
}

// handleInternalError reports an instruction that KVM could not handle. The
// engine's own traps are handled before.
func (v *vcpu) handleInternalError() {
	if v.guard.endBlamed() {
		return
	}
	e := &v.exit.Internal
	if e.Suberror != kvm.SuberrorEmulation {
		v.crash(CrashInternal, fmt.Sprintf("KVM internal error, suberror %d, data %#x", e.Suberror, e.Data[:min(int(e.NData), len(e.Data))]))
		return
	}
	if b := e.EmulationBytes(); len(b) > 0 {
		v.crash(CrashEmulation, fmt.Sprintf("this host's KVM cannot emulate the instruction % x", b))
		return
	}
	v.crash(CrashEmulation, "this host's KVM cannot emulate the instruction")
}

// crash ends the guest. The vCPU rests when it checks the gate next.
func (v *vcpu) crash(kind CrashKind, text string) {
	v.m.endCrashed(v.newCrash(kind, text))
}

// handleHalt serves hlt; RIP is after it. With interrupts on, the vCPU sleeps
// until there is one. With interrupts off, it is at a safe point, where the
// host's calls run, or it halts for good.
func (v *vcpu) handleHalt() {
	m := v.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.call != nil {
		v.call.finish(v)
	}
	if home := m.engine.Home(guest.GVA(v.regs.RIP)); uint64(home) != v.regs.RIP {
		// RIP is in a copy: the interrupt that ends it must return to the instruction after
		// the original.
		v.regs.RIP = uint64(home)
		v.kvm.SetRegsDirty()
	}
	for again := true; again; {
		again = v.waitHalted()
	}
}

// waitHalted waits as handleHalt describes, and reports whether IF has been
// changed from outside. Precondition: m.mu held.
func (v *vcpu) waitHalted() (again bool) {
	m := v.m
	open := v.regs.RFLAGS&x86.FlagIF != 0
	changed := func() bool { return v.where == stateRoused || v.regs.RFLAGS&x86.FlagIF != 0 != open }
	next := -1
	var last runState
	if open {
		last = v.rest(stateIdle, func() bool { return changed() || v.tick.Load() })
	} else {
		last = v.rest(stateHalted, func() bool {
			if v.call == nil {
				next = m.calls.next(v.id)
			}
			return next >= 0 || changed()
		})
	}
	switch {
	case last == stateRoused || m.gate.Load() != 0:
		return false
	case changed():
		return true
	case next >= 0:
		m.calls.begin(next, v)
	}
	return false
}
