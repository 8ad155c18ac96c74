package oracle

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Machine is the state of a program at an exception.
type Machine struct {
	Regs Regs
	o    *Oracle
}

// Read and Write access the program's memory, whatever its protection.
func (m *Machine) Read(addr uint64, p []byte) error { return m.o.Read(addr, p) }

// Write is described at Read.
func (m *Machine) Write(addr uint64, p []byte) error {
	if _, err := m.o.mem.WriteAt(p, int64(addr)); err != nil {
		return fmt.Errorf("write %d bytes at %#x: %w", len(p), addr, err)
	}
	return nil
}

// Protect changes the protection of mapped pages.
func (m *Machine) Protect(addr, size uint64, prot int) error {
	return m.call(func() (uint64, error) { return m.o.call(unix.SYS_MPROTECT, addr, size, uint64(prot)) })
}

func (m *Machine) call(f func() (uint64, error)) error {
	_, err := f()
	return err
}

// Bits of RFLAGS (SDM Vol. 1, 3.4.3).
const (
	flagTF = 1 << 8
	flagRF = 1 << 16
)

// Run runs a program to its end. Otherwise the error wraps ErrSteps,
// errException, or the error of Exception; the result is then the state so far.
func (o *Oracle) Run(p *Program) (*Result, error) {
	if err := o.load(p); err != nil {
		return nil, err
	}
	limit := p.MaxSteps
	if limit == 0 {
		limit = defaultMaxSteps
	}
	r := &Result{Counts: map[uint64]uint64{}}
	m := &Machine{o: o}
	var now Regs
	if err := unix.PtraceGetRegs(o.pid, &now); err != nil {
		return nil, err
	}
	m.Regs = p.Regs
	set := func() error {
		m.Regs.Cs, m.Regs.Ss, m.Regs.Ds, m.Regs.Es = now.Cs, now.Ss, now.Ds, now.Es
		m.Regs.Orig_rax = ^uint64(0) // or the kernel would take it for a system call to restart
		regs := m.Regs
		regs.Eflags &^= flagTF
		return unix.PtraceSetRegs(o.pid, &regs)
	}
	if err := set(); err != nil {
		return nil, err
	}
	code := map[uint64]inst{} // as it was at first; nil where it may change
	for _, s := range p.Segments {
		if s.Prot&unix.PROT_EXEC != 0 && s.Prot&unix.PROT_WRITE != 0 {
			code = nil
		}
	}
	resumed := uint64(0) // a repeated string instruction that is not done
	for m.Regs.Rip != p.End {
		if r.Steps == limit {
			r.Regs = m.Regs
			return r, fmt.Errorf("%w after %d steps, at %#x", ErrSteps, limit, m.Regs.Rip)
		}
		at := m.Regs.Rip
		in, known := code[at]
		if !known {
			if in = o.fetch(at); code != nil {
				code[at] = in
			}
		}
		if at != resumed {
			r.Counts[at]++
			r.Steps++
		}
		resumed = 0
		stepped := m.Regs.Eflags & flagTF // the program's own; the processor's is ours
		popped := o.poppedFlag(m, in)
		x, raised, err := o.step(m, in, stepped)
		if err != nil {
			return nil, err
		}
		m.Regs.Eflags &^= flagTF
		switch {
		case raised || !in.pops:
			m.Regs.Eflags |= stepped
		default:
			m.Regs.Eflags |= popped
		}
		if stepped != 0 && !raised { // SDM Vol. 3, 18.3.1.4
			x, raised = Exception{Vector: VectorDB}, true
		}
		switch {
		case raised:
			err := errException
			clear(code) // the callback may write there
			if p.Exception != nil {
				err = p.Exception(m, x)
			}
			if err != nil {
				r.Regs = m.Regs
				return r, fmt.Errorf("vector %d at %#x: %w", x.Vector, m.Regs.Rip, err)
			}
			if err := set(); err != nil {
				return nil, err
			}
		case m.Regs.Rip == at && in.repeats:
			resumed = at
		}
	}
	r.Regs = m.Regs
	return r, nil
}

