package bpf

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// testKernel has types whose fields have other offsets than those that the test
// objects were compiled with.
func testKernel(t testing.TB) *Kernel {
	t.Helper()
	word, i32, i16 := &btf.Int{Name: "unsigned long", Size: 8}, &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}, &btf.Int{Name: "short", Size: 2, Encoding: btf.Signed}
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	at := func(name string, t btf.Type, off uint32) btf.Member {
		return btf.Member{Name: name, Type: t, Offset: btf.Bits(8 * off)}
	}
	cred := &btf.Struct{Name: "cred", Size: 16, Members: []btf.Member{at("uid", u32, 12)}}
	task := &btf.Struct{Name: "task_struct", Size: 64, Members: []btf.Member{at("pid", i32, 20), at("cred", &btf.Pointer{Target: cred}, 40), at("stack", &btf.Pointer{Target: &btf.Void{}}, 56)}}
	inode := &btf.Struct{Name: "inode", Size: 32, Members: []btf.Member{at("i_opflags", i16, 4), at("i_ino", word, 24)}}
	file := &btf.Struct{Name: "file", Size: 32, Members: []btf.Member{at("f_inode", &btf.Pointer{Target: inode}, 16)}}
	state := &btf.Enum{Name: "state", Size: 4, Values: []btf.EnumValue{{Name: "RUNNING"}, {Name: "STOPPED", Value: 9}}}
	read := &btf.Func{Name: "vfs_read", Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: word, Params: []btf.FuncParam{
		{Name: "file", Type: &btf.Pointer{Target: file}}, {Name: "buf", Type: &btf.Pointer{Target: &btf.Void{}}}, {Name: "count", Type: word}, {Name: "pos", Type: word},
	}}}
	many := make([]btf.FuncParam, 7)
	for i := range many {
		many[i] = btf.FuncParam{Name: "arg", Type: word}
	}
	wide := &btf.Func{Name: "wide", Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: word, Params: many}}
	event := &btf.Struct{Name: "trace_entry", Size: 8}
	enter := &btf.Struct{Name: "trace_event_raw_sys_enter", Size: 64, Members: []btf.Member{at("ent", event, 0), at("id", word, 8), at("args", &btf.Array{Index: u32, Type: word, Nelems: 6}, 16)}}
	exit := &btf.Struct{Name: "trace_event_raw_sys_exit", Size: 24, Members: []btf.Member{at("ent", event, 0), at("id", word, 8), at("ret", word, 16)}}
	b, err := btf.NewBuilder([]btf.Type{task, cred, file, state, read, wide, enter, exit}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := b.Spec()
	if err != nil {
		t.Fatal(err)
	}
	return &Kernel{
		Types: []*btf.Spec{spec}, Version: KernelVersion("6.1.0-48-cloud-amd64"),
		Config: KernelConfig("# CONFIG_ABSENT is not set\nCONFIG_HZ=250\nCONFIG_SMP=y\nCONFIG_LETTER=m\nCONFIG_MODULE=m\nCONFIG_TEXT=\"as it is\"\n"),
		Symbol: func(name string) (uint64, bool) { return 0xffffffff81000040, name == "jiffies" },
	}
}

// kernelEnv has a task, and a file, at addresses of a kernel.
func kernelEnv() *fakeEnv {
	const task, cred, file, inode = 0xffff888000001000, 0xffff888000002000, 0xffff888000003000, 0xffff888000004000
	e := &fakeEnv{task: task}
	word := func(at, v uint64, size int) { e.put(at, string(binary.LittleEndian.AppendUint64(nil, v)[:size])) }
	word(task+20, 4711, 4)
	word(task+40, cred, 8)
	word(cred+12, 1000, 4)
	word(file+16, inode, 8)
	word(inode+4, 0xfffe, 2)
	word(inode+24, 99, 8)
	return e
}

// loadFor loads some programs of a test object for testKernel.
func loadFor(t testing.TB, name, section string) (*Collection, error) {
	t.Helper()
	return loadIn(t, name, Selection{Section: section, Kernel: testKernel(t)})
}

