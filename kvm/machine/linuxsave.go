package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"weak"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// cameBack is the analysis of the guest's kernel after a reset to a snapshot. It
// is reused for the next reset to the same snapshot.
type cameBack struct {
	to   weak.Pointer[snapshot.Snapshot]
	view *linux.View
}

// la57Of reports whether the guest of a snapshot has 5-level page tables.
func la57Of(s *snapshot.Snapshot) bool { return s.CPUs[0].Sregs.CR4&cr4LA57 != 0 }

// keepsMemory implements payload: the kernel is moved as it was, and its first page tables have as many levels.
func (g *linuxGuest) keepsMemory(to *snapshot.Snapshot) bool {
	return g.boot != nil && to.Config.Linux != nil && g.boot.Slide == to.Config.Linux.Slide && g.boot.CR4&cr4LA57 != 0 == la57Of(to)
}

// unsavedReason implements kept.
func (g *linuxGuest) unsavedReason(*Machine) string {
	if g.left.Load() {
		return g.seen.Load().GoneReason()
	}
	return ""
}

func (g *linuxGuest) hasAPIC() bool { return true }

// save implements kept.
func (g *linuxGuest) save(m *Machine, s *snapshot.Snapshot) (release func(), err error) {
	b := g.board.Load()
	release = b.platform.Hold()
	defer func() {
		if err != nil {
			release()
			err = fmt.Errorf("%w: %w", ErrNoSnapshot, err)
		}
	}()
	l := &snapshot.Linux{Slide: g.boot.Slide, Past: g.settled, Root: m.booted.Load().space.Root()}
	l.CoreInfo = g.coreInfo(m)
	l.Image, l.PMD, l.PUD, l.Tables, l.Used = g.engine.snapshotState()
	for _, d := range g.cfg.Disks {
		l.Disks = append(l.Disks, snapshot.Disk{Path: d.Path, ReadOnly: d.ReadOnly})
	}
	state, err := b.platform.Save()
	if err != nil {
		return nil, err
	}
	if l.Devices, err = json.Marshal(state); err != nil {
		return nil, err
	}
	s.Config.Linux = l
	return release, m.vm.GetBoard(&s.Board)
}

// coreInfo returns the kernel's information for readers of its memory, or ""
// (vmcoreinfo_data, kernel/vmcore_info.c or crash_core.c).
func (g *linuxGuest) coreInfo(m *Machine) string {
	word := func(name string) (uint64, error) {
		at, _ := g.seen.Load().Address(name)
		return readWord(m.space(0), at)
	}
	at, err := word("vmcoreinfo_data")
	n, err2 := word("vmcoreinfo_size")
	text := make([]byte, min(n, guest.PageSize)) // VMCOREINFO_BYTES
	if errors.Join(err, err2, m.space(0).Read(guest.GVA(at), text)) != nil {
		return ""
	}
	return string(text)
}

// removeStubs implements kept: the stubs, which breakpoints use on some hosts,
// do not belong to the guest.
func (g *linuxGuest) removeStubs(runs []snapshot.Run) {
	for _, s := range g.plantedStubs() {
		at := g.engine.home.PA + guest.GPA(s.at-g.engine.home.Start)
		for i := range s.bytes {
			if b := snapshot.Find(runs, at+guest.GPA(i)); len(b) > 0 {
				b[0] = s.bytes[i]
			}
		}
	}
}

// plantedStubs returns the stubs that are in the kernel's text. Text for booting
// is no longer text once the boot is over.
func (g *linuxGuest) plantedStubs() (in []trapStub) {
	for _, s := range g.stubs {
		if g.view().IsText(s.at) {
			in = append(in, s)
		}
	}
	return in
}

// devicesOf returns the devices' state of a snapshot.
func devicesOf(s *snapshot.Snapshot) (*device.State, error) {
	state := new(device.State)
	if err := json.Unmarshal(s.Config.Linux.Devices, state); err != nil {
		return nil, fmt.Errorf("%w: %w", snapshot.ErrDamaged, err)
	}
	return state, nil
}

// checkFits implements kept.
func (g *linuxGuest) checkFits(m *Machine, s *snapshot.Snapshot) error {
	l := s.Config.Linux
	if l == nil {
		return fmt.Errorf("%w: no Linux kernel", ErrOtherGuest)
	}
	if g.boot != nil && g.boot.Slide != l.Slide && m.sharedHeld() {
		return fmt.Errorf("%w: it is of another boot, and programs have memory in this one, whose addresses stand in their code: detach them first", ErrOtherGuest)
	}
	ram := func(pa guest.GPA, n uint64) bool {
		return pa%guest.PageSize == 0 && slices.ContainsFunc(m.mem.ranges, func(r guest.MemoryRange) bool {
			return r.Kind == guest.RangeRAM && pa >= r.Base && n <= r.Size && uint64(pa-r.Base) <= r.Size-n
		})
	}
	align, last := g.cfg.Kernel.Slides()
	if l.Slide > last || align != 0 && l.Slide%align != 0 || !ram(l.PMD, guest.PageSize) || !ram(l.PUD, guest.PageSize) || !ram(l.Tables, engineTableSize) {
		return fmt.Errorf("%w: a kernel moved by %#x, tables at %v, %v and %v", ErrOtherGuest, l.Slide, l.PMD, l.PUD, l.Tables)
	}
	state, err := devicesOf(s)
	if err == nil {
		err = g.board.Load().platform.CheckFit(state)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOtherGuest, err)
	}
	return nil
}

// needsNewVM implements kept. It is always true: the VM's controllers and
// devices belong to one boot, and the kernel's slide decides where the kernel
// is.
func (g *linuxGuest) needsNewVM(*Machine) bool { return true }

func (g *linuxGuest) prepareRestore(*Machine) error { return nil }

// finishRestore implements kept.
func (g *linuxGuest) finishRestore(m *Machine, s *snapshot.Snapshot) error {
	l := s.Config.Linux
	if l == nil {
		return fmt.Errorf("%w: no Linux kernel", ErrOtherGuest)
	}
	if err := g.engine.restoreState(l); err != nil {
		return err
	}
	b := *m.booted.Load()
	b.home = g.engine.home
	m.booted.Store(&b)
	g.settled = l.Past
	view := g.seen.Load()
	view.Refresh()
	for _, st := range g.plantedStubs() {
		p, err := m.mem.Slice(g.engine.home.PA+guest.GPA(st.at-g.engine.home.Start), len(st.bytes))
		if err != nil {
			return err
		}
		copy(p, guest.TrapStub(guest.PortBreakpoint))
	}
	g.refreshModules(m)
	if to := weak.Make(s); g.came.to != to {
		g.came = cameBack{to, view.Copy()}
	}
	g.recheck = g.settled
	if m.vm == nil {
		return nil
	}
	if text := g.textPages(); g.settled && m.host.KVM.Readonly && text.Size != 0 {
		if err := m.protectText(text); err != nil {
			return err
		}
	}
	state, err := devicesOf(s)
	if err != nil {
		return err
	}
	// Lines first, then the controllers' state, which depends on them. The local
	// APICs follow, because they may have received a rise.
	return errors.Join(g.board.Load().platform.Restore(state), m.vm.SetBoard(&s.Board))
}
