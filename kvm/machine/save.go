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

	// ErrOtherGuest: the snapshot's guest does not fit this machine.
	ErrOtherGuest = errors.New("the snapshot is of another guest")

	// ErrSavedEnd: the guest had exited or crashed when it was saved.
	ErrSavedEnd = errors.New("the guest of the snapshot had ended, and cannot resume")
)

// How long to wait until a probe's code is left, and how often to check. Such
// code ends in microseconds, unless its task is preempted there.
const (
	insideTime = 2 * time.Second
	insideWait = 100 * time.Microsecond
)

// kept is the part of a payload that is about snapshots.
type kept interface {
	// unsavedReason returns why the guest cannot be saved, or "". It is called
	// with the world stopped.
	unsavedReason(m *Machine) string

	// save adds the machine's state other than vCPUs and memory. Until release is
	// called nothing writes to memory.
	save(m *Machine, s *snapshot.Snapshot) (release func(), err error)

	// removeStubs removes changes from saved memory that are there only because of
	// this host.
	removeStubs(runs []snapshot.Run)

	// hasAPIC reports whether the machine has interrupt controllers.
	hasAPIC() bool

	// createControllers creates the parts of a VM other than memory, and
	// setFeatures sets a new vCPU to the features of the guest's. The guest itself
	// is not changed.
	createControllers(vm *kvm.VM) error
	setFeatures(m *Machine, k *kvm.VCPU, id int) error

	// checkFits is Machine.CheckFit.
	checkFits(m *Machine, s *snapshot.Snapshot) error

	// needsNewVM reports whether restoring a snapshot needs another VM, and load
	// for it.
	needsNewVM(m *Machine) bool

	// prepareRestore sets up the engine's memory as setUp does, before the guest's
	// memory is restored. finishRestore follows, once memory is restored and
	// before the vCPUs are.
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

// Save saves the state of the guest with the world stopped, and the guest
// resumes afterwards. The snapshot has nothing of the engine's: see
// probe.Engine.RunUnpatched and probe.Clean. If the guest runs, Save waits for
// handlers and the host's own calls that are in progress. A guest that has ended
// is saved as it is, for Open. If with is not nil, it is called with the world
// stopped, for data of the same moment; it must not call the engine. Errors are
// ErrNoSnapshot, *probe.InsideError, ErrCallBusy, ErrClosed, *StopTimeoutError
// and KVM's errors. A handler must not call Save.
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
			return m.engine.RunUnpatched(ended, func(c *probe.Clean) (err error) {
				if s, err = m.snapshots.take(c, ended); err == nil && with != nil {
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
			m.snapshots.noteSound(s)
			return s, nil
		case errors.Is(err, errOver): // it is saved as a guest that has ended
			continue
		case !errors.Is(err, probe.ErrInside) || n > 0 && (phase != PhaseRunning || time.Since(begin) > insideTime):
			return fail(err)
		}
		time.Sleep(time.Duration(n) * insideWait) // lets the guest run for a moment
	}
}

// errOver: the guest ended before the world was stopped. If it were saved as a
// running guest, it would never end when restored.
var errOver = errors.New("the guest has ended during the save")

// take is Machine.Save with the world stopped, and without the engine's bytes in
// the guest's text.
func (x *snapshots) take(clean *probe.Clean, ended bool) (*snapshot.Snapshot, error) {
	m := x.m
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
		s.Config.Tables = t.UsedBytes()
	}
	m.exec.mu.Lock()
	s.Config.KernelFar, s.Config.UserFar = m.exec.kernelFar.mappedPages(), m.exec.userFar.mappedPages()
	m.exec.mu.Unlock()
	msrs, err := x.stateMSRs()
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
			// The guest's own int3, whose exception KVM holds but does not show. It is
			// executed again.
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
			// A pending exception belongs to the stage's access, not to the probed
			// instruction at which the vCPU is in the snapshot.
			c.Events.E.Inject, c.Events.E.Pending = 0, 0
		}
		if e := &c.Events.E; !ended && clean.Untraced[i] && e.Nr == x86.VectorDB {
			e.Inject, e.Pending = 0, 0
		}
		if !ended && clean.Traced[i] && c.Events.E.Inject|c.Events.E.Pending == 0 {
			switch in := &c.Events; { // one event is delivered at a time, and the trap comes first
			case in.N.Inject != 0, in.I.Inject != 0 && k.hasAPIC():
				return nil, &probe.InsideError{CPU: i}
			case in.I.Inject != 0:
				in.I.Inject, c.Tick = 0, true
			}
			c.Events.E.Inject, c.Events.E.Nr, c.Events.E.HadErrorCode = 1, x86.VectorDB, 0
			c.Debug.DR6 |= probe.TrapOfTF.DR6
		}
		forEachHeld(c, m.cpuid, clean.Register)
		s.CPUs = append(s.CPUs, *c)
	}
	if g, ok := k.(*linuxGuest); ok && !ended && g.inCall(m) {
		return nil, errInCall
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

// stateMSRs returns the numbers of the MSRs in a snapshot.
func (x *snapshots) stateMSRs() (all []uint32, err error) {
	m := x.m
	if x.msrs == nil {
		x.msrs, err = m.sys.StateMSRs(m.vcpus[0].kvm)
	}
	return x.msrs, err
}

// trapping reports whether a vCPU is in a handler of the guest's that begins
// with forwarding a trap to the host. The frame on its stack holds the address
// of an int3 or code of ours, which the guest does not have without us.
func (v *trapFrame) trapping() bool {
	_, ok := v.handsTrap()
	return ok
}

// handsTrap is trapping, and also returns the port.
func (v *trapFrame) handsTrap() (port uint8, ok bool) {
	if v.cpl() != 0 {
		return 0, false
	}
	code := make([]byte, entryReach)
	for v.m.space(v.state().Root).Read(guest.GVA(v.regs.RIP), code) != nil { // memory after the instruction may be unmapped
		if code = code[:len(code)-1]; len(code) < 2 {
			return 0, false
		}
	}
	for {
		for _, port := range trapPorts {
			if bytes.HasPrefix(code, guest.TrapStub(port)[:2]) {
				return port, true
			}
		}
		in, err := x86.Decode(code)
		if err != nil || !isEntry(&in) {
			return 0, false
		}
		code = code[in.Len:]
	}
}

// entryReach is how many bytes of a handler are searched for its stub.
const entryReach = 32

// isEntry reports whether handlers may have an instruction before their stub. It
// must have no effect that their return does not undo: ENDBR64, clac, cld and
// the no-ops that Linux puts in their place (arch/x86/kernel/alternative.c).
func isEntry(in *x86.Inst) bool {
	const (
		cld  = 0xfc
		clac = 0xca // of 0F 01
	)
	return in.IsNop() || in.Enc == x86.Legacy && (in.Map == x86.Map0 && in.Opcode == cld || in.Map == x86.Map0F && in.Opcode == 0x01 && in.ModRM == clac)
}

// trapPorts are the ports through which the guest's stubs forward exceptions.
var trapPorts = [...]uint8{guest.PortBreakpoint, guest.PortDebug, guest.PortFault}

// save returns the state of the vCPU, which rests, with the given general
// registers.
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

// saveMemory returns the parts of the guest's memory that are not zero. In saved
// contexts, addresses of the engine's code are replaced by the guest's own.
func (g *guestMemory) saveMemory(clean *probe.Clean) (runs []snapshot.Run, err error) {
	for i, r := range g.mem.ranges {
		if r.Kind != guest.RangeRAM {
			continue
		}
		base := g.mem.regions[i]
		g.mem.forEachTouched(i, func(b []byte) {
			runs = snapshot.AppendRuns(runs, r.Base+guest.GPA(cap(base)-cap(b)), b)
		})
	}
	g.payload().removeStubs(runs)
	more := func(pa guest.GPA) []byte { return snapshot.Find(runs, pa) }
	for _, r := range runs {
		if err := clean.Memory(r.At, r.Bytes, more); err != nil {
			return nil, err
		}
	}
	return runs, nil
}
