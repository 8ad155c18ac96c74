package machine

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// How memory is watched
//
// One way is the debug registers of all vCPUs (KVM_SET_GUEST_DEBUG, KVM API
// document, section 4.87), if calibration has found them to work. The other is
// to protect pages. RAM is cut into memory slots, so that a page whose writes
// are watched has a read-only slot of its own, and a page whose reads are
// watched, too, has no slot. KVM then emulates the instructions that access it,
// and reports each access as KVM_EXIT_MMIO with its data (section 5). The host
// does the access and reports it to the engine.
//
// The emulator's read and the host's write of an atomic instruction are two
// steps. So while pages are protected one vCPU runs at a time: see turns.

// watchSlots is the number of the first memory slot that RAM is cut into; the
// first piece keeps slot 0.
const watchSlots = 16

// watches is the watched memory. It changes only while the world is stopped.
type watches struct {
	debug  kvm.GuestDebug // of all vCPUs
	pages  []probe.WatchedPage
	pieces int               // memory slots of RAM in addition to slot 0
	text   guest.MemoryRange // of RAM, read-only, so that writes there are reported; see protectText
}

// reset prepares for a new VM, whose RAM is one slot and whose debug registers
// are not set.
func (w *watches) reset() { *w = watches{debug: kvm.GuestDebug{Control: guestDebug}} }

// find returns the watched page that contains pa.
func (w *watches) find(pa guest.GPA) *probe.WatchedPage {
	for i := range w.pages {
		if w.pages[i].PA == pa&^(guest.PageSize-1) {
			return &w.pages[i]
		}
	}
	return nil
}

// NoWatchReason implements probe.Watcher.
func (m target) NoWatchReason(a probe.Access, user, emulate bool) string {
	return m.host.NoWatchReason(a, user, emulate)
}

// GuestDebugs implements probe.Watcher: the enable bits of the guest's own DR7
// (SDM Vol. 3, 18.2.4).
func (m target) GuestDebugs(cpu int) (bool, error) {
	k := m.vcpus[cpu].kvm
	if k == nil {
		return false, nil
	}
	var d kvm.DebugRegs
	if err := k.GetDebugRegs(&d); err != nil {
		return false, err
	}
	return d.DR7&0xff != 0, nil
}

// SetWatches implements probe.Watcher.
func (m target) SetWatches(d probe.DebugRegisters, pages []probe.WatchedPage) error {
	next := watches{debug: kvm.GuestDebug{Control: guestDebug}}
	if d.Enabled() {
		next.debug.Control |= kvm.DebugUseHWBP
		for i, a := range d.Addr {
			next.debug.Reg[i] = uint64(a)
		}
		next.debug.Reg[7] = d.DR7
	}
	next.pages, next.text = pages, m.watch.text
	ram := m.mem.Regions()[0]
	for _, p := range pages {
		if p.PA < ram.Base || p.PA-ram.Base >= guest.GPA(len(ram.Bytes)) {
			return &probe.Error{Code: probe.CodeHostCannot, Errno: syscall.ENODEV, Text: fmt.Sprintf("%v is not in the guest's RAM", p.PA)}
		}
	}
	old := m.watch
	err := m.applyWatches(&next)
	if err != nil {
		err = errors.Join(err, m.applyWatches(&old))
	}
	return err
}

// applyWatches sets the watched addresses to w.
func (m *Machine) applyWatches(w *watches) error {
	if m.vm == nil {
		return nil // a guest that could not be built has no memory to watch
	}
	if w.debug != m.watch.debug {
		for _, v := range m.vcpus {
			if v.kvm == nil {
				continue
			}
			if err := v.kvm.SetGuestDebug(w.debug); err != nil {
				return fmt.Errorf("vcpu %d: %w", v.id, err)
			}
		}
		m.watch.debug = w.debug
	}
	if len(w.pages) == 0 && len(m.watch.pages) == 0 {
		return nil
	}
	m.turns.on = len(w.pages) != 0 && len(m.vcpus) > 1
	err := m.cutRAM(w.pages, w.text)
	if m.watching.Store(len(m.watch.pages) != 0); m.watching.Load() {
		m.startGuard()
	}
	return err
}

