package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
)

// Limits of one calibration test.
const (
	calTimeout  = time.Second // then the vCPU is kicked
	calMaxExits = 32          // exits of a test before it counts as looping
)

// calibrated keeps the results of this process, by device: hosts do not change
// under a process. Failures are not kept.
var calibrated struct {
	sync.Mutex
	reports map[string]Report
}

// Calibrate finds out how the KVM at path ("" is /dev/kvm) delivers traps, by
// running a small guest. If KVM is not usable, the report says why and the error
// is kvm.Open's. The result is kept for the life of the process.
func Calibrate(ctx context.Context, path string) (Report, error) {
	if path == "" {
		path = kvm.DefaultPath
	}
	calibrated.Lock()
	defer calibrated.Unlock()
	if r, ok := calibrated.reports[path]; ok {
		return r, nil
	}
	start := time.Now()
	r, err := calibrate(ctx, path)
	if err != nil {
		r.KVM.Path, r.KVM.Usable, r.KVM.Reason = path, false, err.Error()
		var open *kvm.OpenError
		if errors.As(err, &open) {
			r.KVM.Hint = open.Hint
		}
		return r, fmt.Errorf("calibrate: %w", err)
	}
	r.KVM.Elapsed = time.Since(start).Round(time.Microsecond).String()
	if calibrated.reports == nil {
		calibrated.reports = make(map[string]Report)
	}
	calibrated.reports[path] = r
	return r, nil
}

// calibrator runs the tests, one VM for all and a fresh vCPU for each, so a
// failed test does not affect the next one.
type calibrator struct {
	vm    *kvm.VM
	mem   []byte
	cpuid []kvm.CPUIDEntry
	next  int // number of the next vCPU
}

