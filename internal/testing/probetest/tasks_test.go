package probetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// bootGS boots a fake whose kernel has memory for each vCPU at GS.
func bootGS(t *testing.T, o FakeOptions) *env {
	t.Helper()
	o.GS, o.Probe.OptimizeDelay = true, -1
	f, err := NewFake(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for i := range 8 {
		f.setTask(i, uint32(100+i), uint32(90+i), 0, fmt.Sprint("task ", i))
	}
	return &env{T: t, h: f, e: f.Engine()}
}

func (v *env) fake() *Fake { return v.h.(*Fake) }

// blocks is memory for a stage, 64 bytes for each of two vCPUs and for what is lost.
func (v *env) blocks() (*probe.Stage, func(cpu, word int) uint64) {
	v.Helper()
	at, host, err := v.fake().AllocShared(3*64, false)
	if err != nil {
		v.Fatal(err)
	}
	for i := range 2 {
		binary.LittleEndian.PutUint64(host[64*i+8:], uint64(i))
	}
	word := func(cpu, word int) uint64 { return binary.LittleEndian.Uint64(host[64*cpu+8*word:]) }
	return &probe.Stage{
		NoStrings: true, Stack: 8, Block: at, Stride: 64, Lost: at + 128,
		Counts: func(cpu int) (handled, filtered, missed uint64) {
			if cpu == 0 {
				missed = word(2, 0)
			}
			return word(cpu, 0), 0, missed
		},
	}, word
}

// TestStageByGS: a stage finds its vCPU by GS, and is never taken to another one: the
// number and what was counted by it stay together although an interrupt, which may
// come between any two instructions with interrupts on, moves the task each time.
func TestStageByGS(t *testing.T) {
	v := bootGS(t, FakeOptions{CPUs: 2, TickEvery: 1})
	ticks, r := 0, rand.New(rand.NewPCG(1, 2))
	for i, c := range v.fake().cpus {
		c.onTick = func(guest.GVA) {
			ticks++
			v.fake().put(v.fake().gs(i)+guest.GVA(gsProfile.CPUOff), []byte{byte(r.IntN(2))})
		}
	}
	stage, word := v.blocks()
	stage.Code = x86.Assemble(func(a *x86.Asm) {
		bad := a.NewLabel()
		a.Mov(4, x86.RAX, x86.AtGS(int(gsProfile.CPUOff)))
		a.Cmp(8, x86.RAX, x86.At(x86.RSI, 8))
		a.Jcc(x86.CondNE, bad)
		a.Inc(8, x86.At(x86.RSI, 0))
		a.Ret()
		a.Place(bad)
		a.Inc(8, x86.At(x86.RSI, 16))
		a.Ret()
	})
	p := &probe.Kprobe{Symbol: "hot", Pre: nop, Stage: stage}
	v.register(p)
	v.optimize()
	if i := v.info(p); !i.InGuest {
		t.Fatalf("%+v", i)
	}
	const calls = 200
	equal(v, "work", v.call("work_if", calls), 8*calls)
	if ticks < calls {
		t.Errorf("%d ticks", ticks)
	}
	s := v.stats(p)
	if s.Hits != calls || s.InGuest != calls || word(0, 2)+word(1, 2) != 0 || word(0, 0) == 0 || word(1, 0) == 0 {
		t.Errorf("%+v; on vCPUs %d, %d; taken to another %d, %d", s, word(0, 0), word(1, 0), word(0, 2), word(1, 2))
	}
	for _, c := range v.fake().cpus {
		c.onTick = nil
	}
	// A number that no vCPU has.
	v.fake().put(v.fake().gs(0)+guest.GVA(gsProfile.CPUOff), []byte{2})
	equal(v, "work", v.call("work", 1), 8)
	s = v.stats(p)
	if s.Hits != calls+1 || s.Missed != 1 {
		t.Errorf("on a vCPU that is none: %+v", s)
	}
	// A stage that may fault is for the host: its fault would be the guest's.
	v.unregister(p)
	p.Addr, p.Stage = 0, &probe.Stage{Code: stage.Code, NoStrings: true, Stack: 8, Block: stage.Block, Fixups: []probe.Fixup{{Fault: 0, Resume: 8}}}
	v.register(p)
	v.optimize()
	if i := v.info(p); !i.Optimized || i.InGuest {
		t.Errorf("with a fixup: %+v", i)
	}
	v.unregister(p)
}

// TestStageLoads: in a kernel that handles the faults of stages itself, a detour lets them load only where an exception does no harm, and
// the task's count says so meanwhile; everywhere else, the hit is handled on the host.
func TestStageLoads(t *testing.T) {
	for _, returns := range []bool{false, true} {
		t.Run(fmt.Sprintf("returns %v", returns), func(t *testing.T) { testStageLoads(t, returns) })
	}
}

func testStageLoads(t *testing.T, returns bool) {
	const countOff, stackOff, signalOff, signalBit = 0x60, 0x68, 0x71, 0x40
	v := bootGS(t, FakeOptions{Faults: &guest.FaultProfile{CountOff: countOff, StackOff: stackOff, SignalOff: signalOff, SignalMask: signalBit, SMAP: true}})
	f := v.fake()
	const task = taskBase
	stage, word := v.blocks()
	load := 0
	var resume x86.Label
	stage.Code = x86.Assemble(func(a *x86.Asm) {
		a.Inc(8, x86.At(x86.RSI, 0))
		a.Mov(8, x86.RAX, x86.Imm(uint64(task)))
		a.Mov(4, x86.RAX, x86.At(x86.RAX, countOff))
		a.Mov(8, x86.At(x86.RSI, 16), x86.RAX)
		a.Pushfq()
		a.Pop(x86.RAX)
		a.Mov(8, x86.At(x86.RSI, 24), x86.RAX)
		a.Mov(8, x86.RAX, x86.Imm(uint64(0x1000)))
		load = a.Len()
		a.Mov(8, x86.RAX, x86.At(x86.RAX, 0)) // not mapped
		a.Ret()
		resume = a.LabelHere()
		a.Inc(8, x86.At(x86.RSI, 32))
		a.Ret()
		stage.Fixups = []probe.Fixup{{Fault: load, Resume: a.Offset(resume)}}
	})
	stage.Reads = 1 << (x86.PtSP / 8)
	onHost := 0
	p := &probe.Kprobe{Symbol: "hot", Pre: func(*probe.Context) int { onHost++; return 0 }, Stage: stage}
	if returns {
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "hot"}, Return: func(*probe.Context) { onHost++ }, ReturnStage: stage}
		p = &r.Kprobe
		v.registerRet(r)
	} else {
		v.register(p)
	}
	var move guest.GVA // stack to use instead of the vCPU's own
	mover := &probe.Kprobe{Symbol: "work", Pre: func(c *probe.Context) int {
		if move != 0 {
			var top [64]byte
			if c.Read(guest.GVA(c.Regs.RSP), top[:]) != nil || c.Write(move, top[:]) != nil {
				t.Error("the stack cannot be moved")
			}
			c.Regs.RSP = uint64(move)
		}
		return 0
	}}
	v.register(mover)
	v.optimize()
	if i := v.info(p); !i.InGuest {
		t.Fatalf("%+v", i)
	}
	const exceptionStack = guest.GVA(0xfffffe0000002000)
	f.mem.add(&region{base: exceptionStack, data: make([]byte, guest.PageSize), write: true})
	put := func(off guest.GVA, b ...byte) { f.put(task+off, b) }
	bottom := func(at guest.GVA) { f.put(task+stackOff, binary.LittleEndian.AppendUint64(nil, uint64(at))) }
	put(countOff, 5, 0, 0, 0)
	for _, c := range []struct {
		what    string
		stack   guest.GVA
		bottom  guest.GVA
		signal  byte
		inGuest bool
	}{
		{"the task's stack", 0, stackBase, 0xff &^ signalBit, true},
		{"another stack", 0, stackBase + 4*stackStride, 0, true},
		{"little of the task's stack is left", 0, stackBase + stackSize - 4096 - 64, 0, false},
		{"a stack of the interrupt stack table", exceptionStack + 0xf00, stackBase, 0, false},
		{"a task that asks for signals", 0, stackBase, signalBit, false},
	} {
		bottom(c.bottom)
		put(signalOff, c.signal)
		move = c.stack
		host, runs, resumed := onHost, word(0, 0), word(0, 4)
		equal(v, "work", v.call("work", 3), 24)
		host, runs, resumed = onHost-host, word(0, 0)-runs, word(0, 4)-resumed
		if c.inGuest && (host != 0 || runs != 3 || resumed != 3) || !c.inGuest && (host != 3 || runs != 0) {
			t.Errorf("%s: %d hits on the host, %d in the guest, %d of them resumed", c.what, host, runs, resumed)
		}
		if c.inGuest && (word(0, 2) != 6 || word(0, 3)&x86.FlagAC == 0 || word(0, 3)&x86.FlagIF != 0) {
			t.Errorf("%s: a stage ran with a count of %d and flags %#x", c.what, word(0, 2), word(0, 3))
		}
		if n := binary.LittleEndian.Uint32(v.bytes(task+countOff, 4)); n != 5 {
			t.Errorf("%s: the task's count is %d afterwards", c.what, n)
		}
	}
	v.unregister(p)
	v.unregister(mover)
}

