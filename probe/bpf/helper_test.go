package bpf

import (
	"bytes"
	"errors"
	"math/bits"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// runHelper runs a Kprobe program with the given maps and returns the VM too.
func runHelper(t *testing.T, kind Kind, src string, env Env, maps ...*Map) (*VM, uint64, error) {
	t.Helper()
	p, err := New(Spec{Kind: kind, Insns: mustAssemble(t, src), Maps: maps})
	if err != nil {
		t.Fatal(err)
	}
	v := NewVM(p, min(1, p.cpus-1))
	ctx := make([]byte, RegsSize)
	PutRegs(ctx, &x86.Regs{RAX: 100, RDI: 1, RSI: 2, RDX: 3, RCX: 4, R8: 5, R9: 6}, 0x10, 0x18)
	r0, err := v.Run(ctx, env)
	return v, r0, err
}

const guestName = 0xffff_8000_0000_1000

// TestRefusedHelpers names the reason for which a helper is not supported, and the
// instructions in place of calls that are.
func TestRefusedHelpers(t *testing.T) {
	for h, why := range refusedHelpers {
		if helperByID[h] != nil || linkedHelpers[h] != nil {
			t.Errorf("%v is supported", h)
		}
		_, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, "mov r0, 0\ncall "+strconv.Itoa(int(h))+"\nexit")})
		if err == nil || !strings.Contains(err.Error(), "unknown helper "+h.String()+": "+why) {
			t.Errorf("%v: %v", h, err)
		}
	}
	k := testKernel(t)
	p := ObjectProgram{Section: "kprobe/x"}
	if _, err := p.linkHelper(callOf(helperJiffies), nil); err == nil || !strings.Contains(err.Error(), "the guest has none that is known") {
		t.Error(err)
	}
	if body, err := p.linkHelper(callOf(helperJiffies), k); err != nil || len(body) != 2 || !p.follows {
		t.Error(body, err)
	}
	if _, err := p.linkHelper(callOf(helperTaskPtRegs), k); err == nil || !strings.Contains(err.Error(), "how large its stacks are") {
		t.Error(err)
	}
	symbols := map[string]uint64{"__start_init_stack": 0x10000, "__end_init_stack": 0x14000}
	k.Symbol = func(name string) (uint64, bool) { v, ok := symbols[name]; return v, ok }
	for _, fred := range []bool{false, true} {
		if fred {
			symbols["asm_fred_entrypoint_user"] = 1
		}
		body, err := p.linkHelper(callOf(helperTaskPtRegs), k)
		if err != nil {
			t.Fatal(err)
		}
		const task, stack = 0xffff_8000_0000_0000, 0xffff_c000_0000_0000
		env := &fakeEnv{}
		env.put(task+56, string(u64(stack)))
		for at, want := range map[int64]uint64{task - 1<<64: stack + 0x4000 - RegsSize, 0x1000: 0} {
			if fred && want != 0 {
				want -= 16
			}
			insns := append(append(asm.Instructions{asm.LoadImm(asm.R1, at, asm.DWord)}, body...), asm.Return())
			q, err := New(Spec{Kind: Kprobe, Insns: insns, Follows: true})
			if err != nil {
				t.Fatal(err)
			}
			if r0, err := NewVM(q, 0).Run(regsContext(x86.Regs{}), env); r0 != want || err != nil {
				t.Errorf("of the task at %#x: %#x, %v, want %#x", at, r0, err, want)
			}
		}
	}
	if _, err := p.linkHelper(callOf(helperJiffies), k); err == nil || !strings.Contains(err.Error(), "no symbol jiffies") {
		t.Error(err)
	}
}

// callOf is the call of a helper.
func callOf(h Helper) *asm.Instruction {
	call := asm.BuiltinFunc(h).Call()
	return &call
}

