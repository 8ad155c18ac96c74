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
// kexec puts another kernel into the guest's memory, anywhere, and jumps to it.
// Until then the probes serve the kernel that was booted; none of its code runs
// afterwards. The other kernel has its own IDT, or writes to the text of the
// first. The engine notices either before it changes anything (onStop) or before
// the write is done (handleTextWrite). From then on it writes nothing to memory
// that now belongs to the other kernel, and none of that memory stays read-only.

// idtLimit is the limit of a kernel's full IDT (SDM Vol. 3, 6.10). While a
// kernel starts, or on its way to another, it has none, or a shorter one.
const idtLimit = 256*16 - 1

// breakpointGate returns the address of the breakpoint handler in the IDT of v.
// Precondition: v rests.
func (m *Machine) breakpointGate(v *vcpu) (to uint64, ok bool) { return gateTarget(v, x86.VectorBP) }

// gateTarget returns the address of a vector's handler in the IDT of v.
// Precondition: v rests.
func gateTarget(v *vcpu, vector uint8) (to uint64, ok bool) {
	gate := make([]byte, 16)
	err := v.m.space(v.space()).Read(guest.GVA(v.sregs.IDT.Base)+16*guest.GVA(vector), gate)
	lo, hi := littleEndian(gate[:8]), littleEndian(gate[8:])
	return hi<<32 | lo>>48<<16 | lo&0xffff, err == nil
}

// runsOtherKernel reports whether a resting vCPU runs another kernel than g's.
func (g *linuxGuest) runsOtherKernel(m *Machine, v *vcpu) bool {
	want, known := g.seen.Load().Address("asm_exc_int3")
	if !known || v.others == nil || v.sregs.CR0&cr0PG == 0 || v.sregs.IDT.Limit < idtLimit {
		return false
	}
	to, ok := m.breakpointGate(v)
	return ok && to != uint64(want)
}

// isIntruder reports whether v, which has just written to the kernel's text,
// runs code outside that kernel: kexec's code that starts the other kernel runs
// in the lower half of the addresses.
func (g *linuxGuest) isIntruder(v *vcpu) bool {
	return int64(v.regs.RIP) >= 0 || g.runsOtherKernel(v.m, v)
}

// abandonIfReplaced abandons the guest's memory if another kernel has it: in
// that case it fails, once. Precondition: the world is stopped.
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

// abandonMemory stops all accesses to the guest's memory from now on, and
// records why. The world is stopped.
func (g *linuxGuest) abandonMemory(m *Machine, why string) {
	g.seen.Load().MarkGone(why)
	g.left.Store(true)
	if m.watch.text.Size != 0 {
		if err := m.protectText(guest.MemoryRange{}); err != nil {
			m.log.Error("the former kernel's text stays read-only", "err", err)
		}
	}
	m.log.Warn(why)
}

// checkKernel checks whether another kernel has started, and removes the probes
// in that case.
func (g *linuxGuest) checkKernel(m *Machine) {
	_ = m.target().Stop(func(probe.World) error { return nil })
	if g.left.Load() {
		if err := m.engine.TargetChanged(); err != nil {
			m.log.Warn("probes of a kernel that is gone", "err", err)
		}
	}
}

// cr0PG is set while paging is on (SDM Vol. 3, 2.5).
const cr0PG = 1 << 31
