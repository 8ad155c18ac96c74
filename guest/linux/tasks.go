package linux

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// Tasks reads the tasks of a running kernel. Its methods may be called from any
// goroutine, and while the guest runs: the results are then not of a single moment.
type Tasks struct {
	missing []string

	profile guest.Profile // GS is false if the current task is not known

	init      guest.GVA // init_task; 0 = no list
	direct    guest.GVA // page_offset_base; 0 = the address is directMap
	ids       bool
	parent    bool
	cred      bool
	cgroup    bool
	namespace bool
	start     bool
	memory    bool
	saved     bool
	life      bool
	inside    bool
	nsfs      guest.GVA // nsfs_mnt: the file system of namespaces

	f taskFields
}

// taskFields are the fields that are read of a task.
type taskFields struct {
	tasks, signal, threadHead, threadNode field
	pid, tgid, comm                       field
	parent                                field
	cred, uid, gid                        field
	cgroups, cgroup, node, id             field
	threadPID, level, numbers, upid, nr   field
	start                                 field
	mm, pgd                               field
	sp, inactive, bp, ret                 field
	life, usage                           field
	ns, inum, pids, super, dev            field
}

// Task is a thread of the guest, as reported by the guest.
type Task struct {
	Addr guest.GVA // of its struct task_struct

	PID, TGID int32 // of the thread, and of its thread group
	Parent    int32 // the TGID of its parent
	NSPID     int32 // PID as in the task's own PID namespace; 0 = not known
	Comm      string
	UID, GID  uint32    // real ones; NoID = not known
	Cgroup    uint64    // number in the cgroup v2 hierarchy; 0 = not known
	Start     uint64    // nanoseconds from the boot (CLOCK_BOOTTIME); 0 = not known
	Root      guest.GPA // its top-level page table; 0 for a kernel thread
}

// NoID is an unknown user or group.
const NoID = ^uint32(0)

// newTasks determines how to read the tasks of a kernel with these types, which may
// be nil, and these symbols.
func newTasks(types *Types, lookup Lookup) *Tasks {
	f := &finder{types: types, lookup: lookup}
	t := &Tasks{}
	x := &t.f
	t.ids = f.fields("tasks", need{&x.pid, "task_struct.pid"}, need{&x.tgid, "task_struct.tgid"}, need{&x.comm, "task_struct.comm"})
	if t.ids && x.comm.Size != guest.ProfileCommSize {
		f.missing, t.ids = append(f.missing, fmt.Sprintf("tasks: task_struct.comm has %d bytes", x.comm.Size)), false
	}
	if t.ids {
		t.findCurrent(f)
		if f.fields("the list of tasks", need{&x.tasks, "task_struct.tasks"}, need{&x.signal, "task_struct.signal"},
			need{&x.threadHead, "signal_struct.thread_head"}, need{&x.threadNode, "task_struct.thread_node"}) {
			t.init, _ = f.symbol("the list of tasks", "init_task")
		}
		t.parent = f.fields("the parents of tasks", need{&x.parent, "task_struct.real_parent"})
		t.cred = f.fields("the users of tasks", need{&x.cred, "task_struct.cred"}, need{&x.uid, "cred.uid.val"}, need{&x.gid, "cred.gid.val"})
		t.cgroup = f.fields("the cgroups of tasks", need{&x.cgroups, "task_struct.cgroups"}, need{&x.cgroup, "css_set.dfl_cgrp"},
			need{&x.node, "cgroup.kn"}, need{&x.id, "kernfs_node.id"})
		t.namespace = f.fields("the namespaces of tasks", need{&x.threadPID, "task_struct.thread_pid"}, need{&x.level, "pid.level"},
			need{&x.numbers, "pid.numbers"}, need{&x.upid, "upid"}, need{&x.nr, "upid.nr"})
		t.start = f.fields("the start of tasks", need{&x.start, "task_struct.start_boottime|task_struct.real_start_time"})
		t.memory = f.fields("the page tables of tasks", need{&x.mm, "task_struct.mm"}, need{&x.pgd, "mm_struct.pgd"})
		t.saved = f.fields("the stacks of tasks that do not run", need{&x.sp, "task_struct.thread.sp"}, need{&x.inactive, "inactive_task_frame"},
			need{&x.bp, "inactive_task_frame.bp"}, need{&x.ret, "inactive_task_frame.ret_addr"})
		t.life = f.fields("the lives of tasks", need{&x.life, "task_struct.stack_canary|task_struct.start_boottime|task_struct.real_start_time"}, need{&x.usage, "task_struct.usage"})
		const inside = "the PID namespaces of tasks"
		if t.namespace && f.fields(inside, need{&x.ns, "upid.ns"}, need{&x.inum, "pid_namespace.ns.inum"}, need{&x.signal, "task_struct.signal"}, need{&x.pids, "signal_struct.pids"},
			need{&x.super, "vfsmount.mnt_sb"}, need{&x.dev, "super_block.s_dev"}) {
			t.nsfs, t.inside = f.symbol(inside, "nsfs_mnt")
		}
		t.direct, _ = f.lookup("page_offset_base")
	}
	t.missing = f.missing
	return t
}

