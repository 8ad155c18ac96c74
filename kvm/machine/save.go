package machine

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// Errors of snapshots.
var (
	// ErrNoSnapshot: guests of this kind cannot be saved.
	ErrNoSnapshot = errors.New("this guest cannot be saved")

	// ErrOtherGuest: a snapshot is of a guest that this machine cannot be.
	ErrOtherGuest = errors.New("the snapshot is of another guest")

	// ErrSavedEnd: the guest had exited or crashed when it was saved.
	ErrSavedEnd = errors.New("the guest of the snapshot does not go on")
)

// How long it is waited for that what is inside a probe's code comes out, and how often it is looked: such code ends in
// microseconds, unless its task is preempted there.
const (
	insideTime = 2 * time.Second
	insideWait = 100 * time.Microsecond
)

// kept is what of a payload is about snapshots.
type kept interface {
	// unsavedReason says what of the guest cannot be saved, or "". It is called with the world stopped.
	unsavedReason(m *Machine) string

	// save adds what the machine has beside vCPUs and memory. Until release is called nothing writes to memory.
	save(m *Machine, s *snapshot.Snapshot) (release func(), err error)

	// removeStubs takes out of what was saved of memory what is there for this host alone.
	removeStubs(runs []snapshot.Run)

	// hasAPIC reports whether there are interrupt controllers.
	hasAPIC() bool

	// createControllers makes what a VM has beside memory, and setFeatures gives a new vCPU the features of the guest's; the
	// guest itself is not changed.
	createControllers(vm *kvm.VM) error
	setFeatures(m *Machine, k *kvm.VCPU, id int) error

	// checkFits is Machine.Fits.
	checkFits(m *Machine, s *snapshot.Snapshot) error

	// needsNewVM reports whether a snapshot takes another VM, and a load for it.
	needsNewVM(m *Machine) bool

	// prepareRestore prepares for memory that comes back what setUp has in the engine's; finishRestore follows, with memory as it was, before
	// the vCPUs.
	prepareRestore(m *Machine) error
	finishRestore(m *Machine, s *snapshot.Snapshot) error
}

func (p bare) unsavedReason(*Machine) string { return "" }

func (p bare) save(*Machine, *snapshot.Snapshot) (func(), error) { return func() {}, nil }

func (p bare) removeStubs([]snapshot.Run) {}

func (p bare) hasAPIC() bool { return false }

func (p bare) checkFits(_ *Machine, s *snapshot.Snapshot) error {
	if s.Config.Linux != nil {
		return fmt.Errorf("%w: a Linux kernel", ErrOtherGuest)
	}
	return nil
}

func (p bare) keepsMemory(*snapshot.Snapshot) bool { return false }

func (p bare) needsNewVM(m *Machine) bool { return m.vm == nil }

func (p bare) finishRestore(*Machine, *snapshot.Snapshot) error { return nil }

func (p bare) prepareRestore(m *Machine) error {
	_, err := p.earlyIDT(m, 0)
	return err
}

// Save takes the state of the guest, with the world stopped, which goes on then. The snapshot has nothing of the
// engine's: see probe.Engine.Apart and probe.Clean. What a handler, or the host's own call, is in the middle of is waited
// for, if the guest runs; a guest that has ended is saved as it is, for Open. With, if it is not nil, is called with the world
// stopped for what is to be of the same moment; it must not call the engine. Errors are ErrNoSnapshot, *probe.InsideError, ErrCallBusy,
// ErrClosed, *StopTimeoutError and those of KVM. A handler must not call it.
func (m *Machine) Save(with func()) (*snapshot.Snapshot, error) {
	m.life.Lock()
	defer m.life.Unlock()
	fail := func(err error) (*snapshot.Snapshot, error) { return nil, fmt.Errorf("save: %w", err) }
	var s *snapshot.Snapshot
	begin := time.Now()
	for n := 0; ; n++ {
		m.mu.Lock()
		phase := m.phase
		m.mu.Unlock()
		if phase == PhaseClosed {
			return fail(ErrClosed)
		}
		ended := phase == PhaseExited || phase == PhaseCrashed
		try := func() error {
			return m.engine.Apart(ended, func(c *probe.Clean) (err error) {
				if s, err = m.save(c, ended); err == nil && with != nil {
					with()
				}
				return err
			})
		}
		var err error
		if n == 0 || ended {
			err = try()
		} else {
			err = m.runTidied(try)
		}
		switch {
		case err == nil:
			m.noteSound(s)
			return s, nil
		case errors.Is(err, errOver): // it is saved as one that has ended
			continue
		case !errors.Is(err, probe.ErrInside) || n > 0 && (phase != PhaseRunning || time.Since(begin) > insideTime):
			return fail(err)
		}
		time.Sleep(time.Duration(n) * insideWait) // the guest is to go on for a little
	}
}