// TestLinkedWarnings: the number of a socket, and records of branches, with the warnings
// of each.
func TestLinkedWarnings(t *testing.T) {
	k := testKernel(t)
	p := ObjectProgram{Section: "fentry/x"}
	if _, err := p.linkHelper(callOf(helperSockCookie), k); err == nil || !strings.Contains(err.Error(), "no __sk_common in struct sock") {
		t.Error(err)
	}
	if _, err := p.linkHelper(callOf(helperSockCookie), nil); err == nil || !strings.Contains(err.Error(), "the guest has none that is known") {
		t.Error(err)
	}
	long := &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed}
	common := &btf.Struct{Name: "sock_common", Size: 24, Members: []btf.Member{{Name: "skc_cookie", Type: &btf.Typedef{Name: "atomic64_t", Type: &btf.Struct{Size: 8, Members: []btf.Member{{Name: "counter", Type: long}}}}, Offset: 128}}}
	b, err := btf.NewBuilder([]btf.Type{&btf.Struct{Name: "sock", Size: 40, Members: []btf.Member{{Name: "__sk_common", Type: common, Offset: 64}}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := b.Spec()
	if err != nil {
		t.Fatal(err)
	}
	k.Types = []*btf.Spec{spec}
	user := ObjectProgram{Section: "uprobe/x"}
	if _, err := user.linkHelper(callOf(helperSockCookie), k); err == nil || !strings.Contains(err.Error(), "user code cannot read") {
		t.Error(err)
	}
	const sock = 0xffff_8000_0000_0000
	env := &fakeEnv{}
	env.put(sock+24, string(u64(4711)))
	env.put(24, string(u64(5))) // of no socket
	for _, tt := range []struct {
		h      Helper
		kernel *Kernel
		arg    Reg
		value  uint64
		want   int64
		warns  string
	}{
		{helperSockCookie, k, R1, sock, 4711, "get_socket_cookie is 0 for a socket that the guest's kernel has not numbered yet"},
		{helperSockCookie, k, R1, 0, 0, "get_socket_cookie is 0"},
		{helperBranches, nil, R3, 0, -errNoEnt, "get_branch_snapshot always returns -ENOENT"},
		{helperBranches, nil, R3, 1, -errInval, "get_branch_snapshot always returns -ENOENT"},
	} {
		call := callOf(tt.h)
		p := ObjectProgram{Section: "fentry/x"}
		body, err := p.linkHelper(call, tt.kernel)
		if err != nil || p.follows != (tt.h == helperSockCookie) {
			t.Fatal(err, p.follows)
		}
		in, err := expand(asm.Instructions{asm.LoadImm(asm.Register(tt.arg), int64(tt.value), asm.DWord), *call, *call, asm.Return()}, map[int]asm.Instructions{1: body, 2: body})
		if err != nil {
			t.Fatal(err)
		}
		q, err := New(Spec{Kind: Kprobe, Insns: in, Follows: p.follows})
		if err != nil {
			t.Fatal(err)
		}
		if r0, err := NewVM(q, 0).Run(regsContext(x86.Regs{}), env); int64(r0) != tt.want || err != nil {
			t.Errorf("%v of %#x: %d, %v, want %d", tt.h, tt.value, int64(r0), err, tt.want)
		}
		lp := LoadedProgram{Program: q, Section: "kprobe/x", AttachTo: "x"}
		if w, err := lp.Judge(Allowed{}); err != nil || len(w) != 1 || w[0].Index != 2 || !strings.Contains(w[0].What, tt.warns) {
			t.Errorf("%v: %v, %v", tt.h, w, err)
		}
		var strict *StrictError
		if _, err := lp.Judge(Allowed{Strict: true}); !errors.As(err, &strict) {
			t.Error(err)
		}
		if why := q.HostReason(); why != "" && tt.h == helperBranches {
			t.Errorf("%v: %s", tt.h, why)
		}
	}
}

// TestWriteUser writes memory of the current process, with Linux's results.
func TestWriteUser(t *testing.T) {
	p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, "ldxdw r1, [r1+112]\nstdw [r10-8], 77\nmov r2, r10\nadd r2, -8\nmov r3, 4\ncall 36\nexit")})
	if err != nil {
		t.Fatal(err)
	}
	env := &userEnv{}
	v := NewVM(p, 0)
	for _, tt := range []struct {
		addr uint64
		want int64
	}{{0x1000, 0}, {0x2000, -errFault}, {0x3000, -errPerm}} {
		if r0, err := v.Run(regsContext(x86.Regs{RDI: tt.addr}), env); int64(r0) != tt.want || err != nil {
			t.Errorf("at %#x: %d, %v, want %d", tt.addr, int64(r0), err, tt.want)
		}
	}
	if string(env.wrote) != "M\x00\x00\x00" {
		t.Errorf("wrote %q", env.wrote)
	}
	lp := LoadedProgram{Program: p, Section: "kprobe/x", AttachTo: "x"}
	var unsafe *UnsafeError
	if _, err := lp.Judge(Allowed{}); !errors.As(err, &unsafe) || unsafe.Helper != HelperWriteUser {
		t.Error(err)
	}
}

