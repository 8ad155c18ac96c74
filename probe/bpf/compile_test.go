//go:build linux && amd64

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// nativeProgram loads an object into memory that compiled code sees.
func nativeProgram(t testing.TB, n *native, file, name string, l Layout, b BlockConfig) (*Collection, *compiled) {
	t.Helper()
	c := loadObject(t, file, n)
	code, err := n.load(c.find(t, name).Program, l, b, RegsSize)
	if err != nil {
		t.Fatal(err)
	}
	return c, code
}

func TestCompiledCount(t *testing.T) {
	for _, file := range []string{"count.o", "count-v1.o"} {
		c, code := nativeProgram(t, newNative(t), file, "count", Layout{}, BlockConfig{CPU: 1})
		for i := range uint64(5) {
			if r0, err := code.run(regsContext(x86.Regs{RDI: 40 + i/3})); r0 != 0 || err != nil {
				t.Fatalf("%s: %d, %v", file, r0, err)
			}
		}
		if got := lookup(t, c.Maps["hits"], u32(0)); got[0] != 0 || got[1] != 5 {
			t.Errorf("%s: hits = %v, want 5 on vCPU 1", file, got)
		}
		if a, b := lookup(t, c.Maps["by_arg"], u64(40)), lookup(t, c.Maps["by_arg"], u64(41)); a[0] != 3 || b[0] != 2 {
			t.Errorf("%s: by_arg = %v, %v, want 3, 2", file, a, b)
		}
		if code.info.ContextReads != 1<<(x86.PtDI/8) {
			t.Errorf("%s: reads %#x of the context, want only di", file, code.info.ContextReads)
		}
	}
}

// TestCompiledTask runs the latency programs, whose key is the current task, on
// a task structure of the test's own.
func TestCompiledTask(t *testing.T) {
	n := newNative(t)
	task, err := lowMemory(t)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	le.PutUint64(task.Bytes, task.Addr+8) // the word that points to the current task; the base of GS is 0 here
	le.PutUint32(task.Bytes[8+4:], 8)     // its thread
	le.PutUint32(task.Bytes[8+8:], 7)     // its group
	copy(task.Bytes[8+16:], "builtin\x00garbage!")
	l := Layout{Task: &TaskProfile{TID: 4, TGID: 8, Comm: 16, Current: int32(task.Addr)}}
	c := loadObject(t, "latency.o", n)
	cfg := BlockConfig{Clock: Clock{Mult: 1 << 32}}
	enter, err := n.load(c.find(t, "enter").Program, l, cfg, RegsSize)
	if err != nil {
		t.Fatal(err)
	}
	leave, err := n.load(c.find(t, "leave").Program, l, cfg, RegsSize)
	if err != nil {
		t.Fatal(err)
	}
	ctx := make([]byte, RegsSize)
	for range 10 {
		if _, err := enter.run(ctx); err != nil {
			t.Fatal(err)
		}
		if got := lookup(t, c.Maps["started"], u64(7<<32|8)); got[0] == 0 {
			t.Fatal("no time under the task's key")
		}
		if _, err := leave.run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if h, err := c.Maps["nanoseconds"].Hist(); err != nil || h.Total() != 10 {
		t.Errorf("histogram %v, %v, want 10 in all", h, err)
	}
	if _, _, err := Compile(c.find(t, "enter").Program, Layout{}); !strings.Contains(err.Error(), "guest profile") {
		t.Errorf("without a profile: %v", err)
	}

	for size, want := range map[int64]string{16: "builtin\x00\x00\x00\x00\x00\x00\x00\x00\x00", 4: "bui\x00xxxx", 1: "\x00xxxxxxx"} {
		src := "lddw r6, 0x7878787878787878\nstxdw [r10-16], r6\nstxdw [r10-8], r6\nmov r1, r10\nadd r1, -16\nmov r2, " + itoa(size) + "\ncall 16\nexit"
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, src)})
		if err != nil {
			t.Fatal(err)
		}
		full := l
		full.Full = true // so the stack is where it can be seen
		code, err := n.load(p, full, cfg, RegsSize)
		if err != nil {
			t.Fatal(err)
		}
		if r0, err := code.run(ctx); r0 != 0 || err != nil {
			t.Errorf("comm of %d bytes: %d, %v", size, int64(r0), err)
		}
		v := NewVM(p, 0)
		if _, err := v.Run(ctx, &fakeEnv{}); err != nil {
			t.Fatal(err)
		}
		got, host := code.block.Bytes[blkStack+StackSize-16:], v.stack[StackSize-16:]
		if string(got[:len(want)]) != want || !bytes.Equal(got[:16], host) {
			t.Errorf("comm of %d bytes: compiled %q, interpreter %q, want %q", size, got[:16], host, want)
		}
	}
}