// taskDead is the bit TASK_DEAD of a task's state, since 4.14: it has left its stack, or
// is about to, and never runs again (include/linux/sched.h).
const taskDead = 0x80

// findCurrent finds the per-CPU variables: current_task and cpu_number, which from
// 6.2 to 6.14 are members of pcpu_hot; and the size of tasks' stacks (THREAD_SIZE),
// from that of the first task.
func (t *Tasks) findCurrent(f *finder) {
	var task, cpu guest.GVA
	if hot, ok := f.lookup("pcpu_hot"); ok {
		var x, y field
		if !f.fields("the current task", need{&x, "pcpu_hot.current_task"}, need{&y, "pcpu_hot.cpu_number"}) {
			return
		}
		task, cpu = hot+guest.GVA(x.Off), hot+guest.GVA(y.Off)
	} else {
		if task, ok = f.symbol("the current task", "current_task"); !ok {
			return
		}
		if cpu, ok = f.symbol("the current task", "cpu_number"); !ok {
			return
		}
	}
	p := guest.Profile{GS: true, CPUOff: int32(cpu), TaskOff: int32(task), PIDOff: int32(t.f.pid.Off), TGIDOff: int32(t.f.tgid.Off), CommOff: int32(t.f.comm.Off)}
	// Displacements of instructions have 32 bits.
	if guest.GVA(p.TaskOff) != task || guest.GVA(p.CPUOff) != cpu {
		f.missing = append(f.missing, fmt.Sprintf("the current task: per-CPU variables at %v and %v", task, cpu))
		return
	}
	var state field
	if f.fields("whether tasks are gone", need{&state, "task_struct.__state|task_struct.state"}) {
		p.StateOff, p.Dead = int32(state.Off), taskDead
	}
	stack, ok := f.lookup("init_stack")
	end, ok2 := f.lookup("__end_init_stack")
	if !ok2 {
		end, ok2 = f.lookup("__end_init_task") // until 6.9
	}
	size := uint64(end - stack)
	if ok && ok2 && bits.OnesCount64(size) == 1 && size <= guest.MaxProfileStack && size >= guest.MinProfileStack {
		p.StackMask = -size
	} else {
		f.missing = append(f.missing, "the stacks of tasks: the kernel does not tell their size (init_stack)")
	}
	p.Faults = findFaults(f)
	t.profile = p
}