// userEnv has one page of user memory, and a probed instruction at another.
type userEnv struct {
	NoEnv
	wrote []byte
}

func (e *userEnv) PokeUser(addr uint64, p []byte) error {
	switch addr {
	case 0x1000:
		e.wrote = bytes.Clone(p)
		return nil
	case 0x3000:
		return ErrProbed
	}
	return errNoGuest
}

func TestReadHelpers(t *testing.T) {
	env := &fakeEnv{}
	env.put(guestName, "hello\x00")
	env.put(guestName+0xffd, "end") // the page ends with no zero byte
	for _, tt := range []struct {
		name   string
		helper string
		addr   uint64
		size   int64
		want   int64
		dst    string // of the first 8 bytes of the buffer, which were all x
	}{
		{"kernel", "113", guestName, 5, 0, "helloxxx"},
		{"user", "112", guestName, 5, 0, "helloxxx"},
		{"old", "4", guestName, 5, 0, "helloxxx"},
		{"nothing", "113", 0, 0, 0, "xxxxxxxx"},
		{"fault", "113", 0x5000, 5, -errFault, "\x00\x00\x00\x00\x00xxx"},
		{"string", "115", guestName, 8, 6, "hello\x00xx"},
		{"string exactly", "114", guestName, 6, 6, "hello\x00xx"},
		{"string cut", "115", guestName, 3, 3, "he\x00xxxxx"},
		{"string of nothing", "115", guestName, 0, 0, "xxxxxxxx"},
		{"string fault", "45", 0x5000, 4, -errFault, "\x00\x00\x00\x00xxxx"},
		{"string up to a page's end", "115", guestName + 0xffd, 3, 3, "en\x00xxxxx"},
		{"own memory", "113", segPointer(segStack, 0, StackSize-8), 4, 0, "xxxxxxxx"},
		{"own memory out of bounds", "113", segPointer(segStack, 0, StackSize-4), 8, -errFault, strings.Repeat("\x00", 8)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := `
				lddw r6, 0x7878787878787878
				stxdw [r10-8], r6
				mov r1, r10
				add r1, -8
				mov r2, SIZE
				lddw r3, ADDR
				call HELPER
				exit`
			src = strings.NewReplacer("SIZE", itoa(tt.size), "ADDR", itoa(int64(tt.addr)), "HELPER", tt.helper).Replace(src)
			v, r0, err := runHelper(t, Kprobe, src, env)
			if err != nil || int64(r0) != tt.want {
				t.Fatalf("r0 %d, %v, want %d", int64(r0), err, tt.want)
			}
			if got := string(v.stack[StackSize-8:]); got != tt.dst {
				t.Errorf("buffer %q, want %q", got, tt.dst)
			}
		})
	}
}

func itoa(v int64) string { return strconv.FormatInt(v, 10) }

