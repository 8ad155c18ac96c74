package program

import (
	"errors"
	"math/bits"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Selectors of the table that a guest is booted with, by privilege level.
const (
	kernelCS, kernelSS = 0x08, 0x10
	userCS, userSS     = 0x23, 0x1b
)

// maxSkip and maxPCs bound a stack walk for get_stack: its flags can skip 255
// frames, and it returns 127 at most.
const (
	maxSkip = 255
	maxPCs  = 127
)

// env implements the helpers of a program that runs at an exit. It belongs to one
// vCPU's thread, and handles one hit at a time. Memory is read with the rights of the
// probed code, as in the guest, except the kernel's half: see ReadKernel.
type env struct {
	rt    *Runtime
	r     *runner
	c     *probe.Context
	entry bool // the probe is at a function's first instruction: the function can return from here

	// Actions for when the program has ended, so that it sees the hit unchanged.
	taken bool // the function returns value to back: override_return was called
	value uint64
	back  guest.GVA
	regs  [x86.PtRegsSize / 8]uint64 // by their numbers in struct pt_regs
	set   uint32                     // which of them are set, as bits

	recordAt     uint64 // address of the record of the program's event; 0: no record
	made, record bool   // it was requested, and could be made

	looked, known bool // looked for the task, and found one
	task          guest.Task
	read          linux.Read // the kernel's data on the task, read with the kernel's rights

	pcs [maxSkip + maxPCs]guest.GVA
}

var _ bpf.Env = (*env)(nil)

func newEnv(rt *Runtime) *env {
	e := &env{rt: rt}
	e.read = func(addr guest.GVA, p []byte) error { return e.c.ReadAsKernel(addr, p) }
	return e
}

// begin prepares e for the next hit.
func (e *env) begin(r *runner, c *probe.Context, entry bool) {
	e.r, e.c, e.entry, e.taken, e.set, e.looked = r, c, entry, false, 0, false
	e.recordAt, e.made = 0, false
}

// Now implements bpf.Env.
func (e *env) Now() uint64 { return e.rt.clock.time() }

// current looks up the interrupted task, once per hit.
func (e *env) current() bool {
	if !e.looked {
		e.looked, e.known = true, e.c.Task(&e.task)
	}
	return e.known
}

// PIDTGID implements bpf.Env. Without a task it returns 0.
func (e *env) PIDTGID() uint64 {
	if !e.current() {
		return 0
	}
	return uint64(e.task.TGID)<<32 | uint64(e.task.PID)
}

// Task implements bpf.Env. Without a task it returns 0.
func (e *env) Task() uint64 {
	if !e.current() {
		return 0
	}
	return uint64(e.task.At)
}

// UIDGID implements bpf.Env. Unknown numbers are 0.
func (e *env) UIDGID() uint64 {
	if e.rt.cfg.Tasks == nil || !e.current() {
		return 0
	}
	uid, gid, err := e.rt.cfg.Tasks().Owner(e.task.At, e.read)
	if err != nil {
		return 0
	}
	return uint64(gid)<<32 | uint64(uid)
}

// TaskLife implements bpf.Env.
func (e *env) TaskLife(task uint64) (bpf.TaskLife, bool) {
	if e.rt.cfg.Tasks == nil {
		return bpf.TaskLife{}, false
	}
	t := e.rt.cfg.Tasks()
	if t == nil {
		return bpf.TaskLife{}, false
	}
	l, err := t.Life(guest.GVA(task), e.read)
	return bpf.TaskLife{ID: l.ID, PID: l.PID, TGID: l.TGID, Gone: l.Gone}, err == nil
}

// PIDNamespace implements bpf.Env.
func (e *env) PIDNamespace() (bpf.PIDNamespace, bool) {
	if e.rt.cfg.Tasks == nil || !e.current() {
		return bpf.PIDNamespace{}, false
	}
	t := e.rt.cfg.Tasks()
	if t == nil {
		return bpf.PIDNamespace{}, false
	}
	in, err := t.PIDNamespace(e.task.At, e.read)
	return bpf.PIDNamespace(in), err == nil
}

// CgroupID implements bpf.Env. An unknown number is 0.
func (e *env) CgroupID() uint64 {
	if e.rt.cfg.Tasks == nil || !e.current() {
		return 0
	}
	id, err := e.rt.cfg.Tasks().Cgroup(e.task.At, e.read)
	if err != nil {
		return 0
	}
	return id
}

// Space implements bpf.Env.
func (e *env) Space() uint64 { return uint64(e.c.Root) }

// Comm implements bpf.Env. Without a task the name is empty.
func (e *env) Comm(b *[16]byte) {
	clear(b[:])
	if e.current() {
		copy(b[:], e.task.Comm[:])
	}
}

// ReadKernel implements bpf.Env. At user code of a Linux guest it also reads the
// kernel's half of the addresses, as Linux does for its own programs there: the
// current task is in it. Definitions do not: a fetch argument of a kernel's uprobe reads
// what the user code can read. Programs that read do not run in the guest there (see
// bpf.Layout.Fixups), so both read the same.
func (e *env) ReadKernel(addr uint64, p []byte) error {
	if e.recordAt != 0 && addr-e.recordAt < bpf.MaxRecord {
		if !e.made {
			at, _ := e.r.of.Record(e.c)
			e.made, e.record = true, at != 0
		}
		if !e.record {
			return errNoRecord
		}
	}
	if e.c.CPL != 0 && int64(addr) < 0 && e.rt.cfg.Tasks != nil && e.r.of != nil {
		return e.read(guest.GVA(addr), p)
	}
	return e.c.ReadAsGuest(guest.GVA(addr), p)
}

var errNoRecord = errors.New("the event has no record")

// ReadUser implements bpf.Env.
func (e *env) ReadUser(addr uint64, p []byte) error { return e.c.ReadAsGuest(guest.GVA(addr), p) }

var errOtherStack = errors.New("the interrupted code has no such stack")

// Stack implements bpf.Env.
func (e *env) Stack(pcs []uint64, skip int, user bool) (int, error) {
	if !user && e.c.CPL == 3 {
		return 0, errOtherStack
	}
	most := len(e.pcs)
	if user == (e.c.CPL == 3) {
		most = min(skip+len(pcs), most) // the rest is not needed
	}
	kernel, users := e.c.Stacks(e.pcs[:most])
	all := e.pcs[:kernel]
	if user {
		if all = e.pcs[kernel:][:users]; users == 0 {
			return 0, errOtherStack
		}
	}
	n := 0
	for ; n < len(pcs) && skip+n < len(all); n++ {
		pcs[n] = uint64(all[skip+n])
	}
	return n, nil
}

// FileCode implements bpf.Env.
func (e *env) FileCode(addr uint64) uint64 { return uint64(e.c.FileCode(guest.GVA(addr))) }

// HasBuildID implements bpf.Env.
func (e *env) HasBuildID(addr uint64) bool {
	return e.rt.cfg.BuildID != nil && e.rt.cfg.BuildID(guest.GVA(addr)) != ""
}

// FuncIP implements bpf.Env.
func (e *env) FuncIP() uint64 { return uint64(e.c.Addr) }

// Cookie implements bpf.Env.
func (e *env) Cookie() uint64 { return e.r.cookie }

// WatchNumber implements bpf.Env.
func (e *env) WatchNumber(number uint64) uint64 {
	switch w := &e.c.Watched; {
	case number == 0:
		return w.Old
	case number == 1:
		return w.New
	case w.Write:
		return 1
	}
	return 0
}

var errNotKept = errors.New("the argument was not kept, or could not be read")

// EntryArg implements bpf.Env: see Definition.Entry.
func (e *env) EntryArg(n uint64, p []byte) error {
	i := slices.Index(e.r.stackArgs(), int(n))
	if i < 0 {
		return errNotKept
	}
	kept := e.c.Data[bpf.EntrySize+keptArg*i:]
	if kept[8] != 0 {
		return errNotKept
	}
	copy(p, kept[:8])
	return nil
}

var errNoRegister = errors.New("a program cannot set this register")

var errNoStop = errors.New("nothing can be stopped here")

var errNotEntry = errors.New("only a program at a function's entry can make it return")

// OverrideReturn implements bpf.Env: when the program has ended, the function returns
// before its first instruction. The last value counts.
func (e *env) OverrideReturn(v uint64) (err error) {
	if !e.entry {
		return errNotEntry
	}
	if e.back, err = e.c.Caller(); err != nil {
		return err
	}
	e.taken, e.value = true, v
	return nil
}

// SetReg implements bpf.Env: the register gets the value when the program has ended.
func (e *env) SetReg(n, v uint64) error {
	if !bpf.SettableReg(n) {
		return errNoRegister
	}
	e.regs[n], e.set = v, e.set|1<<n
	return nil
}

// Stop implements bpf.Env: the vCPU stops, with the program as the cause.
func (e *env) Stop(all bool) error {
	if all && e.rt.cfg.StopAll == nil || e.r.of == nil {
		return errNoStop
	}
	e.c.StopBy(e.r.of)
	if all {
		e.rt.cfg.StopAll(e.c)
	}
	return nil
}

// Poke implements bpf.Env.
func (e *env) Poke(addr uint64, p []byte) error {
	err := e.c.Poke(guest.GVA(addr), p)
	if errors.Is(err, probe.ErrProbed) {
		return bpf.ErrProbed
	}
	return err
}

// PokeUser implements bpf.Env.
func (e *env) PokeUser(addr uint64, p []byte) error {
	err := e.c.PokeUser(guest.GVA(addr), p)
	if errors.Is(err, probe.ErrProbed) {
		return bpf.ErrProbed
	}
	return err
}

// end performs the actions requested by the program, and reports whether one of them
// made the function return.
func (e *env) end() (taken bool) {
	for set := e.set; set != 0; set &= set - 1 {
		n := bits.TrailingZeros32(set)
		if n == x86.PtFlags/8 {
			e.c.Regs.RFLAGS = e.c.Regs.RFLAGS&^x86.FlagsStatus | e.regs[n]&x86.FlagsStatus
		} else {
			*e.c.Regs.Reg(x86.PtRegs[n]) = e.regs[n]
		}
	}
	if e.taken {
		e.c.ReturnTo(e.back, e.value)
	}
	e.c = nil
	return e.taken
}

// Trace implements bpf.Env.
func (e *env) Trace(msg []byte) {
	if t := e.rt.cfg.Trace; t != nil {
		t(e.r.prog.Name(), e.c.CPU, msg)
	}
}