// findFaults finds what code in the kernel needs to load from memory that may not be
// there: pagefault_disabled, which do_user_addr_fault asks for (arch/x86/mm/fault.c),
// and fixup_exception, to which all handlers come with a fault of the kernel's
// (arch/x86/mm/extable.c). Until 6.9 a task can ask for a signal then
// (sig_on_uaccess_err).
func findFaults(f *finder) *guest.FaultProfile {
	const feature = "loads that may fault"
	var count, stack field
	if !f.fields(feature, need{&count, "task_struct.pagefault_disabled"}, need{&stack, "task_struct.stack"}) {
		return nil
	}
	x := &guest.FaultProfile{Fixup: "fixup_exception", CountOff: int32(count.Off), StackOff: int32(stack.Off)}
	if _, ok := f.symbol(feature, x.Fixup); !ok {
		return nil
	}
	if count.Size != 4 || stack.Size != 8 {
		f.missing = append(f.missing, feature+": struct task_struct is not as it is known")
		return nil
	}
	if s, err := f.types.field("task_struct.thread.sig_on_uaccess_err"); err == nil {
		x.SignalOff, x.SignalMask = int32(s.Off+s.Shift/8), 1<<(s.Shift%8)
	}
	return x
}

// KnownFeatures reports whether the users of tasks are known, and their cgroups.
func (t *Tasks) KnownFeatures() (users, cgroups bool) { return t.cred, t.cgroup }

// MissingFeatures returns a sentence for each feature that this kernel lacks, with
// the reason.
func (t *Tasks) MissingFeatures() []string { return t.missing }

// Profile returns how to find the current task. The error says why that is not known.
func (t *Tasks) Profile() (guest.Profile, error) {
	if !t.profile.GS {
		return guest.Profile{}, t.unknownError()
	}
	return t.profile, nil
}

// unknownError is the error for a feature whose data is missing.
func (t *Tasks) unknownError() error {
	return fmt.Errorf("not known: %s", strings.Join(t.missing, "; "))
}

// CurrentTask returns the address of the current task of the CPU with that GS base.
// It fails if read fails, or if the task is not known.
func (t *Tasks) CurrentTask(gs guest.GVA, read Read) (guest.GVA, error) {
	if !t.profile.GS {
		return 0, t.unknownError()
	}
	return read.follow(gs+guest.GVA(t.profile.TaskOff), word)
}

// Task reads the task at addr. Fields in structures that cannot be read are not
// known; it fails only if the task itself cannot be read.
func (t *Tasks) Task(addr guest.GVA, read Read) (Task, error) {
	x := &t.f
	task := Task{Addr: addr, UID: NoID, GID: NoID}
	if !t.ids {
		return task, t.unknownError()
	}
	var comm [guest.ProfileCommSize]byte
	if err := read(addr+guest.GVA(x.comm.Off), comm[:]); err != nil {
		return task, err
	}
	name, _, _ := bytes.Cut(comm[:], []byte{0})
	task.Comm = string(name)
	pid, err := read.value(addr, x.pid)
	if err != nil {
		return task, err
	}
	tgid, err := read.value(addr, x.tgid)
	if err != nil {
		return task, err
	}
	task.PID, task.TGID = int32(pid), int32(tgid)

	if t.parent {
		if p, err := read.follow(addr, x.parent); err == nil {
			task.Parent = int32(read.valueOrZero(p, x.tgid))
		}
	}
	if uid, gid, err := t.Owner(addr, read); err == nil {
		task.UID, task.GID = uid, gid
	}
	task.Cgroup, _ = t.Cgroup(addr, read)
	if t.namespace {
		if p, err := read.follow(addr, x.threadPID); err == nil {
			level := guest.GVA(read.valueOrZero(p, x.level))
			task.NSPID = int32(read.valueOrZero(p+level*guest.GVA(x.upid.Size)+guest.GVA(x.numbers.Off), x.nr))
		}
	}
	if t.start {
		task.Start = read.valueOrZero(addr, x.start)
	}
	if t.memory {
		if pgd, err := read.follow(addr, x.mm, x.pgd); err == nil {
			task.Root = t.physicalAddr(pgd, read)
		}
	}
	return task, nil
}

// directMap is the address of the mapping of all physical memory in kernels that do
// not have it in the variable page_offset_base (CONFIG_DYNAMIC_MEMORY_LAYOUT;
// arch/x86/include/asm/page_64_types.h, __PAGE_OFFSET_BASE_L4).
const directMap = 0xffff888000000000