// TestFaults has one program for each way to go wrong, and wants code, place
// and address, of the interpreter and of compiled code, whatever that takes for proven.
func TestFaults(t *testing.T) {
	n := newNative(t)
	maps := []MapSpec{arraySpec, ringSpec, {Name: "c", Kind: Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, ReadOnly: true}}
	lookup := "stw [r10-4], 1\nmov r2, r10\nadd r2, -4\nldmap r1, 0\ncall 1\n"
	elem := segPointer(segMaps, 1, 0)
	for _, tt := range []struct {
		name string
		src  string
		want Fault
	}{
		{"null", "ldxb r0, [r0+0]\nexit", Fault{FaultLoad, 0, 0}},
		{"guest address", "lddw r1, 0xffff800000001000\nldxb r0, [r1+0]\nexit", Fault{FaultLoad, 2, guestName}},
		{"map handle", "ldmap r1, 0\nldxb r0, [r1+0]\nexit", Fault{FaultLoad, 2, mapHandle(0)}},
		{"context behind", "ldxdw r0, [r1+161]\nexit", Fault{FaultLoad, 0, segPointer(segContext, 0, 161)}},
		{"context before", "ldxdw r0, [r1-1]\nexit", Fault{FaultLoad, 0, segPointer(segContext, 0, 0) - 1}},
		{"context written", "stw [r1+0], 1\nexit", Fault{FaultStore, 0, segPointer(segContext, 0, 0)}},
		{"stack behind", "mov r1, r10\nstb [r1+0], 1\nexit", Fault{FaultStore, 1, segPointer(segStack, 0, StackSize)}},
		{"stack before", "mov r1, r10\nadd r1, -4097\nldxb r0, [r1+0]\nexit", Fault{FaultLoad, 2, segPointer(segStack, 0, 0) - 1}},
		{"value's end", lookup + "ldxdw r0, [r0+9]\nexit", Fault{FaultLoad, 6, elem + 9}},
		{"next value", lookup + "ldxb r0, [r0+16]\nexit", Fault{FaultLoad, 6, elem + 16}},
		{"value before", lookup + "stb [r0-1], 0\nexit", Fault{FaultStore, 6, elem - 1}},
		{"constants written", "ldval r1, 2, 0\nstb [r1+0], 0\nexit", Fault{FaultStore, 2, segPointer(segMaps+2, 0, 0)}},
		{"constants changed", "ldval r1, 2, 0\nlock add [r1+0], r2\nexit", Fault{FaultStore, 2, segPointer(segMaps+2, 0, 0)}},
		{"atomic not aligned", "mov r1, r10\nlock add [r1-12], r2\nexit", Fault{FaultAlign, 1, segPointer(segStack, 0, StackSize-12)}},
		{"loop", "a:\nja a\nexit", Fault{FaultBudget, 0, 0}},
		{"loop 32", "a:\nja32 a\nexit", Fault{FaultBudget, 0, 0}},
		{"loop of a condition", "mov r1, 0\na:\njeq r1, 0, a\nexit", Fault{FaultBudget, 1, 0}},
		{"key", "mov r2, 0\nldmap r1, 0\ncall 1\nexit", Fault{FaultMemArg, 3, 0}},
		{"key half out", "mov r2, r10\nadd r2, -3\nldmap r1, 0\ncall 1\nexit", Fault{FaultMemArg, 4, segPointer(segStack, 0, StackSize-3)}},
		{"key of no element", "lddw r2, 0x7000002000000\nldmap r1, 0\ncall 1\nexit", Fault{FaultMemArg, 4, segPointer(segMaps, 2, 0)}},
		{"data in the next value", "lddw r2, 0x7000000000009\nldmap r1, 1\nmov r3, 8\nmov r4, 0\ncall 130\nexit", Fault{FaultMemArg, 6, segPointer(segMaps, 0, 9)}},
		{"key of no segment", "lddw r2, 0xa000000000000\nldmap r1, 0\ncall 1\nexit", Fault{FaultMemArg, 4, segPointer(segMaps+3, 0, 0)}},
		{"destination half out", "mov r1, r10\nadd r1, -7\nmov r2, 8\nmov r3, 0\ncall 113\nexit", Fault{FaultMemArg, 4, segPointer(segStack, 0, StackSize-7)}},
		{"destination read only", "ldval r1, 2, 0\nmov r2, 8\nmov r3, 0\ncall 113\nexit", Fault{FaultMemArg, 4, segPointer(segMaps+2, 0, 0)}},
		{"no map", "mov r1, 7\nmov r2, r10\nadd r2, -4\ncall 1\nexit", Fault{FaultMapArg, 3, 7}},
		{"map of no number", "lddw r1, 0x4000000000000003\ncall 1\nexit", Fault{FaultMapArg, 2, mapHandle(3)}},
		{"wrong kind of map", "ldmap r1, 1\ncall 1\nexit", Fault{FaultMapArg, 2, mapHandle(1)}},
		{"destination", "mov r2, 8\ncall 113\nexit", Fault{FaultMemArg, 1, segPointer(segContext, 0, 0)}},
		{"size", "lddw r2, 0x10001\ncall 113\nexit", Fault{FaultSize, 2, 0x10001}},
		{"size negative", "mov r2, -1\ncall 113\nexit", Fault{FaultSize, 1, ^uint64(0)}},
		{"submit of nothing", "mov r1, 0\ncall 132\nexit", Fault{FaultRecordArg, 1, 0}},
		{"submit inside", reserve8 + "mov r1, r0\nadd r1, 1\nmov r2, 0\ncall 132\nexit", Fault{FaultRecordArg, 8, segPointer(segRecords, 0, 1)}},
		{"submit twice", reserve8 + "mov r6, r0\nmov r1, r0\ncall 132\nmov r1, r6\ncall 132\nexit", Fault{FaultRecordArg, 9, segPointer(segRecords, 0, 0)}},
		{"record's end", reserve8 + "ldxdw r1, [r0+1]\nexit", Fault{FaultLoad, 5, segPointer(segRecords, 0, 1)}},
		{"record after submit", reserve8 + "mov r6, r0\nmov r1, r0\ncall 132\nstdw [r6+0], 1\nexit", Fault{FaultStore, 8, segPointer(segRecords, 0, 0)}},
		{"records", "mov r6, 9\na:\n" + reserve8 + "sub r6, 1\njne r6, 0, a\nexit", Fault{FaultRecords, 5, mapHandle(1)}},
		{"output size", "mov r2, r10\nadd r2, -8\nmov r3, -1\nmov r4, 0\nldmap r1, 1\ncall 130\nexit", Fault{FaultMemArg, 6, segPointer(segStack, 0, StackSize-8)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ring := testMaps(t, Heap{}, maps...)
			v, r0, err := runHelper(t, Kprobe, tt.src, NoEnv{}, ring...)
			var f *Fault
			if !errors.As(err, &f) || *f != tt.want {
				t.Fatalf("r0 %#x, %v, want %v", r0, err, &tt.want)
			}
			if s := v.Stats(); s.Runs != 1 || s.Failures() != 1 || s.Faults[tt.want.Code] != 1 || s.Last != tt.want {
				t.Errorf("stats %+v", s)
			}
			// Nothing that was reserved holds the ring up.
			if ringPut(ring[1], u64(9), 0); ring[1].Drain(func(r Record) bool { return le64(r.Data) != 9 }) == 0 {
				t.Errorf("the ring is stuck: %+v", ring[1].RingStats())
			}
			for _, full := range []bool{false, true} {
				n.Reset()
				p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, tt.src), Maps: testMaps(t, n, maps...)})
				if err != nil {
					t.Fatal(err)
				}
				code, err := n.load(p, Layout{Full: full, Fixups: true}, BlockConfig{}, RegsSize)
				if host := (*HostOnlyError)(nil); errors.As(err, &host) && tt.want.Code == FaultMapArg {
					continue // which map is meant must be known
				} else if err != nil {
					t.Fatal(err)
				}
				if r0, err := code.run(make([]byte, RegsSize)); !errors.As(err, &f) || *f != tt.want {
					t.Errorf("compiled, full %v: r0 %#x, %v, want %v", full, r0, err, &tt.want)
				}
			}
		})
	}
}