// errOver: the guest has ended before the world was stopped. Saved as a running guest it would never end when restored.
var errOver = errors.New("the guest has ended meanwhile")

// save is Save with the world stopped, and with nothing of the engine's in the guest's text.
func (m *Machine) save(clean *probe.Clean, ended bool) (*snapshot.Snapshot, error) {
	k := m.payload()
	if why := k.unsavedReason(m); why != "" {
		return nil, fmt.Errorf("%w: %s", ErrNoSnapshot, why)
	}
	id := m.Image().ID()
	m.mu.Lock()
	if !ended && m.phase.over() {
		m.mu.Unlock()
		return nil, errOver
	}
	s := &snapshot.Snapshot{Config: snapshot.Config{
		ID: rand.Text(), SHA256: hex.EncodeToString(id.SHA256[:]), VCPUs: len(m.vcpus), Memory: m.cfg.Memory, Cmdline: m.cfg.Cmdline,
		TickUS: max(0, m.cfg.Tick.Microseconds()), Started: m.phase != PhaseCreated, Vendor: snapshot.Vendor(m.cpuid),
		Checks: m.checks.Load(), LastBad: m.lastBad.Load(),
	}, CPUID: m.cpuid}
	for _, r := range m.mem.ranges {
		if r.Kind == guest.RangeRAM {
			s.Config.RAM = append(s.Config.RAM, snapshot.Range{Base: r.Base, Size: r.Size})
		}
	}
	for _, v := range m.vcpus {
		s.Config.Activity = append(s.Config.Activity, string(v.resumedActivity()))
	}
	crash := m.crash
	if ended {
		s.Config.Ended, s.Config.ExitCode = string(m.phase), m.exitCode
	}
	m.mu.Unlock()
	if crash != nil {
		var err error
		if s.Config.Crash, err = json.Marshal(crash); err != nil {
			return nil, err
		}
	}
	if t, ok := m.booted.Load().tables.(*guest.Tables); ok {
		s.Config.Tables = t.Used()
	}
	m.exec.mu.Lock()
	s.Config.KernelFar, s.Config.UserFar = m.exec.kernelFar.mappedPages(), m.exec.userFar.mappedPages()
	m.exec.mu.Unlock()
	msrs, err := m.stateMSRs()
	if err != nil {
		return nil, err
	}
	for i, v := range m.vcpus {
		switch {
		case ended:
		case v.call != nil:
			return nil, fmt.Errorf("vcpu %d: %w", i, ErrCallBusy)
		case v.where.midExit(), v.trapping():
			return nil, &probe.InsideError{CPU: i}
		}
		if runs, err := v.kvm.RunsGuests(); err != nil {
			return nil, fmt.Errorf("vcpu %d: %w", i, err)
		} else if runs {
			return nil, fmt.Errorf("%w: it runs virtual machines of its own (vcpu %d), whose state snapshots do not have; end them, and unload its hypervisor", ErrNoSnapshot, i)
		}
		if !ended && v.given != 0 && guest.GVA(v.regs.RIP)-v.given <= 1 {
			// The guest's own int3, whose exception KVM has and does not show: it is executed again.
			hidden, err := v.kvm.HidesBreakpoint()
			if err != nil {
				return nil, fmt.Errorf("vcpu %d: %w", i, err)
			}
			if hidden {
				clean.Regs[i].RIP = uint64(v.given)
			}
		}
		c, err := v.save(&clean.Regs[i], msrs)
		if err != nil {
			return nil, fmt.Errorf("vcpu %d: %w", i, err)
		}
		if !ended && clean.Touches(guest.GVA(v.regs.RIP)) {
			// An exception on its way in is of the stage's access, not of the probed instruction where the vCPU is in the snapshot.
			c.Events.E.Inject, c.Events.E.Pending = 0, 0
		}
		eachHeld(c, m.cpuid, clean.Register)
		s.CPUs = append(s.CPUs, *c)
	}
	release, err := k.save(m, s)
	if err != nil {
		return nil, err
	}
	defer release()
	if s.Memory, err = m.saveMemory(clean); err != nil {
		return nil, err
	}
	for _, x := range clean.Inside {
		s.Config.Inside = append(s.Config.Inside, x.Error())
	}
	return s, nil
}