// directBase returns the address of the kernel's mapping of all physical memory, or
// 0.
func (t *Tasks) directBase(read Read) guest.GVA {
	if t.direct != 0 {
		return guest.GVA(read.valueOrZero(t.direct, word))
	}
	if _, err := read.value(directMap, word); err != nil {
		return 0 // the mapping is elsewhere, above
	}
	return directMap
}

// physicalAddr returns the physical address for the address addr in the mapping of
// all memory, or 0.
func (t *Tasks) physicalAddr(addr guest.GVA, read Read) guest.GPA {
	base := t.directBase(read)
	if base == 0 || addr < base {
		return 0
	}
	return guest.GPA(addr - base)
}

// SavedFrame returns where the task at addr, which runs on no CPU, will resume, as
// saved by __switch_to_asm on the task's stack (arch/x86/include/asm/switch_to.h). It
// fails if read fails, or if the place is not known.
func (t *Tasks) SavedFrame(addr guest.GVA, read Read) (f guest.Frame, err error) {
	if !t.saved {
		return f, errNotKnown
	}
	sp, err := read.follow(addr, t.f.sp)
	if err != nil {
		return f, err
	}
	if f.PC, err = read.value(sp, t.f.ret); err != nil {
		return f, err
	}
	if f.Regs[guest.FrameRBP], err = read.value(sp, t.f.bp); err != nil {
		return f, err
	}
	f.Regs[guest.FrameRSP] = uint64(sp) + uint64(t.f.inactive.Size)
	return f, nil
}

// Owner returns the real user and group of the task at addr. It fails if read fails,
// or if they are not known.
func (t *Tasks) Owner(addr guest.GVA, read Read) (uid, gid uint32, err error) {
	if !t.cred {
		return NoID, NoID, errNotKnown
	}
	c, err := read.follow(addr, t.f.cred)
	if err != nil {
		return NoID, NoID, err
	}
	u, err := read.value(c, t.f.uid)
	if err != nil {
		return NoID, NoID, err
	}
	g, err := read.value(c, t.f.gid)
	if err != nil {
		return NoID, NoID, err
	}
	return uint32(u), uint32(g), nil
}

// Cgroup returns the number of the cgroup (v2) of the task at addr. It fails if read
// fails, or if it is not known.
func (t *Tasks) Cgroup(addr guest.GVA, read Read) (uint64, error) {
	if !t.cgroup {
		return 0, errNotKnown
	}
	n, err := read.follow(addr, t.f.cgroups, t.f.cgroup, t.f.node)
	if err != nil {
		return 0, err
	}
	return read.value(n, t.f.id)
}

// Life identifies one of the tasks that have the same address one after another.
type Life struct {
	ID        uint64 // random (the task's stack canary), or else its start
	PID, TGID uint32 // as in Task
	Gone      bool   // nothing refers to the task: the kernel frees it, or has
}

// Life returns the life of the task at addr. It fails if read fails, or if it is not
// known.
func (t *Tasks) Life(addr guest.GVA, read Read) (l Life, err error) {
	if !t.life {
		return l, errNotKnown
	}
	if l.ID, err = read.value(addr, t.f.life); err != nil {
		return l, err
	}
	usage, err := read.value(addr, t.f.usage)
	if err != nil {
		return l, err
	}
	pid, err := read.value(addr, t.f.pid)
	if err != nil {
		return l, err
	}
	tgid, err := read.value(addr, t.f.tgid)
	l.PID, l.TGID, l.Gone = uint32(pid), uint32(tgid), usage == 0
	return l, err
}

// KnowsLives reports whether Life knows the lives of tasks.
func (t *Tasks) KnowsLives() bool { return t.life }

// PIDNamespace is a task as its own PID namespace has it.
type PIDNamespace struct {
	PID, TGID uint32
	Device    uint64 // of the namespace's file, in /proc/self/ns
	Inode     uint64
}

// maxNamespaces is how deep PID namespaces nest (MAX_PID_NS_LEVEL).
const maxNamespaces = 32

