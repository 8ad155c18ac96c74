package script

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
	"github.com/guestprobe/guestprobe/probe/bpf"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// fakeTarget is a guest with a few functions.
type fakeTarget map[string]uint64

var target = fakeTarget{
	"do_sys_openat2": 0xffffffff81300000, "vfs_read": 0xffffffff81310000, "vfs_readv": 0xffffffff81311000, "vfs_write": 0xffffffff81320000,
	"ksys_read": 0xffffffff81330000, "get_dentry": 0xffffffff81350000,
	"odd_words": 0xffffffff81360000, "kernel_clone": 0xffffffff81370000, "do_syscall_64": 0xffffffff81340000,
	"main": 0x401000, "jiffies": 0xffffffff82000000, "jiffies_64": 0xffffffff82000000, "nf_nat:nf_nat_setup_info": 0,
}

func (f fakeTarget) Match(pattern string, user, _ bool, most int) (names []string, _ map[string]int) {
	mod, own, ofModule := strings.Cut(pattern, ":")
	if kernel, _ := path.Match(mod, "vmlinux"); ofModule && kernel {
		for n := range f {
			if ok, _ := path.Match(own, n); ok && !strings.Contains(n, ":") {
				names = append(names, n)
			}
		}
	}
	for n := range f {
		if ok, _ := path.Match(pattern, n); ok && (!user || f.User(n)) && len(names) < most {
			names = append(names, n)
		}
	}
	return names, nil
}

// kernelTypes are the types of the guest.
var kernelTypes = func() *types.Info {
	spec, err := types.Read(kerneltest.Types(), nil)
	if err != nil {
		panic(err)
	}
	return types.New(spec, nil)
}()

// Func gives tracepoints the arguments of vfs_read, except the first.
func (f fakeTarget) Func(name string) (*btf.FuncProto, string) {
	if strings.HasPrefix(name, bpf.AtTracepoint) {
		name = "vfs_read"
	}
	return kernelTypes.Func("", name), ""
}

func (f fakeTarget) Source(place string) ([]string, error) {
	if place != "fs/read_write.c:450" && place != "inline:rw_verify_area" {
		return nil, errors.New(place + " has no code")
	}
	return []string{"vfs_read+16", "nf_nat:nf_nat_setup_info+4"}, nil
}

func (f fakeTarget) Types() Types { return kernelTypes }

// Events are those with a name of 16 bytes at 8, a number of 4 bytes at 24, and a text that the word at 28 locates; sched_switch has the number
// at 40.
func (f fakeTarget) Events() []string {
	return []string{"sched:sched_process_exec", "sched:sched_switch"}
}

func (f fakeTarget) Event(name string) ([]EventField, error) {
	pid := uint64(24)
	if name == "sched:sched_switch" {
		pid = 40
	}
	char, number := &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}, &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	return []EventField{
		{Name: "comm", Type: &btf.Array{Index: number, Type: char, Nelems: 16}, Offset: 8},
		{Name: "pid", Type: number, Offset: pid},
		{Name: "filename", Type: &btf.Pointer{Target: char}, Offset: 28, Located: true},
	}, nil
}

func (f fakeTarget) Tracepoints() []string { return []string{"sched_switch", "sys_enter", "sys_exit"} }

func (f fakeTarget) Exits() []string { return []string{"io", "hlt", "debug"} }

func (f fakeTarget) MissingReason(what TaskPart) (why, cure string) {
	if f["no_tasks"] != 0 {
		return "the guest does not say where its tasks are", "write gp_profile"
	}
	return "", ""
}

func (f fakeTarget) User(name string) bool { return name == "main" || name == "0x401000" }

// Lookup knows a module that is not loaded, but may be: later.
func (f fakeTarget) Lookup(name string) (uint64, bool, string) {
	own, _ := strings.CutPrefix(name, "vmlinux:")
	a, ok := f[own]
	return a, ok || strings.HasPrefix(name, "later:"), ""
}

func (f fakeTarget) HasModule(name string) (bool, string) {
	return name == "nf_nat", map[bool]string{true: "fs is a directory"}[name == "fs"]
}

// ShownAddr shows the address 0x1007 as a place in its file.
func (f fakeTarget) ShownAddr(addr uint64) uint64 {
	if addr == nameless {
		return 0x2000
	}
	if addr == f["main"]+7 {
		return 0x1007
	}
	return addr
}