// reserve8 leaves a record of 8 bytes in R0. It takes 5 slots.
const reserve8 = "ldmap r1, 1\nmov r2, 8\nmov r3, 0\ncall 131\n"

func TestContextHelpers(t *testing.T) {
	arg := func(n string) string {
		return "mov r2, " + n + "\nmov r3, r10\nadd r3, -8\nstdw [r10-8], 77\ncall 183\nmov r6, r0\nldxdw r0, [r10-8]\nmul r6, 1000\nadd r0, r6\nexit"
	}
	ret := "mov r2, r10\nadd r2, -8\nstdw [r10-8], 77\ncall 184\nmov r6, r0\nldxdw r0, [r10-8]\nmul r6, 1000\nadd r0, r6\nexit"
	for _, tt := range []struct {
		name string
		kind Kind
		src  string
		want int64
	}{
		{"arg 0", Kprobe, arg("0"), 1}, {"arg 2", Kprobe, arg("2"), 3}, {"arg 5", Kretprobe, arg("5"), 6},
		{"arg 6", Kprobe, arg("6"), 77 - 1000*errInval}, {"arg -1", Kprobe, arg("-1"), 77 - 1000*errInval},
		{"ret", Kretprobe, ret, 100}, {"ret at entry", Kprobe, ret, 77 - 1000*errNotSup},
		{"count", Kprobe, "call 185\nexit", 6}, {"ip", Kprobe, "call 173\nexit", 0x1234},
		{"ax", Kprobe, "ldxdw r0, [r1+80]\nexit", 100}, {"orig_ax", Kprobe, "ldxdw r0, [r1+120]\nexit", -1},
		{"cs", Kprobe, "ldxdw r0, [r1+136]\nexit", 0x10}, {"ss", Kprobe, "ldxdw r0, [r1+160]\nexit", 0x18},
		{"arguments are cleared", Kprobe, "call 8\nmov r0, r1\nor r0, r2\nor r0, r3\nor r0, r4\nor r0, r5\nexit", 0},
		{"override", Kprobe, "mov r2, 5\ncall 58\nexit", -errInval},
		{"stack", Kprobe, "mov r2, r10\nadd r2, -16\nmov r3, 16\nmov r4, 0\ncall 67\nexit", -errFault},
		{"stack of 12 bytes", Kprobe, "mov r2, r10\nadd r2, -16\nmov r3, 12\nmov r4, 0\ncall 67\nexit", -errInval},
	} {
		if _, r0, err := runHelper(t, tt.kind, tt.src, &fakeEnv{}); err != nil || int64(r0) != tt.want {
			t.Errorf("%s: %d, %v, want %d", tt.name, int64(r0), err, tt.want)
		}
	}
}