// TestCompiledRead reads memory at addresses of this process, and then has the
// loads "fault": each is replaced by the jump that the machine would make.
func TestCompiledRead(t *testing.T) {
	n := newNative(t)
	guest, err := n.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	copy(guest.Bytes, "a name of some length\x00more")
	c, code := nativeProgram(t, n, "record.o", "record", Layout{Fixups: true}, BlockConfig{CPU: 1})
	regs := x86.Regs{RDI: 1, RSI: guest.Addr, RDX: 100, RCX: 4, R8: 5, R9: 6}
	if len(code.info.Fixups) == 0 {
		t.Fatal("no fixups")
	}
	for _, want := range []string{"a name of some length", ""} {
		if r0, err := code.run(regsContext(regs)); r0 != 1 || err != nil {
			t.Fatalf("r0 %d, %v", r0, err)
		}
		if n := c.Maps["records"].Drain(func(r Record) bool {
			name := r.Data[64:]
			if got := binary.LittleEndian.Uint32(r.Data[60:]); int(got) != len(want) || string(name[:len(want)]) != want || name[len(want)] != 0 {
				t.Errorf("name %q of %d, want %q", name, got, want)
			}
			if r.CPU != 1 || le64(r.Data[8+8*5:]) != 6 {
				t.Errorf("vCPU %d, sixth argument %d", r.CPU, le64(r.Data[8+8*5:]))
			}
			return true
		}); n != 1 {
			t.Fatalf("%d records, want 1", n)
		}
		for i, f := range code.info.Fixups {
			// The jump may reach into the next instruction, which nothing else comes to.
			if i > 0 && f.Fault < code.info.Fixups[i-1].Fault+x86.JmpLen {
				t.Fatalf("fixups at %d and %d", code.info.Fixups[i-1].Fault, f.Fault)
			}
			jmp, _ := x86.Jmp32(uint64(f.Fault), uint64(f.Resume))
			copy(code.code.Bytes[f.Fault:], jmp[:])
		}
	}
	if _, _, err := Compile(c.find(t, "record").Program, Layout{}); err == nil {
		t.Error("compiled without fixups")
	}
}

// TestStackTask finds the task through the stack pointer in the context.
func TestStackTask(t *testing.T) {
	n := newNative(t)
	mem, err := n.Alloc(3 * 4096)
	if err != nil {
		t.Fatal(err)
	}
	stack := mem.Bytes[-mem.Addr&4095:][:4096]
	addr := (mem.Addr + 4095) &^ 4095
	for _, full := range []bool{false, true} {
		testStackTask(t, n, stack, addr, full)
	}
}

func testStackTask(t *testing.T, n *native, stack []byte, addr uint64, full bool) {
	l := Layout{Full: full, Fixups: true, Task: &TaskProfile{TID: 20, TGID: 24, Comm: 32, Stack: &StackProfile{Mask: ^uint64(4095), Magic: 0x1122334455667788, MagicOff: 8}}}
	le := binary.LittleEndian
	le.PutUint64(stack[8:], l.Task.Stack.Magic)
	le.PutUint32(stack[20:], 8)
	le.PutUint32(stack[24:], 7)
	program := func(src string) *compiled {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, src)})
		if err != nil {
			t.Fatal(err)
		}
		code, err := n.load(p, l, BlockConfig{}, RegsSize)
		if err != nil {
			t.Fatal(err)
		}
		if code.info.ContextReads != 1<<(x86.PtSP/8) || len(code.info.Fixups) < 3 {
			t.Errorf("reads %#x of the context, %d fixups", code.info.ContextReads, len(code.info.Fixups))
		}
		return code
	}
	ids := program("call 14\nexit")
	for sp, want := range map[uint64]uint64{addr: 7<<32 | 8, addr + 4095: 7<<32 | 8, addr + 4096: 0} {
		if r0, err := ids.run(regsContext(x86.Regs{RSP: sp})); r0 != want || err != nil {
			t.Errorf("at %#x: %#x, %v, want %#x", sp, r0, err, want)
		}
	}
	const src = "mov r1, r10\nadd r1, -16\nmov r2, 16\ncall 16\nldxdw r1, [r10-16]\nldxdw r2, [r10-8]\nlddw r3, 0x9e3779b97f4a7c15\nmul r1, r3\nxor r1, r2\nmov r0, r1\nexit"
	name := program(src)
	for _, s := range []string{"", "a", "seven c", "8 chars.", "nine char", "fifteen charact", "sixteen characte", "x\x00garbage behin", "\x00\xff\xff\xff\xff\xff\xff\xff\xff",
		"\x01\x01\x01\x00\x01\x80\x01\x00\x01", "\x80\xff\x01\x80\x01\x80\x01\x80\x01\x01\x00\x01", "1234567\x00\x01"} {
		clear(stack[32:48])
		copy(stack[32:48], s)
		v := NewVM(name.p, 0)
		want, err := v.Run(make([]byte, RegsSize), commEnv{name: s})
		if err != nil {
			t.Fatal(err)
		}
		if r0, err := name.run(regsContext(x86.Regs{RSP: addr + 100})); r0 != want || err != nil {
			t.Errorf("%q: %#x, %v, want %#x", s, r0, err, want)
		}
	}
	if r0, err := name.run(regsContext(x86.Regs{RSP: addr + 4096})); r0 != 0 || err != nil {
		t.Errorf("of no task: %#x, %v", r0, err)
	}
	// A fault has the same result as a missing task.
	for _, code := range []*compiled{ids, name} {
		for _, f := range code.info.Fixups {
			jmp, _ := x86.Jmp32(uint64(f.Fault), uint64(f.Resume))
			old := bytes.Clone(code.code.Bytes[f.Fault:][:len(jmp)])
			copy(code.code.Bytes[f.Fault:], jmp[:])
			if r0, err := code.run(regsContext(x86.Regs{RSP: addr})); r0 != 0 || err != nil {
				t.Errorf("fault at %d: %#x, %v", f.Fault, r0, err)
			}
			copy(code.code.Bytes[f.Fault:], old)
		}
	}
	p, _ := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, "call 14\nexit")})
	host := (*HostOnlyError)(nil)
	if _, _, err := Compile(p, Layout{Task: l.Task}); !errors.As(err, &host) || host.Why != needsFix {
		t.Errorf("without fixups: %v", err)
	}
}