// pidTGID is the index of a thread group in signal_struct.pids (PIDTYPE_TGID).
const pidTGID = 1

// PIDNamespace returns the task at addr as its own PID namespace has it. It fails if read
// fails, or if the namespaces are not known.
func (t *Tasks) PIDNamespace(addr guest.GVA, read Read) (in PIDNamespace, err error) {
	if !t.inside {
		return in, errNotKnown
	}
	x := &t.f
	thread, err := read.follow(addr, x.threadPID)
	if err != nil {
		return in, err
	}
	level, err := read.value(thread, x.level)
	if err != nil {
		return in, err
	}
	if level > maxNamespaces {
		return in, fmt.Errorf("PID namespaces nest %d deep", level)
	}
	number := guest.GVA(level)*guest.GVA(x.upid.Size) + guest.GVA(x.numbers.Off)
	space, err := read.follow(thread+number, x.ns)
	if err != nil {
		return in, err
	}
	group, err := read.follow(addr, x.signal, field{Off: x.pids.Off + 8*pidTGID, Size: 8})
	if err != nil {
		return in, err
	}
	super, err := read.follow(t.nsfs, word, x.super)
	if err != nil {
		return in, err
	}
	var pid, tgid uint64
	for _, n := range []struct {
		to *uint64
		at guest.GVA
		x  field
	}{{&pid, thread + number, x.nr}, {&tgid, group + number, x.nr}, {&in.Inode, space, x.inum}, {&in.Device, super, x.dev}} {
		if *n.to, err = read.value(n.at, n.x); err != nil {
			return in, err
		}
	}
	in.PID, in.TGID = uint32(pid), uint32(tgid)
	return in, nil
}

// KnowsPIDNamespaces reports whether PIDNamespace knows the PID namespaces of tasks.
func (t *Tasks) KnowsPIDNamespaces() bool { return t.inside }

// Number says where a number of a task is: at each offset of Follow, from the task's
// structure on, is the address of the next structure, and in the last one, at Off, the
// number, of Size bytes.
type Number struct {
	Follow    []uint32
	Off, Size uint32
}

// Numbers returns where a task's real user and group are, and the number of its cgroup
// (v2). The Size of a number that is not known is 0.
func (t *Tasks) Numbers() (user, group, cgroup Number) {
	if x := &t.f; t.cred {
		user = Number{[]uint32{x.cred.Off}, x.uid.Off, x.uid.Size}
		group = Number{[]uint32{x.cred.Off}, x.gid.Off, x.gid.Size}
	}
	if x := &t.f; t.cgroup {
		cgroup = Number{[]uint32{x.cgroups.Off, x.cgroup.Off, x.node.Off}, x.id.Off, x.id.Size}
	}
	return user, group, cgroup
}

var errNotKnown = errors.New("the kernel's types do not say")

// readAll returns the tasks of all processes, except the idle tasks of CPUs: in the
// order of the kernel's list, the threads of a process together. If there are more
// than limit it returns that many, with an error. While the guest runs a task can be
// removed from the middle of the list, which then ends with an error as if the guest
// were malicious; the tasks before it are returned.
func (t *Tasks) readAll(limit int, read Read) (tasks []Task, err error) {
	if t.init == 0 {
		return nil, t.unknownError()
	}
	x := &t.f
	processes, threads := limit, limit
	err = read.list(t.init+guest.GVA(x.tasks.Off), x.tasks, &processes, func(leader guest.GVA) error {
		signal, err := read.follow(leader, x.signal)
		if err != nil {
			return err
		}
		return read.list(signal+guest.GVA(x.threadHead.Off), x.threadNode, &threads, func(addr guest.GVA) error {
			task, err := t.Task(addr, read)
			if err == nil {
				tasks = append(tasks, task)
			}
			return err
		})
	})
	if err != nil {
		err = fmt.Errorf("read the list of tasks: after %d: %w", len(tasks), err)
	}
	return tasks, err
}
