package linux

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
)

// taskTypes are the structures that tasks are read from.
func taskTypes() []btf.Type {
	id := structOf("kuid_t", "val", tInt)
	return []btf.Type{
		structOf("task_struct", "state", tInt, "pid", tInt, "comm", array(tChar, 16), "tgid", tInt, "tasks", tList, "thread_node", tList,
			"signal", tPtr, "real_parent", tPtr, "cred", tPtr, "cgroups", tPtr, "thread_pid", tPtr, "start_boottime", tLong, "mm", tPtr,
			"usage", structOf("refcount_t", "refs", tInt), "stack_canary", tLong, "pagefault_disabled", tInt, "stack", tPtr, "thread", structOf("thread_struct", "sp", tPtr)),
		structOf("inactive_task_frame", "r15", tLong, "bp", tLong, "ret_addr", tLong),
		structOf("signal_struct", "nr_threads", tInt, "thread_head", tList, "pids", array(tPtr, 4)),
		structOf("cred", "usage", tLong, "gid", id, "uid", id),
		structOf("css_set", "subsys", array(tPtr, 3), "dfl_cgrp", tPtr),
		structOf("cgroup", "self", tLong, "kn", tPtr),
		structOf("kernfs_node", "name", tPtr, "id", tLong),
		structOf("pid", "level", tInt, "numbers", array(structOf("upid", "nr", tInt, "ns", tPtr), 0)),
		structOf("mm_struct", "", &btf.Struct{Size: 16, Members: []btf.Member{{Name: "pgd", Type: tPtr, Offset: 64}}}),
		structOf("pid_namespace", "level", tInt, "ns", structOf("ns_common", "inum", tInt)),
		structOf("vfsmount", "mnt_root", tPtr, "mnt_sb", tPtr),
		structOf("super_block", "s_list", tList, "s_dev", tInt),
		structOf("pcpu_hot", "", &btf.Union{Size: 64, Members: []btf.Member{{Type: structOf("", "current_task", tPtr, "preempt_count", tInt, "cpu_number", tInt)}}}),
	}
}

// Where things are in the synthetic kernel's memory.
const (
	memBase  = guest.GVA(0xffff888000000000)
	gsBase   = memBase + 0x100
	hotAt    = 0x40
	initTask = memBase + 0x1000
	stackAt  = memBase + 0x10000
)

// taskMemory is a kernel with two processes: 100, with the threads 100 and 102, which
// is process 7 in its namespace, and the kernel thread 2.
func taskMemory(t testing.TB) (*memory, Lookup) {
	m := &memory{t: t, types: typesOf(t, taskTypes()...), base: memBase, b: make([]byte, 0x8000)}
	task := func(n int) guest.GVA { return initTask + guest.GVA(n*0x100) }
	signal := func(n int) guest.GVA { return initTask + 0x1000 + guest.GVA(n*0x40) }
	cred, set, cgroup, node, pid, mm := memBase+0x3000, memBase+0x3100, memBase+0x3200, memBase+0x3300, memBase+0x3400, memBase+0x3500
	m.set(task(0), "task_struct.comm", "swapper/0", "task_struct.real_parent", task(0))
	m.set(task(1), "task_struct.pid", 2, "task_struct.tgid", 2, "task_struct.comm", "kthreadd", "task_struct.signal", signal(1), "task_struct.real_parent", task(0))
	m.set(task(2), "task_struct.pid", 100, "task_struct.tgid", 100, "task_struct.comm", "0123456789abcdef", "task_struct.signal", signal(2), "task_struct.real_parent", task(1),
		"task_struct.cred", cred, "task_struct.cgroups", set, "task_struct.thread_pid", pid, "task_struct.start_boottime", 123456789012, "task_struct.mm", mm)
	m.set(task(3), "task_struct.pid", 102, "task_struct.tgid", 100, "task_struct.comm", "worker", "task_struct.signal", signal(2), "task_struct.real_parent", task(1))
	m.set(cred, "cred.uid", 1000, "cred.gid", 1001)
	m.set(set, "css_set.dfl_cgrp", cgroup)
	m.set(cgroup, "cgroup.kn", node)
	m.set(node, "kernfs_node.id", 4711)
	m.set(pid, "pid.level", 2)
	upid, _ := m.types.field("upid")
	numbers, _ := m.types.field("pid.numbers")
	for level, nr := range []int{100, 50, 7} {
		m.set(pid+guest.GVA(numbers.Off+upid.Size*uint32(level)), "upid.nr", nr)
	}
	m.set(mm, "mm_struct.pgd", memBase+0x5000)
	list, _ := m.types.field("task_struct.tasks")
	head, _ := m.types.field("signal_struct.thread_head")
	m.link(task(0)+guest.GVA(list.Off), "task_struct.tasks", task(1), task(2))
	m.link(signal(1)+guest.GVA(head.Off), "task_struct.thread_node", task(1))
	m.link(signal(2)+guest.GVA(head.Off), "task_struct.thread_node", task(2), task(3))
	m.set(gsBase+hotAt, "pcpu_hot.current_task", task(3), "pcpu_hot.cpu_number", 1)
	return m, symbols(map[string]guest.GVA{"pcpu_hot": hotAt, "init_task": initTask, "init_stack": stackAt, "__end_init_stack": stackAt + 0x4000, "fixup_exception": memBase, "nsfs_mnt": memBase + 0x3600})
}