// TestFaultFrames: a snapshot waits for the handler of a stage's fault, and does not take the remnant of such a frame for one: the handler
// runs with interrupts off, and the task's count is raised.
func TestFaultFrames(t *testing.T) {
	const countOff = 0x60
	v := bootGS(t, FakeOptions{Faults: &guest.FaultProfile{CountOff: countOff, StackOff: 0x68}})
	f := v.fake()
	stage, _ := v.blocks()
	stage.Code = x86.Assemble(func(a *x86.Asm) {
		a.Mov(8, x86.RAX, x86.Imm(uint64(0x1000)))
		stage.Fixups = []probe.Fixup{{Fault: a.Len(), Resume: a.Len() + 3}}
		a.Mov(8, x86.RAX, x86.At(x86.RAX, 0))
		a.Ret()
	})
	p := &probe.Kprobe{Symbol: "hot", Pre: nop, Stage: stage}
	v.register(p)
	v.optimize()
	load := kernelExec
	for _, known := v.e.FixupAt(load); !known; _, known = v.e.FixupAt(load) {
		if load++; load == kernelExec+execSize {
			t.Fatal("no load in the engine's code")
		}
	}
	const rsp, at = stackBase + 0x1000, stackBase + 0x1100 - 40
	regs := &f.cpus[0].regs
	regs.RIP, regs.RSP = uint64(v.addr("work")), uint64(rsp)
	saved := func(flags uint64, count byte) error {
		regs.RFLAGS = flags
		f.put(taskBase+countOff, []byte{count, 0, 0, 0})
		var b []byte
		for _, w := range []uint64{uint64(load), guest.SelKernelCode, 0x42, uint64(at) + 40, guest.SelKernelData} {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		pa, _ := f.Translate(0, at)
		return v.e.RunUnpatched(false, func(c *probe.Clean) error { return c.Memory(pa, b, func(guest.GPA) []byte { return nil }) })
	}
	for _, c := range []struct {
		flags  uint64
		count  byte
		inside bool
	}{{2, 1, true}, {2, 0, false}, {2 | x86.FlagIF, 1, false}, {2 | x86.FlagIF, 0, false}} {
		var inside *probe.InsideError
		if err := saved(c.flags, c.count); errors.As(err, &inside) != c.inside || !c.inside && err != nil {
			t.Errorf("flags %#x and a count of %d: %v", c.flags, c.count, err)
		}
	}
	v.unregister(p)
}

// TestStageCodeByGS: what a detour has before the call of its stage.
func TestStageCodeByGS(t *testing.T) {
	v := bootGS(t, FakeOptions{CPUs: 2})
	stage, _ := v.blocks()
	stage.Code = []byte{0xc3}
	p := &probe.Kprobe{Symbol: "f_emulate", Pre: nop, Stage: stage}
	v.register(p)
	v.optimize()
	at := p.Addr
	jump := v.bytes(at, x86.JmpLen)
	for range 2 { // by way of a board, perhaps
		if jump[0] != x86.JmpOp {
			break
		}
		at += guest.GVA(x86.JmpLen) + guest.GVA(int64(int32(binary.LittleEndian.Uint32(jump[1:]))))
		jump = v.bytes(at, x86.JmpLen)
	}
	want := x86.Assemble(func(a *x86.Asm) {
		a.Lea(8, x86.RSP, x86.At(x86.RSP, x86.PtFlags+8-x86.PtRegsSize-16))
		a.Pushfq()
		a.Cli()
		a.Lea(8, x86.RSP, x86.At(x86.RSP, -x86.PtFlags))
		for _, r := range []x86.Reg64{x86.RAX, x86.RSI, x86.RDI} {
			a.Mov(8, x86.At(x86.RSP, x86.PtReg(r)), r)
		}
		a.Lea(8, x86.RAX, x86.At(x86.RSP, x86.PtRegsSize+16))
		a.Append([]byte("\x65\x8b\x04\x25\x10\x00\x00\x00")) // mov %gs:0x10,%eax
		a.Append([]byte("\x83\xf8\x02"))                     // cmp $2,%eax
	})
	if got := v.bytes(at, len(want)); string(got) != string(want) {
		t.Errorf("got  % x\nwant % x", got, want)
	}
	v.unregister(p)
}

// TestReturnStageByGS: calls are followed in the guest by the task that makes them,
// and given back when it is gone, by what its structure says.
func TestReturnStageByGS(t *testing.T) {
	for _, inGuest := range []bool{true, false} {
		v := bootGS(t, FakeOptions{})
		f := v.fake()
		var tasks []string
		see := func(c *probe.Context) {
			var t guest.Task
			ok := c.Task(&t)
			tasks = append(tasks, fmt.Sprint(ok, t.CPU, t.PID, t.TGID, string(t.Comm[:6])))
		}
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, MaxActive: 2, Return: see}
		if inGuest {
			r.ReturnStage = &probe.Stage{Code: []byte{0xc3}, NoStrings: true, Stack: 8}
		}
		v.registerRet(r)
		v.optimize()
		if i := v.info(&r.Kprobe); i.InGuest != inGuest {
			t.Fatalf("in the guest %v, want %v: %+v %s", i.InGuest, inGuest, i.Unoptimized, i.NoStage)
		}
		begin := func(i int) {
			t.Helper()
			f.Run(0, i)
			equal(v, "co_begin", v.call("co_begin", uint64(i), uint64(10*i)), 1)
		}
		inUse := func(what string, want int) {
			t.Helper()
			if err := v.e.Reclaim(); err != nil {
				t.Fatal(err)
			}
			equal(v, "in use "+what, v.info(&r.Kprobe).InUse, want)
		}
		before := v.e.Totals(-1)
		begin(0)
		begin(1)
		inUse("while both are parked", 2)
		f.setTask(0, 100, 90, taskDead, "task 0")
		inUse("without the first", 1)
		begin(2)
		inUse("with a third", 2)
		f.setTask(2, 77, 77, 0, "other") // its structure is another task's
		inUse("without the third", 1)
		f.Run(0, 1)
		equal(v, "co_resume", v.call("co_resume", 1), 110)
		inUse("at the end", 0)
		s := v.stats(&r.Kprobe)
		equal(v, "handled", s.Handled, 3)
		equal(v, "returns", s.Returns, 1)
		equal(v, "abandoned", s.Abandoned, 2)
		if inGuest {
			equal(v, "exits", v.e.Totals(-1), before)
		} else {
			equal(v, "tasks", fmt.Sprint(tasks), "[true 0 101 91task 1]")
		}
		v.unregisterRet(r)
	}
}

// TestTaskOfHit: the task of a hit is that of its vCPU, at CPL3 as well.
func TestTaskOfHit(t *testing.T) {
	v := bootGS(t, FakeOptions{CPUs: 2})
	var got []string
	p := &probe.Kprobe{Symbol: "hot", Pre: func(c *probe.Context) int {
		var x guest.Task
		ok := c.Task(&x)
		got = append(got, fmt.Sprint(ok, x.CPU, x.PID, x.TGID, string(x.Comm[:6])))
		return 0
	}}
	v.register(p)
	for i := range 2 {
		v.fake().Run(i, 3+i)
		if _, err := v.h.Call(i, v.addr("hot"), 1); err != nil {
			t.Fatal(err)
		}
	}
	equal(v, "tasks", fmt.Sprint(got), "[true 0 103 93task 3 true 1 104 94task 4]")
	v.unregister(p)
}