// stateMSRs returns the numbers of the MSRs that a snapshot has.
func (m *Machine) stateMSRs() (all []uint32, err error) {
	if m.msrs == nil {
		m.msrs, err = m.sys.StateMSRs(m.vcpus[0].kvm)
	}
	return m.msrs, err
}

// trapping reports whether a vCPU is on its way to the host, in a handler of the guest's that begins with handing a trap over: the
// frame on its stack says where our int3 stands, or our code, which the guest does not have without us.
func (v *vcpu) trapping() bool {
	_, ok := v.handsTrap()
	return ok
}

// handsTrap is trapping, and returns by which port.
func (v *vcpu) handsTrap() (port uint8, ok bool) {
	if v.cpl() != 0 {
		return 0, false
	}
	code := make([]byte, x86.MaxLen)
	for v.m.space(v.state().Root).Read(guest.GVA(v.regs.RIP), code) != nil { // what follows it may be unmapped
		if code = code[:len(code)-1]; len(code) < 2 {
			return 0, false
		}
	}
	// Linux's begin with ENDBR64 and CLAC, which it patches: see plantStubs.
	for _, first := range [][]byte{{0xf3, 0x0f, 0x1e, 0xfa}, {0x0f, 0x01, 0xca}, {0x0f, 0x1f, 0x00}} {
		code = bytes.TrimPrefix(code, first)
	}
	for _, port := range trapPorts {
		if bytes.HasPrefix(code, guest.TrapStub(port)[:2]) {
			return port, true
		}
	}
	return 0, false
}

// trapPorts are the ports by which stubs of the guest's hand exceptions over.
var trapPorts = [...]uint8{guest.PortBreakpoint, guest.PortDebug, guest.PortFault}

// save returns the state of the vCPU, which rests, with these general registers.
func (v *vcpu) save(regs *probe.Regs, msrs []uint32) (c *snapshot.CPU, err error) {
	c = &snapshot.CPU{
		Regs: kvm.Regs(*regs), Sregs: *v.sregs, Tick: v.tick.Load(),
		Asleep: v.asleep || v.where.inHalt(),
	}
	c.Sregs.InterruptBitmap = [len(c.Sregs.InterruptBitmap)]uint64{}
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	keep(v.kvm.GetDebugRegs(&c.Debug))
	keep(v.kvm.GetEvents(&c.Events))
	var e error
	c.State, e = v.kvm.MPState()
	keep(e)
	c.XSave, e = v.kvm.GetXSave()
	keep(e)
	c.MSRs, e = v.kvm.ReadMSRs(msrs)
	keep(e)
	keep(v.kvm.GetXCRs(&c.XCRs))
	if v.m.payload().hasAPIC() {
		keep(v.kvm.GetLAPIC(&c.LAPIC))
	}
	return c, err
}

// saveMemory returns what is not zero of the guest's memory, with its own addresses in the place of those of the
// engine's code in saved contexts.
func (m *Machine) saveMemory(clean *probe.Clean) (runs []snapshot.Run, err error) {
	for i, r := range m.mem.ranges {
		if r.Kind != guest.RangeRAM {
			continue
		}
		base := m.mem.regions[i]
		m.mem.eachTouched(i, func(b []byte) {
			runs = snapshot.AppendRuns(runs, r.Base+guest.GPA(cap(base)-cap(b)), b)
		})
	}
	m.payload().removeStubs(runs)
	more := func(pa guest.GPA) []byte { return snapshot.Find(runs, pa) }
	for _, r := range runs {
		if err := clean.Memory(r.At, r.Bytes, more); err != nil {
			return nil, err
		}
	}
	return runs, nil
}
