package machine

import (
	"fmt"
	"maps"
	"math/bits"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// farPages are executable pages at addresses that the engine chose, for detours
// whose address must contain certain bytes of the jump to them.
type farPages struct {
	pages guest.MemoryRange
	used  uint64
	at    map[guest.GVA]guest.GPA // page by page
}

func newFarPages(r guest.MemoryRange) farPages {
	return farPages{pages: r, at: map[guest.GVA]guest.GPA{}}
}

// find returns the physical address of the n bytes at a, if they are in one far
// page.
func (f *farPages) find(a guest.GVA, n uint64) (guest.GPA, bool) {
	pa, ok := f.at[a&^(guest.PageSize-1)]
	off := uint64(a) % guest.PageSize
	return pa + guest.GPA(off), ok && n <= guest.PageSize-off
}

// mappedPages returns the mapped pages, or nil.
func (f *farPages) mappedPages() map[guest.GVA]guest.GPA {
	if len(f.at) == 0 {
		return nil
	}
	return maps.Clone(f.at)
}

// MapExec implements probe.Detours.
func (m target) MapExec(near, addr guest.GVA, n int) error {
	m.memory.RLock()
	defer m.memory.RUnlock()
	if m.freed {
		return fmt.Errorf("map executable memory: %w", ErrClosed)
	}
	user := m.Image().IsUserText(near)
	m.exec.mu.Lock()
	defer m.exec.mu.Unlock()
	far := &m.exec.kernelFar
	if user {
		far = &m.exec.userFar
	}
	last := (addr + guest.GVA(n) - 1) &^ (guest.PageSize - 1)
	for page := addr &^ (guest.PageSize - 1); ; page += guest.PageSize {
		if _, ok := far.at[page]; !ok {
			if err := m.mapFar(far, page, user); err != nil {
				return fmt.Errorf("map executable memory at %v: %w", addr, err)
			}
		}
		if page == last {
			return nil
		}
	}
}

// Boards implements probe.Boards. A Linux kernel has holes for the engine's
// mappings. The mappings of other guests are not known, except for the addresses
// that the guest leaves free for the engine.
func (m target) Boards(user bool) (windows []guest.Range, anywhere bool) {
	if _, linux := m.payload().(*linuxGuest); linux {
		return nil, true
	}
	b := m.booted.Load().state
	if user {
		return b.UserBoards, false
	}
	return b.KernelBoards, false
}

// mapFar maps the next far page. Callers hold exec.mu.
func (g *guestMemory) mapFar(far *farPages, page guest.GVA, user bool) error {
	if far.used == far.pages.Size {
		return fmt.Errorf("all %d pages are in use", far.pages.Size/guest.PageSize)
	}
	pa := far.pages.Base + guest.GPA(far.used)
	b, err := g.mem.Slice(pa, guest.PageSize)
	if err != nil {
		return err
	}
	fillInt3(b)
	if err := g.booted.Load().tables.Map(page, pa, user); err != nil {
		return err
	}
	far.used += guest.PageSize
	far.at[page] = pa
	return nil
}

// OneMapping implements probe.Detours. A Linux kernel executes its text at the image's
// addresses only (docs/optimization.md); of any other guest only the guest knows.
func (m target) OneMapping(user bool) string {
	img, ok := m.Image().(*guest.Image)
	switch {
	case !ok && user:
		return "user text of a Linux guest is mapped by each process as it likes"
	case !ok:
		return ""
	}
	what, bit := "kernel text", guest.ProfileKernelOnce
	if user {
		what, bit = "user text", guest.ProfileOneMapping
	}
	at, err := img.FlagsAt()
	if err != nil {
		return fmt.Sprintf("only the guest can promise that its %s runs at one address, by flags in %s or %s: %v", what, guest.SymProfile, guest.SymFlags, err)
	}
	var b [8]byte
	if err := m.Peek(at, b[:]); err != nil {
		return fmt.Sprintf("the guest's flags cannot be read: %v", err)
	}
	if guest.ProfileFlags(littleEndian(b[:]))&bit == 0 {
		return fmt.Sprintf("bit %d of the guest's flags is 0: its %s may run at more than one address", bits.TrailingZeros64(uint64(bit)), what)
	}
	return ""
}

// Profile implements probe.Detours.
func (m target) Profile(user bool) (guest.Profile, bool) {
	p, err := m.Image().Profile()
	if p.Faults != nil {
		x := *p.Faults
		x.SMAP = cpuidSMAP(m.cpuid)
		p.Faults = &x
	}
	return p, err == nil && !(p.GS && user)
}

// KernelGS implements probe.PerCPU. At CPL3 it returns the value at CPL0: a
// kernel's memory for a vCPU does not move once the vCPU has user code.
func (m target) KernelGS(cpu int, s probe.State) guest.GVA {
	v := m.vcpus[cpu]
	if s.CPL == 0 {
		v.gs = guest.GVA(v.sregs.GS.Base)
	} else if msr := []kvm.MSR{{Index: msrKernelGS}}; v.gs == 0 && v.others.GetMSRs(msr) == nil {
		v.gs = guest.GVA(msr[0].Data)
	}
	return v.gs
}

// msrKernelGS is IA32_KERNEL_GS_BASE (SDM Vol. 4, table 2-2).
const msrKernelGS = 0xc0000102
