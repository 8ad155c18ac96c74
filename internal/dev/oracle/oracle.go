package oracle

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Regs are the general registers of the child, as ptrace has them. OrigRax and
// the segment selectors are not the program's.
type Regs = unix.PtraceRegs

// Segment is memory of a program.
type Segment struct {
	Addr uint64 // a multiple of 4096, at most maxAddr
	Data []byte // the rest of the last page is zero
	Size uint64 // bytes; 0 means the size of Data
	Prot int    // unix.PROT_*
}

// maxAddr is the highest address that a segment may end at: memory above belongs
// to the oracle or the kernel.
const maxAddr = stubAddr

// Program is the program to run.
type Program struct {
	Segments []Segment
	Regs     Regs   // RIP says where it begins; selectors are filled in
	End      uint64 // the run is over when RIP reaches it
	MaxSteps int    // 0 means defaultMaxSteps
	// Exception is called for each exception of the program, with RIP at the
	// instruction, or after it where the processor saves that address (int3). It
	// changes the state to where the program continues; an error ends the run. nil
	// ends it.
	Exception func(*Machine, Exception) error
}

// defaultMaxSteps is how many instructions a run may have that sets no limit.
const defaultMaxSteps = 1 << 20

// Exception is one that the program has raised.
type Exception struct {
	Vector uint8  // SDM Vol. 3, table 6-1
	Addr   uint64 // #PF: the address
	Write  bool   // #PF: by a write
}

// Vectors of exceptions that programs raise (SDM Vol. 3, table 6-1), and the one
// that stands for syscall and the like, which are never executed.
const (
	vectorDE      = 0
	VectorDB      = 1
	vectorBP      = 3
	VectorUD      = 6
	vectorSS      = 12
	vectorGP      = 13
	VectorPF      = 14
	vectorMF      = 16
	vectorAC      = 17
	vectorXM      = 19
	VectorSyscall = 0x80
)

// Result is the result of a run.
type Result struct {
	Regs  Regs
	Steps int
	// Counts is how often each instruction was begun, by address. A repeated
	// string instruction that is not done counts once, however often it is
	// resumed. One that faults counts, and again when it is restarted.
	Counts map[uint64]uint64
}

// Errors of Run.
var (
	ErrSteps     = errors.New("the program has not ended")
	errException = errors.New("exception")
)

// Oracle is a child process that programs run in, one after the other. It
// belongs to the goroutine that made it, which stays on its thread.
type Oracle struct {
	pid    int
	mem    *os.File // /proc/PID/mem
	clean  []byte   // floating-point state at the beginning
	mapped []Segment
}

// New starts the child. Close ends it.
func New() (_ *Oracle, err error) {
	runtime.LockOSThread()
	defer func() {
		if err != nil {
			runtime.UnlockOSThread()
			err = fmt.Errorf("start the single-stepper: %w", err)
		}
	}()
	path, stub, err := stubFile()
	if err != nil {
		return nil, err
	}
	defer stub.Close()
	p, err := os.StartProcess(path, []string{"stepped"}, &os.ProcAttr{Sys: &unix.SysProcAttr{Ptrace: true, Pdeathsig: unix.SIGKILL}})
	if err != nil {
		return nil, err
	}
	o := &Oracle{pid: p.Pid}
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	if _, err := o.wait(); err != nil {
		return nil, err
	}
	if err := unix.PtraceSetOptions(o.pid, unix.PTRACE_O_EXITKILL|unix.PTRACE_O_TRACESYSGOOD); err != nil {
		return nil, err
	}
	if o.mem, err = os.OpenFile(fmt.Sprintf("/proc/%d/mem", o.pid), os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if err := o.clear(); err != nil {
		return nil, err
	}
	o.clean, err = getFP(o.pid)
	return o, err
}

// clear unmaps everything that the kernel has mapped for the child: stack, vdso,
// vvar.
func (o *Oracle) clear() error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", o.pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		lo, rest, _ := strings.Cut(line, "-")
		hi, _, _ := strings.Cut(rest, " ")
		from, err1 := strconv.ParseUint(lo, 16, 64)
		to, err2 := strconv.ParseUint(hi, 16, 64)
		if err1 != nil || err2 != nil || from == stubAddr || int64(from) < 0 {
			continue
		}
		if _, err := o.call(unix.SYS_MUNMAP, from, to-from); err != nil {
			return fmt.Errorf("unmap %#x-%#x: %w", from, to, err)
		}
	}
	return nil
}