// loadIn loads some programs of a test object.
func loadIn(t testing.TB, name string, sel Selection) (*Collection, error) {
	t.Helper()
	o, err := LoadObject(readObject(t, name), sel)
	if err != nil {
		return nil, err
	}
	c, err := o.Load(2, Heap{}, 0)
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

// globalWord returns the word of a data section at an offset.
func globalWord(t testing.TB, c *Collection, section string, off int) uint64 {
	t.Helper()
	v, err := c.Maps[section].Lookup(u32(0))
	if err != nil {
		t.Fatal(err)
	}
	return le64(v[0][off:])
}

// TestKernel: what a program asks of the guest's kernel is what that says, not what it
// was compiled with.
func TestKernel(t *testing.T) {
	c, err := loadFor(t, "kernel.o", "kprobe/vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	p := c.find(t, "ask")
	if w := p.Warnings(); len(w) != 0 {
		t.Error(&w[0])
	}
	if r0, err := NewVM(p.Program, 0).Run(regsContext(x86.Regs{}), kernelEnv()); r0 != 0 || err != nil {
		t.Fatal(r0, err)
	}
	word := func(off int) uint64 { return globalWord(t, c, ".bss", off) }
	for i, want := range []uint64{
		1000<<32 | 4711, 250<<32 | 6<<16 | 1<<8, 'm'<<32 | 1, 9<<32 | 2, 0, 0xffffffff81000040, 0, 42, 43, uint64(le64([]byte("as it\x00\x00\x00"))),
	} {
		if got := word(8 * i); got != want {
			t.Errorf("word %d of the answer: %#x, want %#x", i, got, want)
		}
	}
}

func TestKernelLacks(t *testing.T) {
	for section, want := range map[string]string{
		"kprobe/vfs_write":    `program "needs" in section "kprobe/vfs_write", instruction 1: struct task_struct of the guest's kernel (Linux 6.1) has no field never`,
		"kretprobe/vfs_write": "it calls kernel_function, a function of the kernel",
	} {
		if _, err := loadFor(t, "kernel.o", section); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want something about %q", section, err, want)
		}
	}
	k := testKernel(t)
	k.Config = nil
	_, err := loadIn(t, "kernel.o", Selection{Section: "kprobe/vfs_read", Kernel: k})
	if err == nil || !strings.Contains(err.Error(), `the guest's kernel has no option "CONFIG_`) {
		t.Error(err)
	}
	k = testKernel(t)
	k.Symbol = nil
	_, err = loadIn(t, "kernel.o", Selection{Section: "kprobe/vfs_read", Kernel: k})
	if err == nil || !strings.Contains(err.Error(), `the guest's kernel has no symbol "jiffies"`) {
		t.Error(err)
	}
}

func TestKernelVersion(t *testing.T) {
	for text, want := range map[string]uint32{
		"6.1.0-48-cloud-amd64": 6<<16 | 1<<8, "5.10": 5<<16 | 10<<8, "6.12.117+": 6<<16 | 12<<8 | 117, "4.19.300": 4<<16 | 19<<8 | 255,
		"": 0, "6": 0, "x.1": 0, "6.": 0, "6.x": 0, "99999999.1": 0,
	} {
		if got := KernelVersion(text); got != want {
			t.Errorf("%q: %#x, want %#x", text, got, want)
		}
	}
}

// TestTyped: fentry and fexit programs have arguments and result by the function's
// type, and loads through a kernel's pointers read its memory, 0 if it is not mapped.
func TestTyped(t *testing.T) {
	const file = 0xffff888000003000
	c, err := loadFor(t, "typed.o", "")
	if err != nil {
		t.Fatal(err)
	}
	env := kernelEnv()
	entry := &x86.Regs{RDI: file, RSI: 1, RDX: 512, RCX: 3, RAX: 77}
	var data [EntrySize]byte
	PutEntry(data[:], 5, entry)
	run := func(name string, r *x86.Regs) {
		t.Helper()
		p := c.find(t, name)
		if w := p.Warnings(); len(w) != 0 {
			t.Error(&w[0])
		}
		var buf [ReturnSize]byte
		if r0, err := NewVM(p.Program, 0).Run(p.PutContext(buf[:], env, r, 8, 16, data[:]), env); r0 != 0 || err != nil {
			t.Fatal(name, r0, err)
		}
	}
	value := func(name string) uint64 {
		t.Helper()
		return c.variable(t, name)
	}
	check := func(want map[string]uint64) {
		t.Helper()
		for name, v := range want {
			if got := value(name); got != v {
				t.Errorf("%s = %#x, want %#x", name, got, v)
			}
		}
	}
	run("enter", entry)
	check(map[string]uint64{"inode": 99, "opflags": ^uint64(1), "count": 512, "args": 4, "again": 512})
	run("leave", &x86.Regs{RAX: 1234, RDI: 1})
	check(map[string]uint64{"inode": 99, "ret": 1234, "again": 1234})
	env.mem = nil
	run("enter", entry)
	check(map[string]uint64{"inode": 0, "opflags": 0, "count": 512})
	run("enter", &x86.Regs{})
	check(map[string]uint64{"inode": 0, "count": 0})
	for _, p := range c.Programs {
		want := map[string]string{"enter": "vfs_read", "leave": "vfs_read", "open": "__x64_sys_openat", "opened": "__x64_sys_openat"}[p.Name()]
		if p.AttachTo != want || p.Kind().AtReturn() != strings.HasPrefix(p.Name(), "opened") && p.Name() != "leave" {
			t.Errorf("%s: at %s, %v", p.Name(), p.AttachTo, p.Kind())
		}
	}
}

// TestTypedRefused: functions that are not known, and arguments that are not in
// registers.
func TestTypedRefused(t *testing.T) {
	file, section := readObject(t, "typed.o"), "fentry/vfs_read"
	for want, sel := range map[string]Selection{
		"the types (BTF) of the guest's kernel, which are not known: use kprobe/": {Section: section},
		`have no function "nope"`:                      {Section: section, Kernel: testKernel(t), At: map[string]string{"": "nope"}},
		`arguments after the first 6 are on the stack`: {Section: section, Kernel: testKernel(t), At: map[string]string{"vfs_read": "wide"}},
	} {
		if _, err := LoadObject(file, sel); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %q", err, want)
		}
	}
}

