package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm"
)

// KernelPanicked is KernelState.System of a kernel that has.
const KernelPanicked = "panicked"

// KernelState is what is known of a Linux guest's kernel as it runs.
type KernelState struct {
	Version string
	System  string // booting, scheduling, freeing, running, panicked, replaced or hibernated; "" where the kernel's names do not say
	Panic   string // what it says about that, as far as its console has shown it
	Slide   uint64 // bytes that its addresses are from those that it was linked for
	// Checked says how the running kernel itself confirms the slide: "LSTAR" (where it has
	// entry_SYSCALL_64) and "IDT" (asm_exc_int3). None before it has set them.
	Checked []string
	// Missing are sentences: what is not known of it, and what does not work for that reason.
	Missing []string
}

// Kernel returns the state of the guest's kernel, false for a guest that is no Linux. Any
// goroutine.
func (m *Machine) Kernel() (KernelState, bool) {
	g, ok := m.payload().(*linuxGuest)
	if !ok {
		return KernelState{}, false
	}
	view := g.seen.Load()
	s := KernelState{Version: g.cfg.Kernel.Version, Slide: uint64(view.Slide()), Missing: view.Missing()}
	if state, known := view.System(); known {
		s.System = state.String()
	}
	switch {
	case g.left.Load():
		s.System = "replaced"
		why := view.Why()
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

// panicText returns what the kernel's console says about its panic, or "".
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

// checkSlide compares the slide with what the running kernel has told the processor, in two
// ways. They cannot differ unless something else was booted than was read: then nothing is
// where its names say. Precondition: the world is stopped.
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
			continue // a kernel without names
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
