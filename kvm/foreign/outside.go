package foreign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
)

// outside reaches a guest whose VMM does not cooperate.
type outside struct {
	pid    int
	pidfd  int // -1: not open
	mem    copied
	ram    []guest.Region
	cpus   []*otherCPU // by number
	kernel *hostKernel
	vm     uint64 // struct kvm

	mu sync.Mutex // held while vCPUs are stopped
}

// otherCPU is a vCPU of the VMM.
type otherCPU struct {
	id     int
	object uint64 // struct kvm_vcpu
	run    *kvm.OtherRun
}

// openOutside finds the VM of a process.
func openOutside(p Process) (_ *outside, err error) {
	if len(p.VMs) > 1 {
		return nil, fail(CodeSeveralVMs, nil, "process %d has %d VMs", p.PID, len(p.VMs))
	}
	if len(p.VMs) == 0 || len(p.VCPUs) == 0 {
		return nil, fail(CodeNoVM, nil, "process %d has no VM with a vCPU", p.PID)
	}
	o := &outside{pid: p.PID, pidfd: -1}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	if o.pidfd, err = unix.PidfdOpen(p.PID, 0); err != nil {
		return nil, fail(CodeGone, err, "process %d", p.PID)
	}
	if o.kernel, err = openHostKernel(); err != nil {
		return nil, err
	}
	files, err := o.kernel.files(p.PID)
	if err != nil {
		return nil, err
	}
	o.vm = files[p.VMs[0]]
	if o.vm == 0 {
		return nil, fail(CodeGone, nil, "process %d has closed its VM, or is in another PID namespace", p.PID)
	}
	slots, err := o.kernel.slots(o.vm)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(slots, func(a, b slot) int { return a.id - b.id })
	for _, s := range slots {
		name := "ram"
		if s.flags&slotReadOnly != 0 {
			name = "rom"
		}
		r, err := o.mem.add(guest.GPA(s.gpa), s.size, name, processReader(p.PID, s.hva))
		if err != nil {
			return nil, fail(CodeHostLayout, err, "%v: address space for a copy of %d bytes", s, s.size)
		}
		o.ram = append(o.ram, r)
	}
	ids := make([]int, 0, len(p.VCPUs))
	for id := range p.VCPUs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		fd, err := unix.PidfdGetfd(o.pidfd, p.VCPUs[id], 0)
		if err != nil {
			return nil, traceError(err, p.PID, p.PID)
		}
		run, err := kvm.MapOtherRun(fd)
		unix.Close(fd)
		if err != nil {
			return nil, fail(CodeHostLayout, err, "vCPU %d", id)
		}
		o.cpus = append(o.cpus, &otherCPU{id: id, object: files[p.VCPUs[id]], run: run})
	}
	return o, nil
}

// slotReadOnly is KVM_MEM_READONLY.
const slotReadOnly = 1 << 1

// maxSeize is how often a thread that nothing traces is tried again.
const maxSeize = 20

// traceError returns the error of an access that ptrace's rules decide.
func traceError(err error, pid, tid int) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return fail(CodeGone, err, "process %d", pid)
	case refused(err):
		if by := tracer(pid, tid); by != 0 {
			return fail(CodeBusy, err, "process %d traces process %d", by, pid)
		}
		return fail(CodeNoPermission, err, "process %d may not be traced: it needs CAP_SYS_PTRACE (run it as root; kernel.yama.ptrace_scope must be less than 3)", pid)
	}
	return fail(CodeHostLayout, err, "process %d", pid)
}

// tracer returns the process that traces a thread of a process, or 0.
func tracer(pid, tid int) (by int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
	if err != nil {
		return 0
	}
	for line := range lines(string(b)) {
		if _, err := fmt.Sscanf(line, "TracerPid: %d", &by); err == nil {
			return by
		}
	}
	return 0
}

func (o *outside) regions() []guest.Region { return o.ram }
func (o *outside) vcpus() int              { return len(o.cpus) }