// commEnv has a task with a name.
type commEnv struct {
	NoEnv
	name string
}

func (e commEnv) Comm(p *[16]byte) { copy(p[:], e.name) }

func TestHostOnly(t *testing.T) {
	n := newNative(t)
	maps := testMaps(t, n, arraySpec, hashSpec)
	for _, tt := range []struct {
		name, src string
		helper    Helper
		at        int
	}{
		{"printk", "call 6\nexit", HelperTracePrintk, 0},
		{"stack", "mov r0, 0\ncall 67\nexit", HelperGetStack, 1},
		{"override", "call 58\nexit", HelperOverrideReturn, 0},
		{"task", "call 14\nexit", HelperGetPIDTGID, 0},
		{"read", "call 113\nexit", HelperReadKernel, 0},
		{"two maps", "ldxdw r2, [r1+0]\nldmap r6, 0\njeq r2, 0, one\nldmap r6, 1\none:\nmov r1, r6\ncall 1\nexit", HelperMapLookup, 7},
	} {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, tt.src), Maps: maps})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = Compile(p, Layout{})
		var host *HostOnlyError
		if !errors.As(err, &host) || host.Helper != tt.helper || host.Index != tt.at || host.Why == "" {
			t.Errorf("%s: %v, want %v at %d", tt.name, err, tt.helper, tt.at)
		}
	}
	p, _ := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, countProgram), Maps: maps})
	if _, _, err := Compile(p, Layout{}); err != nil {
		t.Errorf("count: %v", err)
	}
}

// TestBusyBlock: a block in use is left alone and the call counted.
func TestBusyBlock(t *testing.T) {
	for _, shared := range []bool{false, true} {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, "mov r0, 7\nexit")})
		if err != nil {
			t.Fatal(err)
		}
		code, err := newNative(t).load(p, Layout{Shared: shared, Full: true}, BlockConfig{}, RegsSize)
		if err != nil {
			t.Fatal(err)
		}
		ctx := make([]byte, RegsSize)
		for i, want := range []uint64{7, 0, 7} {
			code.block.Bytes[blkBusy] = byte(i & 1)
			if r0, err := code.run(ctx); r0 != want || err != nil {
				t.Errorf("shared %v, call %d: %d, %v, want %d", shared, i, r0, err, want)
			}
		}
		if runs, failed, missed, _ := BlockStats(code.block); runs != 2 || failed != 0 || missed != 1 {
			t.Errorf("shared %v: %d runs, %d failed, %d missed, want 2, 0, 1", shared, runs, failed, missed)
		}
	}
}

