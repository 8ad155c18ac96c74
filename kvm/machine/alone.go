package machine

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// How a kernel reads back its writes to its text
//
// Linux writes with interrupts off, compares, and then switches them on
// (__text_poke). During that time the vCPU runs alone, with the others stopped:
// the text then has the guest's bytes, without the engine's int3s. An int3 at
// the function's return address brings the vCPU back before it can run anything
// else, and KVM gives it no interrupts (KVM_GUESTDBG_BLOCKIRQ). If the function
// or its caller is unknown, the vCPU is checked repeatedly until its interrupts
// are on.

// alone is a vCPU that runs alone.
type alone struct {
	v       *vcpu
	at      guest.GVA         // of its first write
	runs    atomic.Bool       // it may run
	entered atomic.Bool       // it has run
	over    atomic.Bool       // it has reached end
	end     guest.GVA         // return address of the function that writes; 0: not known
	planted patches           // the int3 there
	writes  []probe.TextWrite // its further writes; the thread's, and other threads' while it rests
}

// How long a vCPU runs alone before it is checked, at first and at most; and how
// often and how long it is checked before a kernel that patches its text with
// interrupts always off (such as its own debugger) is assumed to have read it
// back.
const (
	firstAlone = 50 * time.Microsecond
	lastAlone  = 10 * time.Millisecond
	aloneLooks = 40
	aloneTime  = 300 * time.Millisecond
)

// timeAlone returns the vCPU's run alone, or nil.
func (v *vcpu) timeAlone() *alone {
	if a := v.m.alone.Load(); a != nil && a.v == v {
		return a
	}
	return nil
}

// mayRunAlone reports whether the vCPU may run although the world is stopped.
func (v *vcpu) mayRunAlone() bool {
	a := v.timeAlone()
	return a != nil && a.runs.Load()
}

// runAlone runs v, which waits in runAside after a write to its text at
// address at, until it has read back what it wrote. It returns the other writes that v has
// made: see probe.ReadBack. The world is stopped, and the caller has the turn.
func (m *Machine) runAlone(v *vcpu, at guest.GVA) ([]probe.TextWrite, error) {
	a := &alone{v: v, at: at}
	a.end = a.findEnd()
	if a.end != 0 {
		if err := a.planted.apply(m.space(0), a.end, x86.Int3); err != nil {
			a.end = 0
		}
		defer func() {
			if err := a.planted.undo(); err != nil {
				m.log.Error("a breakpoint in the function that patches text cannot be taken back", "addr", a.end, "err", err)
			}
		}()
	}
	if _, linux := m.payload().(*linuxGuest); a.end == 0 && !linux {
		return nil, nil // it is not known to read back
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alone.Store(a)
	defer func() {
		m.alone.Store(nil)
		m.rested.Broadcast() // a pause waits for it
	}()
	begun, wait := time.Now(), firstAlone
	for looks := 0; !m.phase.over() && m.gate.Load()&gateQuit == 0; looks++ {
		a.runs.Store(true)
		v.wake.Signal()
		a.sleep(wait)
		a.runs.Store(false)
		if err := a.awaitRest(); err != nil {
			return a.writes, err
		}
		switch {
		case v.where.midExit() && a.entered.Load(): // it waits for something else
			return a.writes, nil
		case a.over.Load(), a.end == 0 && a.entered.Load() && v.regs.RFLAGS&x86.FlagIF != 0:
			return a.writes, nil
		case looks > aloneLooks && time.Since(begun) > aloneTime:
			m.log.Warn("the guest's kernel patches its text, and then has interrupts off for long", "vcpu", v.id, "addr", at, "rip", guest.GVA(v.regs.RIP))
			return a.writes, nil
		}
		wait = min(2*wait, lastAlone)
	}
	return a.writes, nil
}

// awaitRest kicks the vCPU and waits until it rests. Precondition: Machine.mu held.
func (a *alone) awaitRest() error {
	v, m := a.v, a.v.m
	expired := false
	timer := time.AfterFunc(m.stopTimeout, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		expired = true
		m.rested.Broadcast()
	})
	defer timer.Stop()
	if !v.where.rests() {
		v.kick()
	}
	for !v.where.rests() {
		if expired {
			return &StopTimeoutError{CPU: v.id, After: m.stopTimeout}
		}
		m.rested.Wait()
	}
	return nil
}

// write does a write of a vCPU that runs alone, if it continues the one before.
// Thread: the vCPU's.
func (a *alone) write(at guest.GVA, memory, data []byte) bool {
	if at-a.at >= probe.MaxPoke || at-a.at+guest.GVA(len(data)) > probe.MaxPoke {
		return false
	}
	copy(memory, data)
	a.writes = append(a.writes, probe.TextWrite{Addr: at, Bytes: append([]byte{}, data...)})
	return true
}

// sleep waits for d, or until a is over. Precondition: Machine.mu held.
func (a *alone) sleep(wait time.Duration) {
	m := a.v.m
	expired := false
	timer := time.AfterFunc(wait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		expired = true
		m.rested.Broadcast()
	})
	defer timer.Stop()
	for !expired && !a.over.Load() {
		m.rested.Wait()
	}
}

// poker is the name of Linux's function that writes to text. Compilers append
// suffixes to it.
const poker = "__text_poke"

// findEnd returns the return address of the function in which the vCPU writes to
// its text, or 0. The world is stopped.
func (a *alone) findEnd() guest.GVA {
	v, m := a.v, a.v.m
	const depth = 4 // the function, and the functions that it calls to copy
	frames, _ := m.engine.Unwind(v.state(), depth)
	for i := range frames[:max(len(frames)-1, 0)] {
		s, ok := m.Image().Find(frames[i].RuleAddr())
		if name, _, _ := strings.Cut(s.Name, "."); !ok || name != poker {
			continue
		}
		end := guest.GVA(frames[i+1].PC)
		if t := m.Image(); !t.IsText(end) || m.engine.Patched(0, end, 1) {
			return 0
		}
		return end
	}
	return 0
}

// endTimeAlone ends the vCPU's run alone if the trap that has arrived is its
// end, and reports whether it was.
func (v *vcpu) endTimeAlone() bool {
	a := v.timeAlone()
	if a == nil || a.end == 0 || a.over.Load() || v.trap.trap.Kind != probe.TrapBreakpoint || guest.GVA(v.trap.state.Regs.RIP) != a.end {
		return false
	}
	v.resume()
	a.runs.Store(false)
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	a.over.Store(true)
	v.m.rested.Broadcast()
	return true
}

// blockInterrupts has KVM hold back interrupts of a vCPU while it runs alone,
// and deliver them afterwards. If KVM cannot do that, they are delivered.
func (v *vcpu) blockInterrupts() {
	a := v.timeAlone()
	if a != nil {
		a.entered.Store(true)
	}
	if (a != nil) == v.blocked {
		return
	}
	v.blocked = a != nil
	d := v.m.watch.debug
	if v.blocked {
		d.Control |= kvm.DebugBlockIRQ
	}
	if err := v.kvm.SetGuestDebug(d); err != nil && !v.blocked {
		v.m.log.Error("interrupts of the guest may be held back", "vcpu", v.id, "err", err)
	}
}