func TestCallbacks(t *testing.T) {
	c := loadObject(t, "callback.o", Heap{})
	if len(c.Programs) != 1 {
		t.Fatal(c.Programs)
	}
	p := c.find(t, "run")
	if w := p.Warnings(); len(w) != 0 {
		t.Error(&w[0])
	}
	v := NewVM(p.Program, 0)
	run := func(n, stop, which uint64) uint64 {
		t.Helper()
		r0, err := v.Run(regsContext(x86.Regs{RDI: n, RSI: stop, RDX: which}), NoEnv{})
		if err != nil {
			t.Fatal(err)
		}
		return r0
	}
	value := func(name string) uint64 {
		return c.variable(t, name)
	}
	if r0 := run(10, 100, 1); r0 != 5 || value("looped") != 10 || value("sum") != 45|69<<32 || value("visited") != 2 || value("tails") != 33 {
		t.Errorf("R0 %d, %d loops, sum %#x, %d elements, %d tail calls", r0, value("looped"), value("sum"), value("visited"), value("tails"))
	}
	if got := lookup(t, c.Maps["second"], u32(11)); got[0] != 3 {
		t.Error(got)
	}
	if run(10, 4, 0); value("looped") != 5 || value("sum") != 10|69<<32 {
		t.Errorf("%d loops, sum %#x", value("looped"), value("sum"))
	}
	if got := lookup(t, c.Maps["first"], u32(10)); got[0] != 3 {
		t.Error(got)
	}
	if r0 := run(1, 0, 2); r0 != 1 {
		t.Errorf("an empty place of a map of maps: R0 %d", r0)
	}
	if run(9<<20, 1<<40, 0); int64(value("looped")) != -errTooBig {
		t.Errorf("%d loops", int64(value("looped")))
	}
	if _, err := v.Run(regsContext(x86.Regs{RDI: 8 << 20, RSI: 1 << 40}), NoEnv{}); err == nil || err.(*Fault).Code != FaultBudget {
		t.Errorf("a loop without end: %v", err)
	}
	_, _, err := Compile(p.Program, Layout{})
	if err == nil || !strings.Contains(err.Error(), "which only the host has") {
		t.Error(err)
	}
}