func TestContextReads(t *testing.T) {
	all := uint32(1<<(RegsSize/8) - 1)
	n := newNative(t)
	maps := testMaps(t, n, arraySpec)
	load := func(offs ...int) (m uint32) {
		for _, o := range offs {
			m |= 1 << (o / 8)
		}
		return m
	}
	for _, tt := range []struct {
		name, src string
		want      uint32
	}{
		{"none", "mov r0, 0\nexit", 0},
		{"one", "ldxdw r0, [r1+112]\nexit", load(x86.PtDI)},
		{"across two", "ldxdw r0, [r1+116]\nexit", load(x86.PtDI, x86.PtOrigAX)},
		{"moved and added", "mov r6, r1\nadd r6, 8\nldxb r0, [r6+0]\nldxw r1, [r6+80]\nadd r0, r1\nexit", load(x86.PtR14, x86.PtCX)},
		{"not used", "ldxb r0, [r1+0]\nldxw r0, [r1+80]\nldxw r2, [r1+88]\nexit", load(x86.PtAX)},
		{"kept over a call", "mov r6, r1\ncall 8\nldxdw r0, [r6+0]\nexit", load(x86.PtR15)},
		{"helper", "mov r2, 0\nmov r3, r10\nadd r3, -8\ncall 183\nexit", load(x86.CallArgs[:]...)},
		{"value", "ldval r1, 0, 0\nldxdw r0, [r1+0]\nexit", 0},
		{"computed", "ldxdw r2, [r1+0]\nadd r1, r2\nldxb r0, [r1+0]\nexit", all},
		{"spilled", "stxdw [r10-8], r1\nldxdw r2, [r10-8]\nldxb r0, [r2+0]\nexit", load(x86.PtR15)},
		{"spilled, with a loop", "mov r3, 2\na:\nsub r3, 1\njne r3, 0, a\nstxdw [r10-8], r1\nldxdw r2, [r10-8]\nldxb r0, [r2+0]\nexit", load(x86.PtR15)},
		{"spilled to a map", "ldval r3, 0, 0\nstxdw [r3+0], r1\nldxdw r2, [r3+0]\nldxb r0, [r2+0]\nexit", all},
		{"computed, in bounds", "ldxdw r2, [r1+0]\nand r2, 8\nadd r1, r2\nldxb r0, [r1+0]\nexit", all},
		{"passed and computed", "ldxdw r2, [r1+0]\ncall local f\nexit\nf:\nmul r1, r2\nldxb r0, [r1+0]\nexit", all},
		{"passed", "call local f\nexit\nf:\nldxb r0, [r1+0]\nexit", load(x86.PtR15)},
		{"merged", "ldxdw r2, [r1+0]\njeq r2, 0, f\nmov r1, 5\nf:\nldxb r0, [r1+0]\nexit", all},
	} {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, tt.src), Maps: maps})
		if err != nil {
			t.Fatal(err)
		}
		_, info, err := Compile(p, Layout{})
		if err != nil || info.ContextReads != tt.want {
			t.Errorf("%s: %#x (%d fields), %v, want %#x", tt.name, info.ContextReads, bits.OnesCount32(info.ContextReads), err, tt.want)
		}
	}
}

// TestHashBothSides lets compiled code and the host change the same few keys at
// the same time, and wants each key once and the values whole.
func TestHashBothSides(t *testing.T) {
	n := newNative(t)
	m := testMaps(t, n, MapSpec{Name: "h", Kind: Hash, KeySize: 8, ValueSize: 16, MaxEntries: 40})[0]
	// Key, operation and value come in the context.
	p, err := New(Spec{Kind: Kprobe, Maps: []*Map{m}, Insns: mustAssemble(t, `
		mov r6, r1
		ldxdw r2, [r6+112]
		stxdw [r10-8], r2
		ldxdw r2, [r6+96]
		stxdw [r10-24], r2
		xor r2, -1
		stxdw [r10-16], r2
		ldmap r1, 0
		mov r2, r10
		add r2, -8
		mov r3, r10
		add r3, -24
		mov r4, 0
		ldxdw r5, [r6+104]
		jeq r5, 0, delete
		call 2
		exit
	delete:
		call 3
		exit`)})
	if err != nil {
		t.Fatal(err)
	}
	code, err := n.load(p, Layout{}, BlockConfig{}, RegsSize)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 30000
	done := make(chan struct{})
	go func() {
		defer close(done)
		val := make([]byte, 16)
		for i := range uint64(rounds) {
			binary.LittleEndian.PutUint64(val, i)
			binary.LittleEndian.PutUint64(val[8:], ^i)
			if i%3 == 0 {
				m.remove(u64(i % 7))
			} else {
				m.update(u64(i%7), val, UpdateAny, 0)
			}
		}
	}()
	for i := range uint64(rounds) {
		if _, err := code.run(regsContext(x86.Regs{RDI: i % 7, RSI: i % 4, RDX: i})); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	keys := map[string]bool{}
	m.Walk(func(key []byte, vals [][]byte) bool {
		if keys[string(key)] || le64(key) > 6 || le64(vals[0]) != ^le64(vals[0][8:]) {
			t.Errorf("key % x: twice %v, value % x", key, keys[string(key)], vals[0])
		}
		keys[string(key)] = true
		return true
	})
	if c := load64(m.area.Bytes, hdrCount); int(c) != len(keys) {
		t.Errorf("header counts %d, there are %d", c, len(keys))
	}
}
