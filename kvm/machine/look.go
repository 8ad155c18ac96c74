package machine

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/foreign"
	"github.com/guestprobe/guestprobe/probe"
)

// Look is a guest at one instant: no vCPU is in guest mode, and each is between two
// instructions. It is valid only inside the function that Machine.Look runs.
type Look struct {
	m     *Machine
	world probe.World
}

// Look brings every vCPU out of guest mode, runs f, and resumes the vCPUs that
// ran. A handler must not call it. It returns f's error, ErrClosed or a
// *StopTimeoutError.
func (m *Machine) Look(f func(*Look) error) error {
	return m.target().Stop(func(w probe.World) error { return f(&Look{m, w}) })
}

// ErrNoVCPU: the machine has no vCPU of that number, or the guest could not be built again.
var ErrNoVCPU = errors.New("there is no such vCPU")

// Registers are the registers of a vCPU.
type Registers struct {
	CPU      int
	Activity VCPUActivity

	// Regs are the general registers. RIP is an address of the guest's own. Live
	// is where the vCPU really is, which may be in the engine's code. Inside means
	// that it is in code of a probe's handlers there, which uses the other
	// registers itself and restores them afterwards.
	Regs   probe.Regs
	Live   guest.GVA
	Inside bool

	System   System
	KernelGS uint64 // the MSR that swapgs exchanges GS.Base with
	Debug    kvm.DebugRegs
	XCR0     uint64 // 0: the host does not say

	// Unknown are the names of registers above that could not be read, and are 0:
	// of the guest of another VMM.
	Unknown []string
}

// Segment is a segment register with its hidden part, as in Registers.System.
type Segment = kvm.Segment

// System are the segment, control and table registers of a vCPU.
type System = kvm.Sregs

// NumVCPU returns the number of vCPUs.
func (l *Look) NumVCPU() int { return len(l.m.vcpus) }

// otherRegs has the registers of a vCPU that Machine does not share with it:
// kvm.VCPU, or snapshot.CPU for a guest that is inspected without KVM.
type otherRegs interface {
	GetMSRs([]kvm.MSR) error
	GetDebugRegs(*kvm.DebugRegs) error
	GetXCRs(*kvm.XCRs) error
	GetXSave() ([]byte, error)
}

// vcpu returns a vCPU, if it has registers that are known.
func (l *Look) vcpu(cpu int) (*vcpu, error) {
	if cpu < 0 || cpu >= len(l.m.vcpus) || l.m.vcpus[cpu].others == nil {
		if l.m.outside != nil && cpu >= 0 && cpu < len(l.m.vcpus) {
			return nil, fmt.Errorf("vcpu %d: %w", cpu, foreign.ErrPaused)
		}
		return nil, fmt.Errorf("vcpu %d of %d: %w", cpu, len(l.m.vcpus), ErrNoVCPU)
	}
	return l.m.vcpus[cpu], nil
}

// GeneralRegisters returns the general and the system registers of a vCPU.
// Registers also returns the others, which it has to read from KVM. The system
// registers must not be changed. It returns ErrNoVCPU.
func (l *Look) GeneralRegisters(cpu int) (r probe.Regs, system *System, err error) {
	v, err := l.vcpu(cpu)
	if err != nil {
		return r, nil, err
	}
	r = *v.regs
	r.RIP = uint64(l.m.engine.Home(guest.GVA(r.RIP)))
	return r, v.sregs, nil
}

// Registers returns the registers of a vCPU. It returns ErrNoVCPU or an error of
// KVM.
func (l *Look) Registers(cpu int) (Registers, error) {
	v, err := l.vcpu(cpu)
	if err != nil {
		return Registers{}, err
	}
	m := l.m
	r := Registers{CPU: cpu, Regs: *v.regs, Live: guest.GVA(v.regs.RIP), System: *v.sregs}
	m.mu.Lock()
	r.Activity = v.resumedActivity()
	m.mu.Unlock()
	r.Regs.RIP = uint64(m.engine.Home(r.Live))
	r.Inside = m.engine.InStage(r.Live)
	msr := []kvm.MSR{{Index: msrKernelGS}}
	if err := v.others.GetMSRs(msr); err == nil {
		r.KernelGS = msr[0].Data
	}
	if err := v.others.GetDebugRegs(&r.Debug); err != nil {
		return r, err
	}
	if o, ok := v.others.(outsideCPU); ok {
		r.Unknown = o.unknownRegisters()
	}
	var x kvm.XCRs
	if v.others.GetXCRs(&x) == nil && x.NrXRCS > 0 && x.Registers[0].XRC == 0 {
		r.XCR0 = x.Registers[0].Value
	}
	return r, nil
}