func TestTracePrintk(t *testing.T) {
	env := &fakeEnv{}
	env.put(guestName, "text\x00")
	v := &VM{env: env, prog: &Program{}}
	for _, tt := range []struct {
		format string
		args   [3]uint64
		want   string
		ok     bool
	}{
		{"plain", [3]uint64{}, "plain", true},
		{"%d %u %x", [3]uint64{1<<64 - 1, 1<<64 - 1, 255}, "-1 4294967295 ff", true},
		{"%lld %llu %lx", [3]uint64{1<<64 - 2, 1<<64 - 1, 1 << 40}, "-2 18446744073709551615 10000000000", true},
		{"%5d|%-5d|%05d", [3]uint64{42, 42, 1<<64 - 42}, "   42|42   |-0042", true},
		{"%#x %X %c", [3]uint64{255, 255, 'A'}, "0xff FF A", true},
		{"%p %s %%", [3]uint64{guestName, guestName}, "0xffff800000001000 text %", true},
		{"%s", [3]uint64{7}, "(fault)", true},
		{"%d %d %d %d", [3]uint64{}, "", false},
		{"%f", [3]uint64{}, "", false},
		{"%", [3]uint64{}, "", false},
		{"%999d", [3]uint64{1}, strings.Repeat(" ", maxString-1) + "1", true},
	} {
		got, ok := v.format(v.line[:0], []byte(tt.format), tt.args[:])
		if ok != tt.ok || ok && string(got) != tt.want {
			t.Errorf("%q: %q, %v, want %q, %v", tt.format, got, ok, tt.want, tt.ok)
		}
	}
}

// TestRunAllocatesNothing holds every kind of work to zero allocations, faults
// included.
func TestRunAllocatesNothing(t *testing.T) {
	maps := testMaps(t, Heap{}, perCPUSpec, ringSpec, hashSpec, MapSpec{Name: "f", Kind: Array, KeySize: 4, ValueSize: 32, MaxEntries: 1, Contents: []byte("n=%d s=%s p=%p\n")})
	env := &traceless{fakeEnv{}}
	for name, src := range map[string]string{
		"count":  countProgram,
		"loop":   benchLoop,
		"ring":   reserve8 + "jeq r0, 0, exit\nmov r1, r0\nmov r2, 0\ncall 132\nexit",
		"hash":   strings.ReplaceAll(hashCountProgram, "ldmap r1, 0", "ldmap r1, 2"),
		"fault":  "ldxb r0, [r0+0]\nexit",
		"printk": "ldval r1, 3, 0\nmov r2, 32\nmov r3, 5\nmov r4, 6\nmov r5, 7\ncall 6\nexit",
		"read":   "mov r1, r10\nadd r1, -64\nmov r2, 64\nmov r3, r10\nadd r3, -64\ncall 115\nexit",
		"task":   "mov r1, r10\nadd r1, -16\nmov r2, 16\ncall 16\ncall 14\nexit",
	} {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, src), Maps: maps})
		if err != nil {
			t.Fatal(err)
		}
		v, ctx := NewVM(p, 1), benchContext()
		if n := testing.AllocsPerRun(100, func() { _, _ = v.Run(ctx, env) }); n != 0 {
			t.Errorf("%s: %v allocations per run", name, n)
		}
		if name == "ring" {
			if n := testing.AllocsPerRun(10, func() { maps[1].Drain(func(Record) bool { return true }) }); n != 0 {
				t.Errorf("drain: %v allocations", n)
			}
		}
	}
}