func (o *outside) close() error {
	var errs []error
	for _, c := range o.cpus {
		errs = append(errs, c.run.Close())
	}
	if o.kernel != nil {
		o.kernel.Close()
	}
	if o.pidfd >= 0 {
		errs = append(errs, unix.Close(o.pidfd))
		o.pidfd = -1
	}
	errs = append(errs, o.mem.close())
	return errors.Join(errs...)
}

// checkAlive returns an error if the VMM has ended. Its pid is not given to another
// process before that.
func (o *outside) checkAlive() error {
	fds := []unix.PollFd{{Fd: int32(o.pidfd), Events: unix.POLLIN}}
	for {
		switch n, err := unix.Poll(fds, 0); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fail(CodeHostLayout, err, "process %d", o.pid)
		case n > 0:
			return fail(CodeGone, nil, "process %d has ended", o.pid)
		default:
			return nil
		}
	}
}

// threads returns the thread of each vCPU, or 0 if it has never run or its thread
// has ended.
func (o *outside) threads() ([]int, error) {
	if err := o.checkAlive(); err != nil {
		return nil, err
	}
	out := make([]int, len(o.cpus))
	for i, c := range o.cpus {
		tid, err := o.kernel.thread(c.object, o.vm)
		if err != nil {
			return nil, err
		}
		// The number of a thread that has ended may be that of another process's.
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", o.pid, tid)); tid != 0 && err == nil {
			out[i] = tid
		}
	}
	return out, nil
}

// busyTime is how long to wait for another tracer.
const busyTime = 2 * time.Second

// stop implements backend.
func (o *outside) stop(ctx context.Context, wait time.Duration, f func([]CPU) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	// The thread that seizes is the only one that may wait for and release.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		done, err := o.stopOnce(time.Since(began) >= wait, f)
		if done || err != nil && (CodeOf(err) != CodeBusy || time.Since(began) >= busyTime) {
			return err
		}
		// A vCPU was not in KVM_RUN since it was opened: it is on its way there, or
		// the VMM has paused it. Or another guestprobe has stopped it for a moment.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// stopOnce is stop, unless registers are missing of a vCPU that has run, and anyway is
// false: then the vCPUs run again without f.
func (o *outside) stopOnce(anyway bool, f func([]CPU) error) (done bool, err error) {
	threads, err := o.threads()
	if err != nil {
		return false, err
	}
	var stopped []int // interrupted; the first awaited of them have stopped
	awaited := 0
	defer func() {
		for i, tid := range stopped {
			if i >= awaited { // it must not be released before it has stopped
				_ = awaitStop(tid)
			}
			// The thread may have been killed.
			if e := detach(tid); e != nil && err == nil && !errors.Is(e, unix.ESRCH) {
				err = fail(CodeHostLayout, e, "release thread %d", tid)
			}
		}
	}()
	// All are interrupted before any is waited for, so that they stop at about the same time.
	for _, tid := range threads {
		if tid == 0 || slices.Contains(stopped, tid) {
			continue
		}
		err := seize(tid)
		// Opening has shown that it may be traced. Another process may have traced it until just now.
		for try := 0; refused(err) && try < maxSeize; try++ {
			if by := tracer(o.pid, tid); by != 0 {
				return false, fail(CodeBusy, err, "process %d traces process %d", by, o.pid)
			}
			time.Sleep(time.Millisecond)
			err = seize(tid)
		}
		if err != nil {
			return false, traceError(err, o.pid, tid)
		}
		stopped = append(stopped, tid)
	}
	for _, tid := range stopped {
		awaited++
		if err := awaitStop(tid); err != nil {
			return false, traceError(err, o.pid, tid)
		}
	}
	cpus, known := make([]CPU, len(o.cpus)), true
	for i, c := range o.cpus {
		x := &cpus[i]
		if threads[i] != 0 {
			x.Regs, x.Sregs, x.Known = c.run.Registers()
			known = known && x.Known
		}
	}
	if !known && !anyway {
		return false, nil
	}
	o.mem.drop()
	return true, f(cpus)
}