// Close ends the child. It may be repeated.
func (o *Oracle) Close() {
	if o.pid == 0 {
		return
	}
	_ = unix.Kill(o.pid, unix.SIGKILL)
	for {
		ws, err := o.wait()
		if err != nil || ws.Exited() || ws.Signaled() {
			break
		}
	}
	if o.mem != nil {
		o.mem.Close()
	}
	o.pid = 0
	runtime.UnlockOSThread()
}

func (o *Oracle) wait() (ws unix.WaitStatus, err error) {
	for {
		_, err = unix.Wait4(o.pid, &ws, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return ws, err
		}
	}
}

// maxStops bounds how often the child is resumed for one system call.
const maxStops = 16

// call has the child make a system call.
func (o *Oracle) call(nr, a, b uint64, more ...uint64) (uint64, error) {
	var regs Regs
	if err := unix.PtraceGetRegs(o.pid, &regs); err != nil {
		return 0, err
	}
	args := append([]uint64{a, b}, more...)
	for i, p := range []*uint64{&regs.Rdi, &regs.Rsi, &regs.Rdx, &regs.R10, &regs.R8, &regs.R9} {
		*p = 0
		if i < len(args) {
			*p = args[i]
		}
	}
	regs.Rip, regs.Rax, regs.Orig_rax, regs.Eflags = stubAddr+stubCode, nr, ^uint64(0), 0x202
	regs.Rsp = stubAddr // the last program may have left it where some hosts do not return to user code
	if err := unix.PtraceSetRegs(o.pid, &regs); err != nil {
		return 0, err
	}
	// A child that was stopped before a system call of the program's stops once
	// more where the call would have ended, without an effect.
	for stops := 0; regs.Rip == stubAddr+stubCode; stops++ {
		if stops == maxStops {
			return 0, fmt.Errorf("the child does not execute system call %d", nr)
		}
		if err := unix.PtraceSingleStep(o.pid); err != nil {
			return 0, err
		}
		ws, err := o.wait()
		if err != nil {
			return 0, err
		}
		if !ws.Stopped() {
			return 0, fmt.Errorf("the child is gone (%#x)", uint32(ws))
		}
		if err := unix.PtraceGetRegs(o.pid, &regs); err != nil {
			return 0, err
		}
	}
	if int64(regs.Rax) < 0 && int64(regs.Rax) > -4096 {
		return 0, unix.Errno(-int64(regs.Rax))
	}
	return regs.Rax, nil
}

// load replaces the memory of the last program by a new one's.
func (o *Oracle) load(p *Program) error {
	for _, s := range o.mapped {
		if _, err := o.call(unix.SYS_MUNMAP, s.Addr, s.Size); err != nil {
			return fmt.Errorf("unmap segment at %#x: %w", s.Addr, err)
		}
	}
	o.mapped = o.mapped[:0]
	for _, s := range p.Segments {
		s.Size = (max(s.Size, uint64(len(s.Data))) + 4095) &^ 4095
		const fixed = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED_NOREPLACE
		if _, err := o.call(unix.SYS_MMAP, s.Addr, s.Size, uint64(s.Prot), fixed, ^uint64(0), 0); err != nil {
			return fmt.Errorf("map segment of %d bytes at %#x: %w", s.Size, s.Addr, err)
		}
		o.mapped = append(o.mapped, s)
		if _, err := o.mem.WriteAt(s.Data, int64(s.Addr)); err != nil {
			return fmt.Errorf("write segment at %#x: %w", s.Addr, err)
		}
	}
	return setFP(o.pid, o.clean)
}

// Read reads memory of the last program, whatever its protection.
func (o *Oracle) Read(addr uint64, p []byte) error {
	if _, err := o.mem.ReadAt(p, int64(addr)); err != nil {
		return fmt.Errorf("read %d bytes at %#x: %w", len(p), addr, err)
	}
	return nil
}
