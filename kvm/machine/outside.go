package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/foreign"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// Outside is the guest of another VMM, for Observe.
type Outside struct {
	Guest *foreign.Guest

	// Kernel is the image of the guest's kernel, and Linux where it is, if the
	// guest runs Linux. Otherwise View has the symbols of its program.
	Kernel *linux.Kernel
	Linux  foreign.Linux
	View   guest.View

	Log *slog.Logger // nil: none
}

// ErrOutside: the guest belongs to another VMM.
var ErrOutside = errors.New("not available for the guest of another VMM")

// errNotReachable returns ErrOutside for an operation.
func errNotReachable(what string) error { return fmt.Errorf("%s: %w", what, ErrOutside) }

// Observe returns the guest of another VMM for inspection (Machine.Look). It
// stops only for the time of a look. It cannot be paused, changed or saved
// (ErrSaved). Close it; the foreign.Guest stays open. Errors are *foreign.Error,
// also CodeImageDiffers if the kernel is another one, and errors of the kernel's
// tables.
func Observe(o Outside) (_ *Machine, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	g := &outsideGuest{of: o}
	cfg := Config{VCPUs: o.Guest.VCPUs(), Memory: o.Guest.Size(), Tick: -1, Log: o.Log}
	m := assemble(cfg, g)
	m.mem.Memory = o.Guest.Memory()
	m.outside = g
	for i := range cfg.VCPUs {
		m.vcpus = append(m.vcpus, newVCPU(m, i))
	}
	if _, err := m.load(g, nil); err != nil {
		return nil, err
	}
	m.engine, err = probe.New(m.target(), probe.Options{Log: o.Log})
	if err != nil {
		return nil, err
	}
	m.phase = PhaseRunning
	// The first stop checks that the image is the kernel's.
	if err := m.Look(func(*Look) error { return g.check(m) }); err != nil {
		return nil, err
	}
	return m, nil
}

// bannerBytes is how much of a kernel's banner is compared: with the number and the
// time of the build, of those that are not reproducible.
const bannerBytes = 160

// outsideGuest is the payload of a machine that another VMM runs.
type outsideGuest struct {
	of   Outside
	seen atomic.Pointer[linux.View] // nil: not Linux

	mu sync.Mutex // held while vCPUs are stopped

	// noTables is why the page tables of the guest's kernel are not known, or nil.
	// Guarded by mu.
	noTables error
}

// errNoTables: no vCPU has page tables of the form that is known here.
var errNoTables = &foreign.Error{Code: foreign.CodeNotLinux, Text: "no vCPU of the guest is in 64-bit mode, so that there are no page tables to follow"}

// stop stops the guest's vCPUs and runs f while their registers are known to m.
func (g *outsideGuest) stop(m *Machine, f func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.of.Guest.Stop(context.Background(), func(cpus []foreign.CPU) error {
		m.mu.Lock()
		for i, v := range m.vcpus {
			c := &cpus[i]
			if !c.Known {
				v.regs, v.sregs, v.others = &v.frame, new(kvm.Sregs), nil
				continue
			}
			regs, sregs := probe.Regs(c.Regs), c.Sregs
			v.regs, v.sregs, v.others, v.gs = &regs, &sregs, outsideCPU{c}, 0
		}
		if phase := g.phaseOf(cpus); m.phase != phase && !m.phase.over() && m.phase != PhaseCreated {
			m.setPhase(phase)
		}
		m.mu.Unlock()
		if view := g.seen.Load(); view != nil {
			view.Refresh()
		} else {
			m.booted.Store(g.spaceOf(m, cpus))
		}
		return f()
	})
	if foreign.CodeOf(err) == foreign.CodeGone {
		m.mu.Lock()
		if !m.phase.over() {
			m.setPhase(PhaseExited) // whatever is under way ends
		}
		m.mu.Unlock()
	}
	return err
}