// variable returns the word of a variable in .bss.
func (c *Collection) variable(t testing.TB, name string) uint64 {
	t.Helper()
	section, ok := c.Maps[".bss"].Spec().ValueType.t.(*btf.Datasec)
	if ok {
		for _, v := range section.Vars {
			if v.Type.TypeName() == name {
				return globalWord(t, c, ".bss", int(v.Offset))
			}
		}
	}
	t.Fatalf("no variable %s", name)
	return 0
}

// TestSystemCalls: programs of a call's tracepoints have what its function gets.
func TestSystemCalls(t *testing.T) {
	const user = 0xffffc90000100f58
	c, err := loadFor(t, "syscall.o", "")
	if err != nil {
		t.Fatal(err)
	}
	env := &fakeEnv{}
	regs := make([]byte, RegsSize)
	PutRegs(regs, &x86.Regs{RDI: 1, RSI: 2, RDX: 3, RCX: 99, R10: 4, R8: 5, R9: 6, RAX: ^uint64(37)}, 0x33, 0x2b)
	binary.LittleEndian.PutUint64(regs[x86.PtOrigAX:], 257)
	env.put(user, string(regs))
	var data [EntrySize]byte
	PutEntry(data[:], 5, &x86.Regs{RDI: user})
	run := func(name string, r *x86.Regs) {
		t.Helper()
		p := c.find(t, name)
		if p.AttachTo != "__x64_sys_openat" {
			t.Error(p.AttachTo)
		}
		if w := p.Warnings(); len(w) != 0 {
			t.Error(&w[0])
		}
		var buf [ReturnSize]byte
		v := NewVM(p.Program, 0)
		if n := testing.AllocsPerRun(1, func() {
			if r0, err := v.Run(p.PutContext(buf[:], env, r, 8, 16, data[:]), env); r0 != 0 || err != nil {
				t.Fatal(name, r0, err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	run("enter", &x86.Regs{RDI: user})
	if c.variable(t, "id") != 257 || c.variable(t, "args")&(1<<48-1) != 0x010203040506 {
		t.Errorf("call %d, arguments %#x", c.variable(t, "id"), c.variable(t, "args"))
	}
	run("leave", &x86.Regs{RAX: 3, RDI: 7})
	if c.variable(t, "id") != 257 || c.variable(t, "ret") != 3 {
		t.Errorf("call %d, result %d", c.variable(t, "id"), c.variable(t, "ret"))
	}
	env.mem = nil
	run("enter", &x86.Regs{RDI: user})
	if c.variable(t, "id") != 0 || c.variable(t, "args")&(1<<48-1) != 0 {
		t.Errorf("call %d, arguments %#x", c.variable(t, "id"), c.variable(t, "args"))
	}
}

// TestLeftOut: programs at functions that the guest does not have are left out when that
// is asked for, and with them what only they need.
func TestLeftOut(t *testing.T) {
	has := func(names ...string) func(string) bool {
		return func(name string) bool { return slices.Contains(names, name) }
	}
	o, err := LoadObject(readObject(t, "typed.o"), Selection{Kernel: testKernel(t), Has: has("__x64_sys_openat")})
	if err != nil || len(o.Programs) != 2 || !slices.Equal(o.LeftOut, []string{"vfs_read", "vfs_read"}) {
		t.Errorf("%v, %+v", err, o)
	}
	if _, err := LoadObject(readObject(t, "typed.o"), Selection{Kernel: testKernel(t), Has: has()}); !errors.Is(err, ErrNoPrograms) || !strings.Contains(err.Error(), "the guest has no function of") {
		t.Error(err)
	}
}

func TestParseAt(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"": {}, "f": {"": "f"}, "a=b": {"a": "b"}, "a=b,c=d+4": {"a": "b", "c": "d+4"},
	} {
		if got, err := ParseAt(text); err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{",", "a=", "=b", "a=b,a=c", "a,b", "a=b,"} {
		if got, err := ParseAt(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
