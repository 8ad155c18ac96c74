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
// By the debug registers of all vCPUs (KVM_SET_GUEST_DEBUG, KVM API document,
// section 4.87), where calibration has seen them work. Or by protecting pages:
// RAM is cut into memory slots so that a page whose writes are watched has a
// read-only slot of its own, and one whose reads are watched, too, has none. KVM
// then emulates the instructions that access it, and reports each access as
// KVM_EXIT_MMIO with its data (section 5); the host does it and tells the engine.
//
// The emulator's read and the host's write of an atomic instruction are two
// steps. So while pages are protected one vCPU runs at a time: see turns.

// watchSlots is the number of the first memory slot that RAM is cut into; the
// first piece keeps slot 0.
const watchSlots = 16

// watches is what the machine watches. It changes only while the world is
// stopped.
type watches struct {
	debug  kvm.GuestDebug // of all vCPUs
	pages  []probe.WatchedPage
	pieces int               // memory slots that RAM takes beside slot 0
	text   guest.MemoryRange // of RAM, read-only, so that writes there are reported; see protectText
}

// reset is for a new VM, whose RAM is one slot and which has no debug registers
// set.
func (w *watches) reset() { *w = watches{debug: kvm.GuestDebug{Control: guestDebug}} }

// find returns the watched page that pa is in.
func (w *watches) find(pa guest.GPA) *probe.WatchedPage {
	for i := range w.pages {
		if w.pages[i].PA == pa&^(guest.PageSize-1) {
			return &w.pages[i]
		}
	}
	return nil
}

// CannotWatch implements probe.Watcher.
func (m target) CannotWatch(a probe.Access, user, emulate bool) string {
	return m.host.CannotWatch(a, user, emulate)
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

// applyWatches makes w what is watched.
func (m *Machine) applyWatches(w *watches) error {
	if m.vm == nil {
		return nil // a guest that could not be built has nothing to watch
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

// protectText makes a range of RAM, whole pages, read-only to the guest: its writes
// there come to handleTextWrite. The world is stopped.
func (m *Machine) protectText(r guest.MemoryRange) error { return m.cutRAM(m.watch.pages, r) }

// cutRAM maps RAM into the VM so that accesses to pages, which are ascending,
// and writes to text are reported.
func (m *Machine) cutRAM(pages []probe.WatchedPage, text guest.MemoryRange) error {
	ram := m.mem.Regions()[0]
	for i := range m.watch.pieces + 1 {
		if err := m.vm.UnmapMemory(pieceSlot(i)); err != nil {
			return err
		}
	}
	m.watch.pages, m.watch.pieces, m.watch.text = nil, 0, guest.MemoryRange{}
	n := 0
	slot := func(from, to guest.GPA, flags kvm.MemoryFlags) error {
		if from >= to {
			return nil
		}
		err := m.vm.MapMemory(pieceSlot(n), uint64(from), ram.Bytes[from-ram.Base:to-ram.Base], flags)
		if err == nil {
			m.watch.pieces = n
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
	m.watch.pages, m.watch.text = pages, text
	return nil
}

// pieceSlot returns the memory slot of piece i of RAM.
func pieceSlot(i int) int {
	if i == 0 {
		return 0
	}
	return watchSlots + i
}

// handleWatchedAccess does the access of the last exit if it is to a watched page, and
// tells the engine.
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
		v.m.turns.give(v)
	} else {
		// The turn is kept: the write of the same instruction may follow.
		v.kvm.SetMMIO(a.Old)
	}
	s := v.state()
	regs := *s.Regs // the instruction is under way: its registers are not the handler's
	s.Regs = &regs
	if v.m.engine.Accessed(v.id, s, a) {
		v.due.raise(dueStop)
	}
	return true
}

// endTrace raises the debug exception behind an instruction of code that single-steps itself, whose write to a watched page is
// done: behind one that it has reported KVM raises none (x86_emulate_instruction, arch/x86/kvm/x86.c).
func (v *vcpu) endTrace() {
	if !v.traceEnd {
		return
	}
	v.traceEnd = false
	if on, err := v.kvm.Delivering(); !on && err == nil { // another KVM may
		v.deliver(probe.TrapOfTF)
	}
}