// phaseOf returns paused if no vCPU's registers are known, because the VMM has paused the guest.
func (*outsideGuest) phaseOf(cpus []foreign.CPU) Phase {
	for i := range cpus {
		if cpus[i].Known {
			return PhaseRunning
		}
	}
	return PhasePaused
}

// spaceOf returns the page tables of the first vCPU in 64-bit mode, in place of the
// tables of a kernel that is not known.
func (g *outsideGuest) spaceOf(m *Machine, cpus []foreign.CPU) *booted {
	b := *m.booted.Load()
	g.noTables = foreign.ErrPaused
	for i := range cpus {
		c := &cpus[i]
		if c.Known && g.noTables != nil {
			g.noTables = errNoTables
		}
		if c.Known && c.Sregs.EFER&eferLMA != 0 {
			g.noTables = nil
			b.deep = c.Sregs.CR4&cr4LA57 != 0
			b.space = guest.NewAddressSpace(m.mem.Memory, guest.GPA(c.Sregs.CR3))
			if b.deep {
				b.space = b.space.Levels5()
			}
			break
		}
	}
	return &b
}

// sample implements Machine.Sample.
func (g *outsideGuest) sample(m *Machine, f Sampled) (asked, missed int) {
	err := g.stop(m, func() error {
		for _, v := range m.vcpus {
			if v.others != nil {
				asked++
				f(v.id, v.state())
			}
		}
		return nil
	})
	if err != nil {
		return 0, len(m.vcpus)
	}
	return asked, 0
}

// check confirms that the kernel in memory is the image's.
func (g *outsideGuest) check(m *Machine) error {
	view := g.seen.Load()
	if view == nil {
		return nil
	}
	differs := func(how string) error {
		return &foreign.Error{Code: foreign.CodeImageDiffers, Text: fmt.Sprintf("the guest runs %s, and the image is of %s: %s", g.of.Linux.Release, g.of.Kernel.Version, how)}
	}
	if at, ok := view.Address("asm_exc_int3"); ok && at != g.of.Linux.Breakpoint {
		return differs(fmt.Sprintf("its handler of vector 3 is at %v, the image's at %v", g.of.Linux.Breakpoint, at))
	}
	if at, ok := view.Address("linux_banner"); ok {
		b := make([]byte, len(foreign.BannerStart)+len(g.of.Linux.Release))
		if err := m.space(0).Read(at, b); err != nil || string(b) != foreign.BannerStart+g.of.Linux.Release {
			return differs(fmt.Sprintf("its banner is not at %v, where the image has it", at))
		}
		b = make([]byte, bannerBytes)
		if own := view.Constant(at, len(b)); own != nil && m.space(0).Read(at, b) == nil && !bytes.Equal(own, b) {
			return differs("their banners differ, so that they are two builds")
		}
	}
	return nil
}

// kernelState is Machine.Kernel.
func (g *outsideGuest) kernelState() (KernelState, bool) {
	view := g.seen.Load()
	if view == nil {
		return KernelState{}, false
	}
	s := KernelState{Version: g.of.Kernel.Version, Slide: uint64(view.Slide()), Checked: []string{"IDT"}, Missing: view.MissingFeatures()}
	if state, known := view.System(); known {
		s.System = state.String()
	}
	if view.Panicked() {
		s.System = KernelPanicked
	}
	return s, true
}

// outsideCPU has the registers that are not in kvm_run.
type outsideCPU struct{ *foreign.CPU }

// unknownRegisters implements Registers.Unknown.
func (c outsideCPU) unknownRegisters() []string {
	out := []string{"kernel_gs_base", "xcr0"}
	if c.HasDebug {
		return append(out, "cr8", "apic_base") // QEMU's text has no such ones
	}
	return append(out, "dr0", "dr1", "dr2", "dr3", "dr6", "dr7")
}

func (c outsideCPU) GetMSRs([]kvm.MSR) error { return ErrOutside }

func (c outsideCPU) GetDebugRegs(d *kvm.DebugRegs) error {
	*d = c.Debug
	return nil
}