func symbols(all map[string]guest.GVA) Lookup {
	return func(name string) (guest.GVA, bool) { a, ok := all[name]; return a, ok }
}

func TestTasks(t *testing.T) {
	m, lookup := taskMemory(t)
	tasks := newTasks(m.types, lookup)
	if missing := tasks.MissingFeatures(); missing != nil {
		t.Error(missing)
	}
	all, err := tasks.readAll(3, m.read)
	if err != nil {
		t.Error(err)
	}
	worker := Task{Addr: initTask + 0x300, PID: 102, TGID: 100, Parent: 2, Comm: "worker", UID: NoID, GID: NoID}
	want := []Task{
		{Addr: initTask + 0x100, PID: 2, TGID: 2, Comm: "kthreadd", UID: NoID, GID: NoID},
		{Addr: initTask + 0x200, PID: 100, TGID: 100, Parent: 2, NSPID: 7, Comm: "0123456789abcdef", UID: 1000, GID: 1001,
			Cgroup: 4711, Start: 123456789012, Root: 0x5000},
		worker,
	}
	if !slices.Equal(all, want) {
		t.Errorf("got  %+v\nwant %+v", all, want)
	}
	at, err := tasks.CurrentTask(gsBase, m.read)
	if err != nil || at != worker.Addr {
		t.Errorf("current task: %v, %v", at, err)
	}
	profile, err := tasks.Profile()
	if want := (guest.Profile{GS: true, TaskOff: hotAt, CPUOff: hotAt + 12, PIDOff: 4, CommOff: 8, TGIDOff: 24, Dead: 0x80, Faults: profile.Faults, StackMask: ^uint64(0x3fff)}); err != nil || profile != want {
		t.Errorf("%+v, %v, want %+v", profile, err, want)
	}
	var now guest.Task
	if !profile.ReadTask(&now, 0, gsBase, m.read) || now.PID != 102 || now.TGID != 100 || now.CPU != 1 || now.At != worker.Addr {
		t.Errorf("%+v", now)
	}
	// The life of a task: nothing refers to it, and again something does.
	for usage, canary := range []int{0x1234567890, 0x1234567890, 77} {
		m.set(worker.Addr, "task_struct.stack_canary", canary, "task_struct.usage", usage)
		if l, err := tasks.Life(worker.Addr, m.read); err != nil || l != (Life{ID: uint64(canary), PID: 102, TGID: 100, Gone: usage == 0}) {
			t.Errorf("%+v, %v", l, err)
		}
	}
	if l, err := tasks.Life(memBase-0x1000, m.read); err == nil {
		t.Errorf("of no task: %+v", l)
	}
	// A task as its own PID namespace has it.
	leader, space, mount, super := worker.Addr-0x100, memBase+0x3700, memBase+0x3740, memBase+0x3780
	group := memBase + 0x37c0
	m.put(memBase+0x3600, le.AppendUint64(nil, uint64(mount)))
	m.set(mount, "vfsmount.mnt_sb", super)
	m.set(super, "super_block.s_dev", 4)
	m.set(space, "pid_namespace.ns.inum", 0xf0001234)
	inner := guest.GVA(tasks.f.numbers.Off + 2*tasks.f.upid.Size)
	m.set(memBase+0x3400+inner, "upid.nr", 7, "upid.ns", space)
	m.set(group+inner, "upid.nr", 6)
	signal, _ := m.types.field("signal_struct.pids")
	m.put(initTask+0x1080+guest.GVA(signal.Off)+8, le.AppendUint64(nil, uint64(group)))
	if in, err := tasks.PIDNamespace(leader, m.read); err != nil || in != (PIDNamespace{PID: 7, TGID: 6, Device: 4, Inode: 0xf0001234}) {
		t.Errorf("%+v, %v", in, err)
	}
	deep := guest.GVA(tasks.f.numbers.Off + 33*tasks.f.upid.Size)
	m.set(memBase+0x3400+deep, "upid.nr", 7, "upid.ns", space)
	m.set(memBase+0x3400, "pid.level", 33)
	if in, err := tasks.PIDNamespace(leader, m.read); err == nil {
		t.Errorf("33 namespaces: %+v", in)
	}
	m.set(memBase+0x3400, "pid.level", 2)
	if in, err := tasks.PIDNamespace(worker.Addr, m.read); err == nil {
		t.Errorf("of a task without numbers: %+v", in)
	}
	// It has not run since it was scheduled out.
	m.set(worker.Addr, "task_struct.thread", memBase+0x7000)
	m.set(memBase+0x7000, "inactive_task_frame.bp", 0x1234, "inactive_task_frame.ret_addr", 0x5678)
	saved, err := tasks.SavedFrame(worker.Addr, m.read)
	if err != nil || saved.PC != 0x5678 || saved.Regs[guest.FrameRBP] != 0x1234 || saved.Regs[guest.FrameRSP] != uint64(memBase)+0x7000+24 {
		t.Errorf("saved: %+v, %v", saved, err)
	}
	// The same page table, in a mapping of memory that is elsewhere.
	m.set(memBase+0x6000, "mm_struct.pgd", memBase-0x1000)
	moved := newTasks(m.types, func(name string) (guest.GVA, bool) {
		if name == "page_offset_base" {
			return memBase + 0x6008, true
		}
		return lookup(name)
	})
	if x, err := moved.Task(initTask+0x200, m.read); err != nil || x.Root != 0x6000 {
		t.Errorf("%+v, %v", x, err)
	}
	// One less than there are.
	if some, err := tasks.readAll(2, m.read); !errors.Is(err, errMany) || len(some) != 2 {
		t.Errorf("of at most 2: %d, %v", len(some), err)
	}
}