// step executes one instruction; own is the program's trap flag.
func (o *Oracle) step(m *Machine, in inst, own uint64) (x Exception, raised bool, err error) {
	at := m.Regs.Rip
	if err := stepEmulatingCalls(o.pid); err != nil {
		return x, false, fmt.Errorf("step at %#x: %w", at, err)
	}
	ws, err := o.wait()
	if err != nil {
		return x, false, err
	}
	if !ws.Stopped() {
		return x, false, fmt.Errorf("the child is gone at %#x (%#x)", at, uint32(ws))
	}
	if err := unix.PtraceGetRegs(o.pid, &m.Regs); err != nil {
		return x, false, err
	}
	switch sig := ws.StopSignal(); sig {
	case unix.SIGTRAP | 0x80:
		// A system call that was not made. RIP is after it, RAX the kernel's.
		m.Regs.Rip, m.Regs.Rax = at, m.Regs.Orig_rax
		_, err := o.call(unix.SYS_GETPID, 0, 0) // leaves that state
		return Exception{Vector: VectorSyscall}, true, err
	case unix.SIGTRAP:
		if in.int3 {
			return Exception{Vector: vectorBP}, true, nil
		}
		if in.pushes {
			return x, false, o.setPushedFlag(m, own)
		}
		return x, false, nil
	case unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL:
		info, err := sigInfo(o.pid)
		if err != nil {
			return x, false, err
		}
		x, err := info.exception(unix.Signal(sig))
		m.Regs.Eflags &^= flagRF
		return x, true, err
	default:
		return x, false, fmt.Errorf("the child got %v at %#x", sig, at)
	}
}

// setPushedFlag puts the program's trap flag into flags that it has just pushed.
func (o *Oracle) setPushedFlag(m *Machine, own uint64) error {
	var b [2]byte
	if err := m.Read(m.Regs.Rsp, b[:]); err != nil {
		return err
	}
	b[1] = b[1]&^(flagTF>>8) | byte(own>>8)
	return m.Write(m.Regs.Rsp, b[:])
}

// poppedFlag returns the trap flag in flags that the program is about to pop.
func (o *Oracle) poppedFlag(m *Machine, in inst) uint64 {
	if !in.pops {
		return 0
	}
	var b [2]byte
	_ = m.Read(m.Regs.Rsp, b[:]) // or the instruction will fault
	return uint64(b[1]) << 8 & flagTF
}

// inst has the facts about an instruction that are needed before it is executed.
type inst struct {
	int3    bool
	pushes  bool // flags
	pops    bool // them
	repeats bool
}

// fetch decodes the instruction at addr. If it cannot be read, it will fault.
func (o *Oracle) fetch(addr uint64) (in inst) {
	var b [15]byte
	n, _ := o.mem.ReadAt(b[:], int64(addr))
	rep := false
	for _, c := range b[:n] {
		switch {
		case c == 0xf2 || c == 0xf3:
			rep = true
			continue
		case c == 0x66 || c == 0x67 || c == 0xf0 || c&0xe7 == 0x26 || c == 0x64 || c == 0x65 || c&0xf0 == 0x40:
			continue
		}
		in.int3 = c == 0xcc
		in.pushes, in.pops = c == 0x9c, c == 0x9d
		in.repeats = rep && (c >= 0xa4 && c <= 0xa7 || c >= 0xaa && c <= 0xaf)
		break
	}
	return in
}

// exception returns the exception that a signal represents (Linux,
// arch/x86/kernel/traps.c and mm/fault.c).
func (i *signalInfo) exception(sig unix.Signal) (Exception, error) {
	const segvKernel, trapPF = 0x80, 14
	switch sig {
	case unix.SIGFPE:
		if i.code == fpeIntDiv {
			return Exception{Vector: vectorDE}, nil
		}
		return Exception{Vector: vectorXM}, nil
	case unix.SIGILL:
		return Exception{Vector: VectorUD}, nil
	case unix.SIGBUS:
		if i.code == busAlign {
			return Exception{Vector: vectorAC}, nil
		}
		return Exception{Vector: vectorSS}, nil
	case unix.SIGSEGV:
		if i.code == segvKernel {
			return Exception{Vector: vectorGP}, nil
		}
		return Exception{Vector: VectorPF, Addr: i.addr}, nil
	}
	return Exception{}, errors.New("a signal that stands for no exception")
}

// Codes of signals (sigaction(2)).
const (
	fpeIntDiv = 1
	busAlign  = 1
)