// resumedActivity returns what the vCPU would do if the world were not stopped,
// as soon as its thread notices that it is resumed. Precondition: m.mu held.
func (v *vcpu) resumedActivity() VCPUActivity {
	a := v.activity()
	switch {
	case v.m.phase != PhaseRunning:
	case v.stop != nil:
		return VCPUStopped
	case a == VCPUParked:
		return VCPURunning // it is parked for the look
	}
	return a
}

// setRegs changes the general registers of a vCPU. If RIP is the one that
// Registers has returned, the vCPU stays where it is, even in the engine's code.
// Errors are ErrNoVCPU and ErrSaved.
func (l *Look) setRegs(cpu int, r probe.Regs) error {
	v, err := l.vcpu(cpu)
	switch {
	case err != nil:
		return err
	case v.kvm == nil:
		return ErrSaved
	}
	if live := guest.GVA(v.regs.RIP); guest.GVA(r.RIP) == l.m.engine.Home(live) {
		r.RIP = uint64(live)
	}
	if *v.regs == r {
		return nil
	}
	moved := v.regs.RIP != r.RIP
	*v.regs = r
	v.kvm.SetRegsDirty()
	if moved {
		return v.leaveHalt()
	}
	return nil
}

// leaveHalt ends the hlt in which a resting vCPU waits, because RIP has changed.
func (v *vcpu) leaveHalt() error {
	v.asleep = false
	m := v.m
	m.mu.Lock()
	if v.where.inHalt() {
		v.setState(stateRoused)
		v.due.raise(duePark)
	}
	m.mu.Unlock()
	if !m.payload().hasAPIC() {
		return nil
	}
	switch state, err := v.kvm.MPState(); {
	case err != nil:
		return err
	case state == kvm.MPHalted:
		return v.kvm.SetMPState(kvm.MPRunnable)
	}
	return nil
}

// Vectors returns the floating point and vector registers of a vCPU. It returns
// ErrNoVCPU or an error of KVM.
func (l *Look) Vectors(cpu int) (Vectors, error) {
	v, err := l.vcpu(cpu)
	if err != nil {
		return Vectors{}, err
	}
	b, err := v.others.GetXSave()
	if err != nil {
		return Vectors{}, err
	}
	return unpackVectors(b, l.m.cpuid), nil
}

// Stack returns at most limit frames of a vCPU's code, the innermost first, and
// whether there are more. It returns ErrNoVCPU.
func (l *Look) Stack(cpu, limit int) (frames []guest.Frame, more bool, err error) {
	v, err := l.vcpu(cpu)
	if err != nil {
		return nil, false, err
	}
	if l.m.engine.InStage(guest.GVA(v.regs.RIP)) {
		limit = 1 // the stack pointer belongs to the handlers
	}
	frames, more = l.m.engine.Unwind(v.state(), limit)
	return frames, more, nil
}

// StackFrom returns the frames of kernel code that will resume at f, and of its
// callers, as Stack does.
func (l *Look) StackFrom(f guest.Frame, limit int) (frames []guest.Frame, more bool) {
	return l.m.engine.UnwindFrom(0, f, limit)
}

// KernelGS returns the GS base of the guest's kernel on a vCPU, or 0.
func (l *Look) KernelGS(cpu int) (guest.GVA, error) {
	v, err := l.vcpu(cpu)
	if err != nil {
		return 0, err
	}
	return l.m.target().KernelGS(cpu, v.state()), nil
}

