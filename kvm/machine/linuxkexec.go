package machine

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// How a kernel is followed that starts another one
//
// kexec puts another kernel into the guest's memory, anywhere, and goes there. Until then the
// probes serve the one that was booted; no code of that runs afterwards. The other one has its own
// IDT, or writes to what was the text of the first: both are seen before the engine changes anything
// (onStop), or the write is done (handleTextWrite). Nothing of ours is written from then on to memory
// that has become the other's, and none of it is read-only any more.

// idtLimit is that of a kernel's IDT (SDM Vol. 3, 6.10): while it starts, or on its way to
// another, there is none, or a shorter one.
const idtLimit = 256*16 - 1

// breakpointGate returns where the IDT of v leads breakpoints. Precondition: v rests.
func (m *Machine) breakpointGate(v *vcpu) (to uint64, ok bool) {
	gate := make([]byte, 16)
	err := m.space(v.space()).Read(guest.GVA(v.sregs.IDT.Base)+16*x86.VectorBP, gate)
	lo, hi := littleEndian(gate[:8]), littleEndian(gate[8:])
	return hi<<32 | lo>>48<<16 | lo&0xffff, err == nil
}

// runsOtherKernel reports whether a vCPU, which rests, runs another kernel than g's.
func (g *linuxGuest) runsOtherKernel(m *Machine, v *vcpu) bool {
	want, known := g.seen.Load().Address("asm_exc_int3")
	if !known || v.others == nil || v.sregs.CR0&cr0PG == 0 || v.sregs.IDT.Limit < idtLimit {
		return false
	}
	to, ok := m.breakpointGate(v)
	return ok && to != uint64(want)
}

// isIntruder reports whether v, which has just written to the kernel's text, is not in that kernel:
// kexec's way to the other one runs in the lower half of the addresses.
func (g *linuxGuest) isIntruder(v *vcpu) bool {
	return int64(v.regs.RIP) >= 0 || g.runsOtherKernel(v.m, v)
}

// abandonIfReplaced gives the guest's memory up if another kernel has it: then, once, it fails. Precondition:
// the world is stopped.
func (g *linuxGuest) abandonIfReplaced(m *Machine) error {
	gone := g.intrude.Load()
	for _, v := range m.vcpus {
		gone = gone || g.runsOtherKernel(m, v)
	}
	if !gone || g.left.Load() {
		return nil
	}
	g.abandonMemory(m, linux.ReplacedText)
	return errors.New(linux.ReplacedText)
}

// abandonMemory leaves the guest's memory alone from now on, and says why. The world is stopped.
func (g *linuxGuest) abandonMemory(m *Machine, why string) {
	g.seen.Load().Gone(why)
	g.left.Store(true)
	if m.watch.text.Size != 0 {
		if err := m.protectText(guest.MemoryRange{}); err != nil {
			m.log.Error("what was the kernel's text stays read-only", "err", err)
		}
	}
	m.log.Warn(why)
}

// checkKernel sees whether another kernel has come, and takes the probes off if so.
func (g *linuxGuest) checkKernel(m *Machine) {
	_ = m.target().Stop(func(probe.World) error { return nil })
	if g.left.Load() {
		if err := m.engine.TargetChanged(); err != nil {
			m.log.Warn("probes of a kernel that is gone", "err", err)
		}
	}
}

// cr0PG says that paging is on (SDM Vol. 3, 2.5).
const cr0PG = 1 << 31