func (c outsideCPU) GetXCRs(*kvm.XCRs) error { return ErrOutside }

func (c outsideCPU) GetXSave() ([]byte, error) {
	return nil, fmt.Errorf("floating point and vector registers: %w", ErrOutside)
}

func (g *outsideGuest) view() guest.View {
	if v := g.seen.Load(); v != nil {
		return v
	}
	return g.of.View
}

func (g *outsideGuest) load(m *Machine, _ *snapshot.Snapshot) (*guest.BootState, error) {
	l := &g.of.Linux
	b := &guest.BootState{Root: l.Root, Deep: l.Deep, NX: true}
	if g.of.Kernel == nil {
		return b, nil
	}
	view, err := linux.NewView(g.of.Kernel, &linux.BootState{Slide: l.Slide}, func(at guest.GVA, p []byte) error {
		return m.space(0).Read(at, p)
	})
	if err != nil {
		return nil, err
	}
	g.seen.Store(view)
	return b, nil
}

func (g *outsideGuest) onStop(*Machine) error { return nil }

// Refresh drops the copies that were made of another VMM's guest (memory,
// registers, the list of its kernel's modules), so that the guest is read again. It
// does nothing for other guests.
func (m *Machine) Refresh() error {
	g := m.outside
	if g == nil {
		return nil
	}
	if err := m.Look(func(*Look) error { return nil }); err != nil {
		return err
	}
	if view := g.seen.Load(); view != nil {
		if _, err := view.RefreshModules(); err != nil {
			m.log.Warn("modules of the guest are not known", "err", err)
		}
	}
	return nil
}

func (g *outsideGuest) memoryMap(uint64) ([]guest.MemoryRange, error) { return nil, nil }
func (g *outsideGuest) keepsMemory(*snapshot.Snapshot) bool           { return true }
func (g *outsideGuest) build(*Machine, *kvm.VM) error                 { return errNotReachable("build") }
func (g *outsideGuest) handlePort(*vcpu) bool                         { return false }
func (g *outsideGuest) handleMMIO(*vcpu) bool                         { return false }
func (g *outsideGuest) runBeside(*Machine, <-chan struct{})           {}
func (g *outsideGuest) noExecReason(bool) string                      { return ErrOutside.Error() }
func (g *outsideGuest) noFaultReason(bool) string                     { return ErrOutside.Error() }
func (g *outsideGuest) close() error                                  { return nil }
func (g *outsideGuest) forwards() bool                                { return false }
func (g *outsideGuest) isStub(guest.GVA) bool                         { return false }
func (g *outsideGuest) stubReturns() bool                             { return false }
func (g *outsideGuest) passToGuest(*vcpu, uint8) error                { return errNotReachable("pass an exception") }
func (g *outsideGuest) unsavedReason(*Machine) string                 { return ErrOutside.Error() }
func (g *outsideGuest) removeStubs([]snapshot.Run)                    {}
func (g *outsideGuest) hasAPIC() bool                                 { return false }
func (g *outsideGuest) createControllers(*kvm.VM) error               { return errNotReachable("create controllers") }
func (g *outsideGuest) setFeatures(*Machine, *kvm.VCPU, int) error {
	return errNotReachable("set features")
}
func (g *outsideGuest) checkFits(*Machine, *snapshot.Snapshot) error { return ErrOtherGuest }
func (g *outsideGuest) needsNewVM(*Machine) bool                     { return false }
func (g *outsideGuest) prepareRestore(*Machine) error                { return errNotReachable("restore") }
func (g *outsideGuest) finishRestore(*Machine, *snapshot.Snapshot) error {
	return errNotReachable("restore")
}

func (g *outsideGuest) setUp(*Machine, *kvm.VCPU, int, *guest.BootState) error {
	return errNotReachable("set up a vCPU")
}

func (g *outsideGuest) save(*Machine, *snapshot.Snapshot) (func(), error) {
	return nil, errNotReachable("save")
}