// Root returns the page tables that a vCPU uses, or 0 for the kernel's.
func (l *Look) Root(cpu int) (guest.GPA, error) {
	v, err := l.vcpu(cpu)
	if err != nil {
		return 0, err
	}
	return v.space(), nil
}

// Read reads memory at addr through the page tables at root, or the kernel's if
// root is 0. Without live it reads the guest's own bytes, with live the bytes in
// memory, including the engine's int3s and jumps. It returns the number of bytes
// that were read, with a *guest.PageFaultError if that is fewer than len(p).
func (l *Look) Read(root guest.GPA, addr guest.GVA, p []byte, live bool) (int, error) {
	if err := l.tablesError(root); err != nil {
		return 0, err
	}
	as := l.m.space(root)
	for n := 0; n < len(p); {
		// Page by page: pages before a missing one count.
		size := min(len(p)-n, int(guest.PageSize-uint64(addr+guest.GVA(n))%guest.PageSize))
		if err := as.Read(addr+guest.GVA(n), p[n:n+size]); err != nil {
			p = p[:n]
			l.hideEngineBytes(root, addr, p, live)
			return n, err
		}
		n += size
	}
	l.hideEngineBytes(root, addr, p, live)
	return len(p), nil
}

// tablesError returns why there are no page tables at root, or nil.
func (l *Look) tablesError(root guest.GPA) error {
	if g := l.m.outside; g != nil && root == 0 {
		return g.noTables
	}
	return nil
}

func (l *Look) hideEngineBytes(root guest.GPA, addr guest.GVA, p []byte, live bool) {
	if live {
		return
	}
	if g, ok := l.m.payload().(*linuxGuest); ok {
		g.hideStubs(addr, p)
	}
	l.m.engine.UnpatchBytes(root, addr, p)
}

// Write writes p to data of the guest, even where the guest's page tables do not
// permit it. It does not write text in which probes have bytes: see
// probe.Engine.WriteText. Either all is written or none. Errors are
// *guest.PageFaultError, ErrProbed, ErrEngine and ErrSaved.
func (l *Look) Write(root guest.GPA, addr guest.GVA, p []byte) error {
	if l.m.sys == nil {
		return ErrSaved
	}
	if l.m.engine.Patched(root, addr, len(p)) {
		return fmt.Errorf("write %d bytes at %v: %w", len(p), addr, ErrProbed)
	}
	as := l.m.space(root)
	pinned := false
	for at, end := addr&^(guest.PageSize-1), addr+guest.GVA(len(p)); at < end; at += guest.PageSize {
		if m, err := as.Translate(at); err == nil && l.m.mem.kindOf(m.PA) != guest.RangeRAM {
			return fmt.Errorf("write %d bytes at %v: %w", len(p), addr, ErrEngine)
		}
		_, pin := as.TextAt(at)
		pinned = pinned || pin
	}
	if !pinned && as.Write(addr, p) == nil {
		return nil // and the guest's kernel knows that its page has changed
	}
	return as.Poke(addr, p)
}

// ErrEngine: the memory to write belongs to the engine.
var ErrEngine = errors.New("the code and data of probes are there")

// ErrProbed: probes have changed the text that was to be written.
var ErrProbed = errors.New("probes have int3s or jumps there; detach them first")

// Walk returns the entries of the page tables at root that lead to addr, as far
// as they exist, and their mapping. A root of 0 means the kernel's tables.
// Errors are *guest.PageFaultError.
func (l *Look) Walk(root guest.GPA, addr guest.GVA) (as guest.AddressSpace, steps []guest.Step, m guest.Mapping, err error) {
	if err := l.tablesError(root); err != nil {
		return as, nil, m, err
	}
	as = l.m.space(root)
	if root == 0 {
		as = as.WithHome(guest.Home{}) // the tables themselves
	}
	steps, m, err = as.Walk(addr)
	return as, steps, m, err
}

// Region returns the name of the guest's memory at a physical address, or "" if
// it has none.
func (l *Look) Region(pa guest.GPA) string {
	for _, r := range l.m.mem.Regions() {
		if pa-r.Base < guest.GPA(len(r.Bytes)) {
			return r.Name
		}
	}
	return ""
}