// TestTasksMissing: what a kernel lacks switches off what needs it, and nothing else.
func TestTasksMissing(t *testing.T) {
	m, lookup := taskMemory(t)
	without := func(name string) Lookup {
		return func(n string) (guest.GVA, bool) {
			if n == name {
				return 0, false
			}
			return lookup(n)
		}
	}
	types := taskTypes()
	for _, c := range []struct {
		types  *Types
		lookup Lookup
		want   []string
	}{
		{nil, lookup, []string{"tasks: the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"}},
		{m.types, without("init_task"), []string{"the list of tasks: the kernel has no symbol init_task"}},
		{m.types, without("nsfs_mnt"), []string{"the PID namespaces of tasks: the kernel has no symbol nsfs_mnt"}},
		{m.types, without("fixup_exception"), []string{"loads that may fault: the kernel has no symbol fixup_exception"}},
		{m.types, without("pcpu_hot"), []string{"the current task: the kernel has no symbol current_task"}},
		{m.types, symbols(map[string]guest.GVA{"current_task": 0x20, "init_task": initTask, "nsfs_mnt": memBase}), []string{"the current task: the kernel has no symbol cpu_number"}},
		{m.types, symbols(map[string]guest.GVA{"current_task": 0x80000000, "cpu_number": 8, "init_task": initTask, "nsfs_mnt": memBase}),
			[]string{"the current task: per-CPU variables at 0x0000000080000000 and 0x0000000000000008"}},
		{m.types, symbols(map[string]guest.GVA{"current_task": 8, "cpu_number": 16, "init_task": initTask, "nsfs_mnt": memBase, "fixup_exception": memBase, "init_stack": stackAt, "__end_init_stack": stackAt + 0x4001}),
			[]string{"the stacks of tasks: the kernel does not tell their size (init_stack)"}},
		{typesOf(t, append(types[:3:3], types[4:]...)...), lookup, []string{"the users of tasks: the kernel's types have no struct cred"}},
		{typesOf(t, types[0]), lookup, []string{
			"the current task: the kernel's types have no struct pcpu_hot",
			"the list of tasks: the kernel's types have no struct signal_struct",
			"the users of tasks: the kernel's types have no struct cred",
			"the cgroups of tasks: the kernel's types have no struct css_set",
			"the namespaces of tasks: the kernel's types have no struct pid",
			"the page tables of tasks: the kernel's types have no struct mm_struct",
			"the stacks of tasks that do not run: the kernel's types have no struct inactive_task_frame",
		}},
	} {
		if got := newTasks(c.types, c.lookup).MissingFeatures(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
	none := newTasks(nil, lookup)
	if _, err := none.readAll(1, m.read); err == nil {
		t.Error("tasks without types")
	}
	if _, err := none.CurrentTask(gsBase, m.read); err == nil {
		t.Error("a current task without types")
	}
	if _, err := none.Task(initTask, m.read); err == nil {
		t.Error("a task without types")
	}
	if _, err := none.Life(initTask, m.read); err == nil || none.KnowsLives() || none.KnowsPIDNamespaces() || !newTasks(m.types, lookup).KnowsLives() {
		t.Error("a life without types")
	}
	if _, err := none.PIDNamespace(initTask, m.read); err == nil {
		t.Error("a PID namespace without types")
	}
	if _, err := none.Profile(); err == nil {
		t.Error("a profile without types")
	}
	// The old way: two variables, and another name for the end of the stack.
	old := newTasks(m.types, symbols(map[string]guest.GVA{"current_task": hotAt, "cpu_number": 0xffffffff81234560, "init_task": initTask,
		"init_stack": stackAt, "__end_init_task": stackAt + 0x8000, "fixup_exception": memBase, "nsfs_mnt": memBase}))
	if p, err := old.Profile(); err != nil || p.TaskOff != hotAt || p.CPUOff != -0x7edcbaa0 || p.StackMask != ^uint64(0x7fff) || old.MissingFeatures() != nil {
		t.Errorf("%+v, %v, %q", p, err, old.MissingFeatures())
	}
}

// TestFaultProfile: what code in the kernel needs for loads that may fault, with the bit
// of a task that asks for a signal, where kernels have it.
func TestFaultProfile(t *testing.T) {
	m, lookup := taskMemory(t)
	p, err := newTasks(m.types, lookup).Profile()
	count, _ := m.types.field("task_struct.pagefault_disabled")
	stack, _ := m.types.field("task_struct.stack")
	want := guest.FaultProfile{Fixup: "fixup_exception", CountOff: int32(count.Off), StackOff: int32(stack.Off)}
	if err != nil || p.Faults == nil || *p.Faults != want {
		t.Fatalf("%+v, %v, want %+v", p.Faults, err, want)
	}
	types := taskTypes()
	task := types[0].(*btf.Struct)
	thread := &btf.Struct{Name: "thread_struct", Size: 16, Members: []btf.Member{
		{Name: "sp", Type: tPtr},
		{Name: "iopl_warn", Type: tInt, Offset: 64, BitfieldSize: 1},
		{Name: "sig_on_uaccess_err", Type: tInt, Offset: 73, BitfieldSize: 1},
	}}
	last := &task.Members[len(task.Members)-1]
	last.Type, task.Size = thread, task.Size+8
	if p, err = newTasks(typesOf(t, types...), lookup).Profile(); err != nil {
		t.Fatal(err)
	}
	want.SignalOff, want.SignalMask = int32(last.Offset.Bytes())+9, 2
	if *p.Faults != want {
		t.Errorf("%+v, want %+v", *p.Faults, want)
	}
}

// TestTasksHostile: lists that do not end, or lead nowhere, end the walk.
func TestTasksHostile(t *testing.T) {
	m, lookup := taskMemory(t)
	tasks := newTasks(m.types, lookup)
	loop := fmt.Sprint(initTask + 0x200)
	for _, c := range []struct {
		name string
		do   func(m *memory)
		want error
		n    int
	}{
		{"loop " + loop, func(m *memory) { m.set(initTask+0x200, "task_struct.tasks.next", initTask+0x100+28) }, errLoop, 3},
		{"threads loop", func(m *memory) { m.set(initTask+0x200, "task_struct.thread_node.next", initTask+0x200+44) }, errLoop, 2},
		{"null", func(m *memory) { m.set(initTask, "task_struct.tasks.next", 0) }, errNoMemory, 0},
		{"no signal", func(m *memory) { m.set(initTask+0x100, "task_struct.signal", 0) }, errNull, 0},
		{"elsewhere", func(m *memory) { m.set(initTask+0x100, "task_struct.tasks.next", -8) }, errNoMemory, 1},
	} {
		x := &memory{t: t, types: m.types, base: m.base, b: slices.Clone(m.b)}
		c.do(x)
		if got, err := tasks.readAll(100, x.read); !errors.Is(err, c.want) || len(got) != c.n {
			t.Errorf("%s: %d tasks, %v; want %d, %v", c.name, len(got), err, c.n, c.want)
		}
	}
}

// FuzzTasks: no memory makes the walk longer than it may be.
func FuzzTasks(f *testing.F) {
	f.Add(uint16(0x1000), []byte{1, 2, 3, 4, 5, 6, 7, 8}, uint16(0x1100), []byte{0})
	f.Add(uint16(0x101c), []byte{0x1c, 0x11, 0, 0, 0x80, 0x88, 0xff, 0xff}, uint16(0x2048), []byte{0x48, 0x20})
	m, lookup := taskMemory(f)
	tasks := newTasks(m.types, lookup)
	f.Fuzz(func(t *testing.T, at uint16, b []byte, at2 uint16, b2 []byte) {
		x := &memory{t: t, types: m.types, base: m.base, b: slices.Clone(m.b)}
		copy(x.b[int(at)%len(x.b):], b)
		copy(x.b[int(at2)%len(x.b):], b2)
		reads := 0
		got, _ := tasks.readAll(50, func(addr guest.GVA, p []byte) error { reads++; return x.read(addr, p) })
		if len(got) > 50 || reads > 50*40 {
			t.Errorf("%d tasks with %d reads", len(got), reads)
		}
		tasks.CurrentTask(gsBase, x.read)
	})
}