// BuildID is known of the code that ShownAddr knows.
func (f fakeTarget) BuildID(addr uint64) string {
	if addr == f["main"]+7 {
		return "00ff"
	}
	return ""
}

// File is the file of the code that ShownAddr knows, and of the next instruction, which has no name.
func (f fakeTarget) File(addr uint64) string {
	if addr == f["main"]+7 || addr == nameless {
		return "/bin/prog"
	}
	return ""
}

// Frames has two functions inlined at main + 7, of which one has no name.
func (f fakeTarget) Frames(addr uint64) []Frame {
	switch addr {
	case f["main"] + 7:
		return []Frame{{"inner", "/src/in.h", 7, true}, {"outer", "/src/in.h", 0, true}, {"", "/src/a.c", 9, true}, {"main", "/src/a.c", 12, false}}
	case nameless:
		return []Frame{{"", "/src/a.c", 20, false}}
	case f["vfs_write"]:
		return []Frame{{"inner", "/src/in.h", 8, true}} // the function around it is not known
	}
	return nil
}

func (f fakeTarget) Name(addr uint64) (string, uint64, bool) {
	for n, a := range f {
		if addr >= a && addr < a+0x1000 {
			return n, addr - a, true
		}
	}
	return "", 0, false
}

// hit is one arrival at a function, or its return.
type hit struct {
	fn     string
	ret    bool
	cpu    int
	pid    uint32
	comm   string
	args   [6]uint64
	ip     uint64
	retval uint64
	time   uint64
	stack  []uint64
	user   []uint64 // likewise
	memory map[uint64]string
	task   uint64
}

// fakeEnv answers helpers for a hit.
type fakeEnv struct {
	bpf.NoEnv
	hit
}

func (e *fakeEnv) Now() uint64     { return e.time }
func (e *fakeEnv) PIDTGID() uint64 { return uint64(e.pid)<<32 | uint64(e.pid) }
func (e *fakeEnv) Space() uint64   { return 0x5000 }
func (e *fakeEnv) FuncIP() uint64  { return target[e.fn] }
func (e *fakeEnv) Task() uint64    { return e.task }
func (e *fakeEnv) Comm(b *[16]byte) {
	clear(b[:])
	copy(b[:], e.comm)
}

var errNotMapped = errors.New("not mapped")

func (e *fakeEnv) ReadKernel(addr uint64, p []byte) error {
	for at, s := range e.memory {
		s += strings.Repeat("\x00", 256)
		if off := addr - at; off < uint64(len(s)) && int(off)+len(p) <= len(s) {
			copy(p, s[off:])
			return nil
		}
	}
	return errNotMapped
}

func (e *fakeEnv) Stack(pcs []uint64, skip int, user bool) (int, error) {
	all := e.stack
	if user {
		all = e.user
	}
	if all == nil {
		return 0, errNotMapped
	}
	return copy(pcs, all[min(skip, len(all)):]), nil
}

// unbuilt is where it has code of a file without a build ID, vfs_write.
const unbuilt = 0x7f9000000010

// nameless is code of a file that does not name it.
const nameless = 0x4000000000002000

// mapped is where a process has main + 7, as code of a file.
const mapped = 0x7f8000001007

func (e *fakeEnv) FileCode(addr uint64) uint64 {
	if addr == mapped {
		return target["main"] + 7
	}
	if addr == unbuilt {
		return target["vfs_write"]
	}
	return addr
}

// HasBuildID knows another file, which has no build ID.
func (e *fakeEnv) HasBuildID(addr uint64) bool { return addr == target["main"]+7 }

// ran is what a script has done.
type ran struct {
	out      string
	warnings string
	exited   bool
	status   int64
	states   []MapState // at the end
}

const testCPUs = 2

// holdNothing is for printers beside which no program runs.
func holdNothing(f func(idle bool)) { f(true) }

// drain prints the records of a ring.
func (p *Printer) drain(m *bpf.Map) (records [][]byte, err error) {
	m.Drain(func(rec bpf.Record) bool {
		records = append(records, append([]byte(nil), rec.Data...))
		return true
	})
	for i, data := range records {
		var next []byte
		if i+1 < len(records) {
			next = records[i+1]
		}
		if err := p.Record(data, next); err != nil {
			return records, fmt.Errorf("record %x: %w", data, err)
		}
	}
	return records, nil
}

// runScript runs a script on hits, in the interpreter.
func runScript(tb testing.TB, text string, params []string, json bool, ticks int, hits ...hit) (r ran, err error) {
	tb.Helper()
	return runOn(tb, target, text, params, json, ticks, hits...)
}

