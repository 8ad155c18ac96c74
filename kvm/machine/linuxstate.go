package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm"
)

// KernelPanicked is KernelState.System of a kernel that has panicked.
const KernelPanicked = "panicked"

// KernelState describes the running kernel of a Linux guest.
type KernelState struct {
	Version string
	System  string // booting, scheduling, freeing, running, panicked, replaced or hibernated; "": not known
	Panic   string // the panic message, as far as the console has shown it
	Slide   uint64 // offset of its addresses from the linked ones, in bytes
	// Checked lists how the running kernel itself confirms the slide: "LSTAR" (the
	// address of entry_SYSCALL_64) and "IDT" (of asm_exc_int3). It is empty before
	// the kernel has set them.
	Checked []string
	// Missing are sentences: which facts about the kernel are unknown, and which
	// features do not work because of that.
	Missing []string
}

// Kernel returns the state of the guest's kernel, or false for a guest that is
// not Linux. Any goroutine.
func (m *Machine) Kernel() (KernelState, bool) {
	if g := m.outside; g != nil {
		return g.kernelState()
	}
	g, ok := m.payload().(*linuxGuest)
	if !ok {
		return KernelState{}, false
	}
	view := g.seen.Load()
	s := KernelState{Version: g.cfg.Kernel.Version, Slide: uint64(view.Slide()), Missing: view.MissingFeatures()}
	if state, known := view.System(); known {
		s.System = state.String()
	}
	switch {
	case g.left.Load():
		s.System = "replaced"
		why := view.GoneReason()
		if why == linux.HibernatedText {
			s.System = "hibernated"
		}
		s.Missing = append(s.Missing, why)
	case view.Panicked():
		s.System, s.Panic = KernelPanicked, g.panicText(m)
	}
	if c := g.checked.Load(); c != nil {
		s.Checked = *c
	}
	if why := g.refused.Load(); why != nil {
		s.Missing = append(s.Missing, *why)
	}
	return s, true
}

// panicText returns the kernel's panic message on the console, or "".
func (g *linuxGuest) panicText(m *Machine) string {
	lines, _ := m.console.History()
	for _, l := range slices.Backward(lines) {
		if l.Seq < g.since.Load() {
			break
		}
		if _, text, ok := strings.Cut(l.Text, "Kernel panic - not syncing: "); ok && !l.Partial { // kernel/panic.c
			return strings.TrimSuffix(text, " ]---")
		}
	}
	return ""
}

// msrLSTAR holds the entry of syscalls (SDM Vol. 3, 5.8.8).
const msrLSTAR = 0xc000_0082

// checkSlide compares the slide, in two ways, with addresses that the running
// kernel has set in the processor. They differ only if the booted kernel is not
// the one that was read. Then no symbol has the right address. Precondition: the
// world is stopped.
func (g *linuxGuest) checkSlide(m *Machine) error {
	v := m.vcpus[0]
	var ways []string
	for _, way := range []struct {
		name, symbol string
		at           func() (uint64, bool)
	}{
		{"LSTAR", "entry_SYSCALL_64", func() (uint64, bool) {
			r := []kvm.MSR{{Index: msrLSTAR}}
			err := v.others.GetMSRs(r)
			return r[0].Data, err == nil
		}},
		{"IDT", "asm_exc_int3", func() (uint64, bool) {
			return m.breakpointGate(v)
		}},
	} {
		s, err := g.view().Lookup(way.symbol)
		if err != nil {
			continue // a kernel without symbols
		}
		at, ok := way.at()
		if !ok {
			continue
		}
		if at != uint64(s.Addr) {
			return fmt.Errorf("%s: the kernel has %s at %#x, its names at %v: is it the kernel that was booted (kexec)?", way.name, way.symbol, at, s.Addr)
		}
		ways = append(ways, way.name)
	}
	g.checked.Store(&ways)
	return nil
}