// protectText makes a range of RAM, whole pages, read-only to the guest. Writes
// there reach handleTextWrite. The world is stopped.
func (g *guestMemory) protectText(r guest.MemoryRange) error { return g.cutRAM(g.watch.pages, r) }

// cutRAM maps RAM into the VM so that accesses to pages, which are sorted, and
// writes to text are reported.
func (g *guestMemory) cutRAM(pages []probe.WatchedPage, text guest.MemoryRange) error {
	ram := g.mem.Regions()[0]
	for i := range g.watch.pieces + 1 {
		if err := g.vm.UnmapMemory(pieceSlot(i)); err != nil {
			return err
		}
	}
	g.watch.pages, g.watch.pieces, g.watch.text = nil, 0, guest.MemoryRange{}
	n := 0
	slot := func(from, to guest.GPA, flags kvm.MemoryFlags) error {
		if from >= to {
			return nil
		}
		err := g.vm.MapMemory(pieceSlot(n), uint64(from), ram.Bytes[from-ram.Base:to-ram.Base], flags)
		if err == nil {
			g.watch.pieces = n
			n++
		}
		return err
	}
	textEnd := text.Base + guest.GPA(text.Size)
	piece := func(from, to guest.GPA, flags kvm.MemoryFlags) error {
		return errors.Join(
			slot(from, min(to, max(from, text.Base)), flags),
			slot(max(from, text.Base), min(to, textEnd), kvm.MemReadOnly),
			slot(max(from, min(to, textEnd), text.Base), to, flags),
		)
	}
	at := ram.Base
	for _, p := range pages {
		if err := piece(at, p.PA, 0); err != nil {
			return err
		}
		at = p.PA + guest.PageSize
		if !p.Read {
			if err := piece(p.PA, at, kvm.MemReadOnly); err != nil {
				return err
			}
		}
	}
	if err := piece(at, ram.Base+guest.GPA(len(ram.Bytes)), 0); err != nil {
		return err
	}
	g.watch.pages, g.watch.text = pages, text
	return nil
}

// pieceSlot returns the memory slot of piece i of RAM.
func pieceSlot(i int) int {
	if i == 0 {
		return 0
	}
	return watchSlots + i
}

// handleWatchedAccess does the access of the last exit if it is to a watched
// page, and reports it to the engine.
func (v *vcpu) handleWatchedAccess() bool {
	x := &v.exit.MMIO
	pa, n := guest.GPA(x.GPA), int(x.Len)
	if v.m.watch.find(pa) == nil || n < 1 || n > 8 {
		return false
	}
	b, err := v.m.mem.Slice(pa, n)
	if err != nil {
		return false
	}
	a := probe.PageAccess{PA: pa, Len: n, Write: x.Write}
	copy(a.Old[:], b)
	a.New = a.Old
	if x.Write {
		copy(a.New[:n], x.Data[:n])
		copy(b, x.Data[:n])
		v.traceEnd = v.regs.RFLAGS&x86.FlagTF != 0
		v.m.turns.unlock(v)
	} else {
		// The turn is kept: the write of the same instruction may follow.
		v.kvm.SetMMIO(a.Old)
	}
	s := v.state()
	regs := *s.Regs // the instruction is in progress, so a handler must not change its registers
	s.Regs = &regs
	if v.m.engine.Accessed(v.id, s, a) {
		v.due.raise(dueStop)
	}
	return true
}

// endTrace raises the debug exception for an instruction that has written to a
// watched page, in code that single-steps itself. KVM raises none after an
// instruction that it has reported as an exit (x86_emulate_instruction,
// arch/x86/kvm/x86.c).
func (v *vcpu) endTrace() {
	if !v.traceEnd {
		return
	}
	v.traceEnd = false
	if on, err := v.kvm.Delivering(); !on && err == nil { // another KVM may have raised it
		v.deliver(probe.TrapOfTF)
	}
}