// runOn is runScript on another guest.
func runOn(tb testing.TB, target Target, text string, params []string, json bool, ticks int, hits ...hit) (r ran, err error) {
	tb.Helper()
	return runWith(tb, target, text, Options{Params: params}, json, ticks, hits...)
}

// runWith is runOn with options, of which it sets those of the guest.
func runWith(tb testing.TB, target Target, text string, o Options, json bool, ticks int, hits ...hit) (r ran, err error) {
	tb.Helper()
	o.Files, o.CPUs, o.Epoch = true, testCPUs, 951782400e9
	s, err := Compile(text, target, o)
	if err != nil {
		return r, err
	}
	col, err := s.Object.Load(testCPUs+1, bpf.Heap{}, 0)
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	defer col.Close()
	var out strings.Builder
	write := func(t string) { out.WriteString(t) }
	p := s.NewPrinter(func(name string) *bpf.Map { return col.Maps[name] }, target, json, holdNothing, write, func(t string) { write(t + "\n") })
	vms := []*bpf.VM{bpf.NewVM(nil, 0), bpf.NewVM(nil, 1)}
	run := func(prog *bpf.Program, h hit) {
		var buf [bpf.ReturnSize]byte
		regs := &x86.Regs{RDI: h.args[0], RSI: h.args[1], RDX: h.args[2], RCX: h.args[3], R8: h.args[4], R9: h.args[5], RAX: h.retval, RIP: h.ip}
		entry := make([]byte, bpf.EntrySize)
		bpf.PutEntry(entry, h.time, regs)
		env := &fakeEnv{hit: h}
		vms[h.cpu].Use(prog)
		_, err := vms[h.cpu].Run(prog.PutContext(buf[:], env, regs, 8, 16, entry), env)
		vms[h.cpu].Leave()
		var fault *bpf.Fault
		if errors.As(err, &fault) {
			r.warnings += s.Source(prog.Name(), fault.PC, fault.Code.String()) + "\n"
		}
		if m := col.Maps[mapOutput]; m != nil {
			records, err := p.drain(m)
			if err != nil {
				tb.Fatalf("%s: %v", text, err)
			}
			for _, data := range records {
				if status, ok := s.Exit(data); ok && !r.exited {
					r.status, r.exited = status, true
				}
			}
		}
	}
	named := func(name string) {
		for _, lp := range col.Programs {
			if lp.Name() == name {
				run(lp.Program, hit{})
			}
		}
	}
	for _, name := range s.Begin {
		named(name)
	}
	for _, h := range hits {
		for _, lp := range col.Programs {
			if lp.AttachTo == h.fn && lp.Kind().AtReturn() == h.ret && !r.exited {
				run(lp.Program, h)
			}
		}
	}
	for range ticks {
		for _, i := range s.Intervals {
			if !r.exited {
				named(i.Program)
			}
		}
	}
	for _, name := range s.End {
		named(name)
	}
	r.states, _ = p.States()
	p.PrintMaps()
	r.warnings += strings.Join(append(s.Warnings, p.Problems(true)...), "\n")
	r.out = out.String()
	return r, nil
}

// The hits of the cases.

// open3 are three calls of do_sys_openat2.
func open3() (hs []hit) {
	call := func(cpu int, pid uint32, comm, file string, ret int64, took uint64) {
		h := hit{fn: "do_sys_openat2", cpu: cpu, pid: pid, comm: comm, time: uint64(1000 * (len(hs) + 1)), args: [6]uint64{uint64(0xffffff9c), 0x7000},
			memory: map[uint64]string{0x7000: file + "\x00"}}
		r := h
		r.ret, r.retval, r.time = true, uint64(ret), h.time+took
		hs = append(hs, h, r)
	}
	call(0, 101, "cat", "/etc/passwd", 3, 4200)
	call(1, 102, "ls", "/tmp", 4, 900)
	call(0, 101, "cat", "/nope", -2, 15000)
	return hs
}

// read4 are four calls of vfs_read.
func read4() (hs []hit) {
	for _, n := range []uint64{0, 1, 100, 4096} {
		hs = append(hs, hit{fn: "vfs_read", pid: 200, comm: "dd", args: [6]uint64{1, 2, n, 4}, stack: []uint64{target["vfs_read"], target["ksys_read"] + 107, target["do_syscall_64"] + 88}})
	}
	return hs
}
