package bpf

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// lifeEnv has tasks by address.
type lifeEnv struct {
	NoEnv
	task  uint64
	lives map[uint64]TaskLife
	asked int
}

func (e *lifeEnv) Task() uint64 { return e.task }

func (e *lifeEnv) TaskLife(task uint64) (TaskLife, bool) {
	e.asked++
	l, ok := e.lives[task]
	return l, ok
}

const (
	taskA = 0xffff_8880_0000_1000
	taskB = 0xffff_8880_0000_2000
	taskC = 0xffff_8880_0000_3000
)

// storagePrograms are the programs of storage.o, for a map of that many entries.
func storagePrograms(t *testing.T, entries uint32) (m *Map, run func(name string, env *lifeEnv, args ...uint64) (r0 uint64, err error), c *Collection) {
	t.Helper()
	o, err := LoadObject(readObject(t, "storage.o"), Selection{Kernel: testKernel(t), MapEntries: map[string]uint32{"of_task": entries}})
	if err != nil {
		t.Fatal(err)
	}
	if c, err = o.Load(2, Heap{}, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	vms := map[string]*VM{}
	for _, p := range c.Programs {
		vms[p.Name()] = NewVM(p.Program, 1)
	}
	return c.Maps["of_task"], func(name string, env *lifeEnv, args ...uint64) (uint64, error) {
		var a [4]uint64
		copy(a[:], args)
		ctx := regsContext(x86.Regs{RDI: a[0]})
		if name == "typed" {
			ctx = slices.Concat(u64(a[0]), u64(a[1]), u64(a[2]), u64(a[3]))
		}
		return vms[name].Run(ctx, env)
	}, c
}

// storageDump is the contents of a map of values of tasks, as map dump prints them.
func storageDump(m *Map) string {
	var out []string
	s := m.Spec()
	m.Walk(func(key []byte, vals [][]byte) bool {
		out = append(out, string(s.KeyType.JSON(key))+" "+string(s.ValueType.JSON(vals[0])))
		return true
	})
	return strings.Join(out, "\n")
}

// TestTaskStorage: each task has a value of its own, which a later task at the same
// address does not see.
func TestTaskStorage(t *testing.T) {
	m, run, c := storagePrograms(t, 100)
	env := &lifeEnv{task: taskA, lives: map[uint64]TaskLife{0: {ID: 1}, taskA: {ID: 7, PID: 4712, TGID: 4711}, taskB: {ID: 7, PID: 8, TGID: 8}}}
	count := func(want uint64) {
		t.Helper()
		if r0, err := run("count", env, 1<<32-2); r0 != want || err != nil {
			t.Fatal(r0, err)
		}
	}
	count(0)
	count(0)
	if got, want := storageDump(m), `{"pid":4712,"tgid":4711,"task":"0xffff888000001000"} {"calls":2,"last":-2}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// An argument; the value of the other task at the first call that makes one.
	typed := func(task, flags, want uint64) {
		t.Helper()
		if _, err := run("typed", env, task, flags); err != nil || globalWord(t, c, ".bss", 0) != want {
			t.Errorf("task %#x, flags %d: %d, %v, want %d", task, flags, globalWord(t, c, ".bss", 0), err, want)
		}
	}
	typed(taskA, 0, 2)
	typed(taskB, 0, 0)
	typed(taskB, 1, 100)
	typed(taskB, 0, 101)
	typed(taskB, 2, 0) // no such flag
	typed(taskB, 3, 0)
	typed(0, 1, 0)
	typed(taskC, 1, 0) // nothing is known about it
	// The thread gets another number as its program changes, and keeps its value.
	env.lives[taskA] = TaskLife{ID: 7, PID: 4711, TGID: 4711}
	typed(taskA, 0, 3)
	// Another task at the address.
	env.lives[taskA] = TaskLife{ID: 9, PID: 9, TGID: 9}
	typed(taskA, 0, 0)
	count(0)
	typed(taskA, 0, 1)
	if n := strings.Count(storageDump(m), "\n"); n != 2 {
		t.Errorf("%d lines", n+1)
	}
	// A task that the kernel is about to free has no new value, and keeps an old one.
	env.lives[taskC] = TaskLife{ID: 3, Gone: true}
	typed(taskC, 1, 0)
	env.lives[taskB] = TaskLife{ID: 7, Gone: true}
	typed(taskB, 1, 102)
	for _, tt := range []struct {
		task uint64
		want int64
	}{{taskB, 0}, {taskB, -errNoEnt}, {0, -errInval}, {0x5000, -errFault}} {
		if _, err := run("delete", env, tt.task); err != nil || int64(globalWord(t, c, ".bss", 8)) != tt.want {
			t.Errorf("delete of %#x: %d, %v, want %d", tt.task, int64(globalWord(t, c, ".bss", 8)), err, tt.want)
		}
	}
	typed(taskB, 0, 0)
	if n := LostValues(m); n != 0 {
		t.Errorf("%d lost", n)
	}
	for _, p := range c.Programs {
		for _, w := range p.Warnings() {
			t.Error(&w)
		}
		if why := p.HostReason(); !strings.Contains(why, "works on a map that only the host has") {
			t.Errorf("%s: %q", p.Name(), why)
		}
	}
	if spec := c.Maps["of_task"].Spec(); spec.Kind.InGuest() || spec.Kind.String() != "task_storage" {
		t.Error(spec.Kind)
	}
}

// TestTaskStorageFull: tasks that no longer exist make room, tasks that do never.
func TestTaskStorageFull(t *testing.T) {
	const entries = 300
	m, run, _ := storagePrograms(t, entries)
	env := &lifeEnv{lives: map[uint64]TaskLife{}}
	task := func(i int) uint64 { return taskA + uint64(i)<<12 }
	count := func(i int) uint64 {
		t.Helper()
		env.task = task(i)
		r0, err := run("count", env)
		if err != nil {
			t.Fatal(err)
		}
		return r0
	}
	values := func() (n int) {
		m.Walk(func([]byte, [][]byte) bool { n++; return true })
		return n
	}
	for i := range entries + 5 {
		env.lives[task(i)] = TaskLife{ID: uint64(i + 1)}
	}
	for i := range entries {
		if count(i) != 0 {
			t.Fatalf("no value for task %d", i)
		}
	}
	if count(entries) != 1 || LostValues(m) != 1 || values() != entries {
		t.Errorf("all live: %d lost, %d values", LostValues(m), values())
	}
	if count(0) != 0 || LostValues(m) != 1 {
		t.Error("a task that has a value lost it")
	}
	// One whose memory cannot be read is kept: that it is gone is not known.
	delete(env.lives, task(5))
	if count(entries) != 1 || LostValues(m) != 2 || values() != entries {
		t.Errorf("one is unknown: %d lost, %d values", LostValues(m), values())
	}
	env.lives[task(7)] = TaskLife{ID: 1000}
	if count(entries) != 0 || values() != entries {
		t.Errorf("a new task at an old address: %d values", values())
	}
	env.lives[task(9)] = TaskLife{ID: 10, Gone: true}
	if count(entries+1) != 0 || values() != entries {
		t.Errorf("a task that is gone: %d values", values())
	}
	if LostValues(m) != 2 {
		t.Errorf("%d lost", LostValues(m))
	}
	// A full map that finds no room takes no more than is promised.
	env.asked, env.task = 0, task(entries+2)
	p, err := New(Spec{Kind: Kprobe, Follows: true, Maps: []*Map{m}, Insns: mustAssemble(t, "ldmap r1, 0\nlddw r2, 0xffff888000500000\nmov r3, 0\nmov r4, 1\ncall 156\nmov r0, 0\nexit")})
	if err != nil {
		t.Fatal(err)
	}
	env.lives[0xffff888000500000] = TaskLife{ID: 1}
	v := NewVM(p, 0)
	if _, err := v.Run(regsContext(x86.Regs{}), env); err != nil || LostValues(m) != 3 {
		t.Fatal(err, LostValues(m))
	}
	if took, most := DefaultBudget-v.left, p.Steps(); took > most || env.asked < entries || took < costLook*entries {
		t.Errorf("took %d of at most %d, and asked %d times", took, most, env.asked)
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = v.Run(regsContext(x86.Regs{}), env) }); n > 1 { // the context
		t.Errorf("%v allocations", n)
	}
	q, err := New(Spec{Kind: Kprobe, Budget: 1 << 10, Maps: p.maps, Insns: p.insns})
	if err != nil {
		t.Fatal(err)
	}
	var f *Fault
	if _, err := NewVM(q, 0).Run(regsContext(x86.Regs{}), env); !errors.As(err, &f) || f.Code != FaultBudget {
		t.Error(err)
	}
}

// TestTaskStorageWindow: a value of a task that no longer exists makes room where the key
// can be, in a map that is too large to be searched.
func TestTaskStorageWindow(t *testing.T) {
	m, run, _ := storagePrograms(t, 3000)
	env := &lifeEnv{lives: map[uint64]TaskLife{}}
	var tasks []uint64
	for at := uint64(taskA); len(tasks) < hashWindow+2; at += 64 {
		if key := append(u64(at), u64(1)...); hashOf(key)&m.hash.mask == 7000 {
			tasks = append(tasks, at)
			env.lives[at] = TaskLife{ID: 1}
		}
	}
	for i, task := range tasks[:hashWindow+1] {
		env.task = task
		if r0, err := run("count", env); (r0 == 0) != (i < hashWindow) || err != nil {
			t.Fatal(i, r0, err)
		}
	}
	env.lives[tasks[3]] = TaskLife{ID: 1, Gone: true}
	if r0, err := run("count", env); r0 != 0 || err != nil || LostValues(m) != 1 {
		t.Error(r0, err, LostValues(m))
	}
	// The other slots are searched in turn.
	env.task = tasks[hashWindow+1]
	for range 4 {
		if r0, err := run("count", env); r0 != 1 || err != nil {
			t.Error(r0, err)
		}
	}
	if got := load64(m.area.Bytes, hdrLook); got != 6*storageSample {
		t.Errorf("looked at %d slots, want %d", got, 6*storageSample)
	}
}

// TestTaskStorageWrong: certain mistakes cause warnings, and end the run.
func TestTaskStorageWrong(t *testing.T) {
	of, err := NewMap(MapSpec{Name: "of_task", Kind: TaskStorage, ValueSize: 16, MaxEntries: 1}, 1, Heap{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Spec{Kind: Kprobe, Maps: []*Map{of}, Insns: mustAssemble(t, "call 158\nstdw [r10-8], 0\nldmap r1, 0\nmov r2, r0\nmov r3, r10\nadd r3, -8\nmov r4, 1\ncall 156\nldxdw r0, [r0+0]\nexit")})
	if err != nil {
		t.Fatal(err)
	}
	w := p.Warnings()
	if len(w) != 2 || !strings.Contains(w[0].What, "16 bytes at offset -8 are outside the stack frame") || !strings.Contains(w[1].What, `value of map "of_task" is used without a check for 0`) {
		t.Error(w)
	}
	var f *Fault
	env := &lifeEnv{task: taskA, lives: map[uint64]TaskLife{taskA: {ID: 1}}}
	if _, err := NewVM(p, 0).Run(regsContext(x86.Regs{}), env); !errors.As(err, &f) || f.Code != FaultMemArg {
		t.Error(err)
	}
	// An array is not a map for tasks, nor one for tasks a map with keys.
	array, err := NewMap(MapSpec{Kind: Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}, 1, Heap{})
	if err != nil {
		t.Fatal(err)
	}
	for src, m := range map[string]*Map{
		"ldmap r1, 0\nmov r2, 1\nmov r3, 0\nmov r4, 0\ncall 156\nexit":       array,
		"ldmap r1, 0\nmov r2, 1\ncall 157\nexit":                             array,
		"stw [r10-4], 0\nldmap r1, 0\nmov r2, r10\nadd r2, -4\ncall 1\nexit": of,
	} {
		p, err := New(Spec{Kind: Kprobe, Maps: []*Map{m}, Insns: mustAssemble(t, src)})
		if err != nil {
			t.Fatal(err)
		}
		if w := p.Warnings(); len(w) != 1 || !strings.Contains(w[0].What, "is not a map of the right kind") {
			t.Errorf("%s: %v", src, w)
		}
		if _, err := NewVM(p, 0).Run(regsContext(x86.Regs{}), NoEnv{}); !errors.As(err, &f) || f.Code != FaultMapArg {
			t.Errorf("%s: %v", src, err)
		}
	}
}