// traceless drops trace lines, so as not to allocate itself.
type traceless struct{ fakeEnv }

func (*traceless) Trace([]byte) {}

func TestHist(t *testing.T) {
	for _, tt := range []struct {
		v    uint64
		want int
	}{{0, 0}, {1, 0}, {2, 1}, {3, 1}, {4, 2}, {1<<32 - 1, 31}, {1 << 32, 32}, {1 << 63, 63}, {1<<64 - 1, 63}} {
		got := histBucket(tt.v)
		if lo, hi := HistBounds(got); got != tt.want || tt.v < lo || tt.v > hi {
			t.Errorf("bucket of %d is %d [%d, %d], want %d", tt.v, got, lo, hi, tt.want)
		}
	}
	if _, err := testMaps(t, Heap{}, hashSpec)[0].Hist(); !errors.Is(err, ErrMapKind) {
		t.Errorf("histogram of a hash: %v", err)
	}
}

func TestHelperTable(t *testing.T) {
	last := Helper(0)
	for _, h := range Helpers() {
		if h.ID <= last || h.Name == "" || h.Place == OnHost && h.Why == "" {
			t.Errorf("%+v", h)
		}
		last = h.ID
		if h.ID.String() != h.Name {
			t.Errorf("%v is called %v", h.Name, h.ID)
		}
	}
	if !bytes.Contains([]byte(Helper(9999).String()), []byte("9999")) {
		t.Error("an unknown helper has no number")
	}
}

// histBucket returns the bucket of v in a log2 histogram: 0 for 0 and 1, and
// else the position of the highest bit that is set, so that bucket i counts the
// values of [2^i, 2^(i+1)).
func histBucket(v uint64) int {
	if v == 0 {
		return 0
	}
	return bits.Len64(v) - 1
}

// spaceEnv has a task in a PID namespace.
type spaceEnv struct {
	NoEnv
	in PIDNamespace
}

func (e *spaceEnv) PIDNamespace() (PIDNamespace, bool) { return e.in, e.in.PID != 0 }

// TestNSPID gives a task's numbers in its own PID namespace, and in no other one.
func TestNSPID(t *testing.T) {
	in := PIDNamespace{PID: 7, TGID: 6, Device: 4, Inode: 0xf0001234}
	for _, tt := range []struct {
		env           *spaceEnv
		device, inode uint64
		size          int
		want, r0      int64
	}{
		{env: &spaceEnv{in: in}, device: 4, inode: 0xf0001234, size: 8, want: 6<<32 | 7},
		{env: &spaceEnv{in: in}, device: 5, inode: 0xf0001234, size: 8, r0: -errInval},
		{env: &spaceEnv{in: in}, device: 4, inode: 0xf0001235, size: 8, r0: -errInval},
		{env: &spaceEnv{in: PIDNamespace{PID: 1, Device: 1 << 32}}, device: 1 << 32, size: 8, r0: -errInval},
		{env: &spaceEnv{}, size: 8, r0: -errInval},
		{env: &spaceEnv{in: in}, device: 4, inode: 0xf0001234, size: 4, want: -1 << 32, r0: -errInval},
	} {
		src := "stdw [r10-8], -1\nlddw r1, " + strconv.FormatUint(tt.device, 10) + "\nlddw r2, " + strconv.FormatUint(tt.inode, 10) +
			"\nmov r3, r10\nadd r3, -8\nmov r4, " + strconv.Itoa(tt.size) + "\ncall 120\nldxdw r6, [r10-8]\nexit"
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, src)})
		if err != nil {
			t.Fatal(err)
		}
		v := NewVM(p, 0)
		r0, err := v.Run(regsContext(x86.Regs{}), tt.env)
		if got := int64(le64(v.Stack()[StackSize-8:])); int64(r0) != tt.r0 || got != tt.want || err != nil {
			t.Errorf("%+v: %d, %#x, %v", tt, int64(r0), got, err)
		}
		if w := p.Warnings(); len(w) != 0 {
			t.Error(w)
		}
	}
}