func calibrate(ctx context.Context, path string) (r Report, err error) {
	sys, err := kvm.Open(path)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, sys.Close()) }()
	r.KVM = KVM{
		Usable: true, API: sys.APIVersion(), Path: path,
		SyncRegs: sys.Check(kvm.CapSyncRegs)&3 == 3,
		Readonly: sys.Check(kvm.CapReadOnlyMemory) != 0,
		MaxVCPUs: max(sys.Check(kvm.CapMaxVCPUs), sys.Check(kvm.CapNrVCPUs)),
	}
	c := &calibrator{}
	if c.cpuid, err = sys.SupportedCPUID(); err != nil {
		return r, err
	}
	r.KVM.Vendor = cpuidVendor(c.cpuid)
	if c.vm, err = sys.CreateVM(); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.vm.Close(), kvm.FreeMemory(c.mem)) }()
	if c.mem, err = kvm.AllocMemory(calMemory); err != nil {
		return r, err
	}
	calibrationMemory(c.mem)
	if err = c.vm.SetTSSAddr(kvm.TSSAddr); err != nil {
		return r, err
	}
	if err = c.vm.MapMemory(0, 0, c.mem, 0); err != nil {
		return r, err
	}
	for _, x := range []struct {
		cpl uint8
		to  *TrapReport
	}{{0, &r.Traps.CPL0}, {3, &r.Traps.CPL3}} {
		if x.to.Int3, x.to.Inject, err = c.int3(ctx, x.cpl); err != nil {
			return r, err
		}
		for _, t := range []struct {
			test *calTest
			to   *Delivery
		}{{&testStep, &x.to.Step}, {&testHWBreak, &x.to.HWBreak}, {&testWatch, &x.to.Watch}} {
			if *t.to, err = c.trap(ctx, t.test, x.cpl); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// cpuidVendor returns the vendor string of CPUID leaf 0 (SDM Vol. 2, CPUID).
func cpuidVendor(entries []kvm.CPUIDEntry) string {
	for _, e := range entries {
		if e.Function == 0 {
			var b [12]byte
			for i, r := range []uint32{e.Ebx, e.Edx, e.Ecx} {
				binary.LittleEndian.PutUint32(b[4*i:], r)
			}
			return string(b[:])
		}
	}
	return ""
}

// calRun is one test in progress, on a locked thread.
type calRun struct {
	k     *kvm.VCPU
	exit  kvm.Exit
	timer *time.Timer
	late  atomic.Bool
	exits int
	mem   []byte
	end   uint64 // of the test's code
}

// begin creates a vCPU for a test at a privilege level. The caller closes the
// run, on the same goroutine.
func (c *calibrator) begin(t *calTest, cpl uint8) (_ *calRun, err error) {
	runtime.LockOSThread()
	r := &calRun{mem: c.mem, end: t.end()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s at cpl%d: %w", t.name, cpl, err), r.close())
		}
	}()
	if r.k, err = c.vm.CreateVCPU(c.next); err != nil {
		return nil, err
	}
	c.next++
	r.k.Bind()
	if err = r.k.SetCPUID(c.cpuid); err != nil {
		return nil, err
	}
	var s kvm.Sregs
	if err = r.k.GetSregs(&s); err != nil {
		return nil, err
	}
	calibrationSregs(&s, cpl)
	if err = r.k.SetSregs(&s); err != nil {
		return nil, err
	}
	regs := t.prepare(c.mem, cpl)
	if err = r.k.SetRegs(&regs); err != nil {
		return nil, err
	}
	if err = r.k.SetGuestDebug(t.debug); err != nil {
		return nil, err
	}
	r.timer = time.AfterFunc(calTimeout, func() {
		r.late.Store(true)
		_ = r.k.Kick() // an error cannot be handled here: the vCPU's owner waits for the same
	})
	return r, nil
}

func (r *calRun) close() error {
	defer runtime.UnlockOSThread()
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.k == nil {
		return nil
	}
	r.k.Unbind()
	return r.k.Close()
}

// outcome is the result of one KVM_RUN of a test.
type outcome uint8

const (
	sawOther outcome = iota
	sawDebug
	sawEmulation
	sawVector1
	sawVector3
	sawDone
	sawLate  // kicked
	sawLimit // too many exits
)

// next runs the guest to its next telling exit.
func (r *calRun) next(ctx context.Context) (outcome, error) {
	for {
		if err := ctx.Err(); err != nil {
			return sawOther, err
		}
		if r.exits++; r.exits > calMaxExits {
			return sawLimit, nil
		}
		if err := r.k.Run(&r.exit); err != nil {
			return sawOther, nil // the result is "broken"; other tests may work
		}
		switch r.exit.Reason {
		case kvm.ReasonInterrupted:
			if r.late.Load() {
				return sawLate, nil
			}
			r.exits--
			r.k.ClearKick()
			if r.late.Load() { // it came in between
				return sawLate, nil
			}
		case kvm.ReasonDebug:
			return sawDebug, nil
		case kvm.ReasonInternalError:
			if b := r.exit.Internal.EmulationBytes(); len(b) > 0 && b[0] == x86.Int3 ||
				r.exit.Internal.Suberror == kvm.SuberrorEmulation && len(b) == 0 && r.byteAt(r.k.Regs().RIP) == x86.Int3 {
				return sawEmulation, nil
			}
			return sawOther, nil
		case kvm.ReasonIO:
			switch r.exit.IO.Port {
			case guest.PortBreakpoint:
				return sawVector3, nil
			case guest.PortDebug:
				return sawVector1, nil
			case calDone:
				return sawDone, nil
			case guest.PortFault:
				if r.frameRIP() == r.end {
					return sawDone, nil
				}
			}
			return sawOther, nil
		default:
			return sawOther, nil
		}
	}
}

// byteAt returns the byte of guest memory at a, or 0.
func (r *calRun) byteAt(a uint64) byte {
	if a < uint64(len(r.mem)) {
		return r.mem[a]
	}
	return 0
}

// frameRIP returns RIP of the frame on the exception stack: the lowest of its five
// words (SDM Vol. 3, 6.14.2).
func (r *calRun) frameRIP() uint64 { return binary.LittleEndian.Uint64(r.mem[calStackX-5*8:]) }

// int3 finds out how a breakpoint is delivered, and, if the host gets it, how to
// pass one to the guest.
func (c *calibrator) int3(ctx context.Context, cpl uint8) (d Delivery, inject InjectRIP, err error) {
	inject = InjectNone
	r, err := c.begin(&testInt3, cpl)
	if err != nil {
		return "", inject, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	saw, err := r.next(ctx)
	if err != nil {
		return "", inject, err
	}
	atInt3 := r.k.Regs().RIP == calTests
	switch {
	case saw == sawDebug && r.exit.Debug.Exception == x86.VectorBP && atInt3:
		d = DeliveryDebugExit
	case saw == sawEmulation && atInt3:
		d = DeliveryEmulation
	case saw == sawVector3 && r.frameRIP() == calTests+1:
		return DeliveryVector, inject, nil
	case saw == sawDone:
		return DeliveryNone, inject, nil
	case saw == sawLate:
		return DeliveryHangs, inject, nil
	default:
		return DeliveryBroken, inject, nil
	}

	// Pass it to the guest with RIP at the int3, and look at the frame.
	r.k.SetRegsDirty()
	if err := r.k.InjectException(x86.VectorBP, false, 0, 0); err != nil {
		return d, inject, nil
	}
	if saw, err = r.next(ctx); err != nil {
		return "", inject, err
	}
	if saw == sawVector3 {
		switch r.frameRIP() {
		case calTests:
			inject = InjectAfter
		case calTests + 1:
			inject = InjectAt
		}
	}
	return d, inject, nil
}

// trap finds out whether a debug trap arrives as KVM_EXIT_DEBUG with RIP where
// it belongs.
func (c *calibrator) trap(ctx context.Context, t *calTest, cpl uint8) (d Delivery, err error) {
	r, err := c.begin(t, cpl)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	want := calTests + t.trap
	last, same := uint64(0), 0
	for {
		saw, err := r.next(ctx)
		if err != nil {
			return "", err
		}
		switch saw {
		case sawDebug:
			rip := r.k.Regs().RIP
			if rip == want && r.exit.Debug.Exception == x86.VectorDB {
				return DeliveryWorks, nil
			}
			if rip == last {
				same++
			}
			last = rip
			if rip != calTests {
				return DeliveryBroken, nil // an unexpected trap
			}
			// The host may still continue.
		case sawVector1:
			return DeliveryVector, nil
		case sawDone:
			return DeliveryNone, nil
		case sawLate:
			return DeliveryHangs, nil
		case sawLimit:
			if same > calMaxExits/2 {
				return DeliveryLoops, nil
			}
			return DeliveryBroken, nil
		default:
			return DeliveryBroken, nil
		}
	}
}
