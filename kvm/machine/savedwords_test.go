package machine

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// What stacks the built-in guest has, and from where on they are in use (guest/builtin/src/include/task.h, kernel/sched.c).
const (
	stackBytes   = 8192
	istStacks    = 4
	tasksPerCPU  = 12
	taskBytes    = 144
	taskCR3      = 128
	taskState    = 40
	taskUser     = 48 // flags
	percpuBytes  = (1 + istStacks + tasksPerCPU + 1) * stackBytes
	queueIdle    = 24 // of a run queue
	queueBytes   = queueIdle + taskBytes + 8
	tssBytes     = 104
	tssRSP0      = 4
	userRedZone  = 128
	stateRuns    = 1 // states from here on to stateBlocked go on some day
	stateBlocked = 3
)

// usedStack is a stack of the guest's, in physical memory: what is below live is dead.
type usedStack struct{ start, live, end guest.GPA }

// usedStacks are all stacks of a built-in guest.
type usedStacks struct {
	t      *testing.T
	m      *Machine // has come back to the snapshot
	stacks []usedStack
}

func (u *usedStacks) word(at guest.GVA) uint64 {
	u.t.Helper()
	w, err := readWord(u.m.space(0), at)
	if err != nil {
		u.t.Fatal(err)
	}
	return w
}

func (u *usedStacks) symbol(name string) guest.GVA {
	u.t.Helper()
	s, err := u.m.Image().Lookup(name)
	if err != nil {
		u.t.Fatal(err)
	}
	return s.Addr
}

// use notes that a context has its stack pointer at sp, in the page tables at root, and keeps things as far below it as below.
func (u *usedStacks) use(root guest.GPA, sp, below uint64) {
	pa, ok := u.m.Translate(root, guest.GVA(sp-1)) // one that is empty ends where another begins
	if !ok {
		return // user code may have any
	}
	for i := range u.stacks {
		if s := &u.stacks[i]; pa >= s.start && pa < s.end {
			s.live = min(s.live, max(s.start, pa+1-guest.GPA(below)))
		}
	}
}

// context notes the stack of a context, and of those that it has interrupted on a stack of their own.
func (u *usedStacks) context(cpu int, root guest.GPA, cpl, sp uint64) {
	if cpl == 3 {
		u.use(root, sp, userRedZone)
		return
	}
	u.use(0, sp, 0)
	for k := range guest.GVA(istStacks) {
		if top := u.word(u.symbol("tss") + guest.GVA(cpu)*tssBytes + tssIST + 8*k); sp < top && top-sp < stackBytes {
			u.context(cpu, root, u.word(guest.GVA(top-8*frameWords+8))&3, u.word(guest.GVA(top-8*frameWords+24)))
		}
	}
}

// stacksOf returns the stacks of the guest of a snapshot, that m has come back to.
func stacksOf(t *testing.T, m *Machine, s *snapshot.Snapshot) []usedStack {
	t.Helper()
	u := &usedStacks{t: t, m: m}
	add := func(at guest.GVA) {
		pa, ok := m.Translate(0, at)
		if !ok {
			t.Fatalf("the stack at %v is not mapped", at)
		}
		u.stacks = append(u.stacks, usedStack{pa, pa + stackBytes, pa + stackBytes})
	}
	base := guest.GVA(u.word(u.symbol("percpu")))
	for cpu := range guest.GVA(len(s.CPUs)) {
		for i := range guest.GVA(1 + istStacks + tasksPerCPU) {
			add(base + cpu*percpuBytes + i*stackBytes)
		}
	}
	user, err := m.Image().Lookup("user_stacks")
	if err != nil {
		t.Fatal(err)
	}
	for at := user.Addr; at < user.Addr+guest.GVA(user.Size); at += stackBytes {
		add(at)
	}
	for cpu, c := range s.CPUs {
		root, cpl := guest.GPA(c.Sregs.CR3), uint64(c.Sregs.CS.Selector&3)
		u.context(cpu, root, cpl, c.Regs.RSP)
		current := u.word(u.symbol("tss") + guest.GVA(cpu)*tssBytes + tssRSP0)
		tasks := []guest.GVA{u.symbol("runqueues") + guest.GVA(cpu)*queueBytes + queueIdle}
		for i := range guest.GVA(tasksPerCPU) {
			tasks = append(tasks, base+guest.GVA(cpu)*percpuBytes+(1+istStacks+tasksPerCPU)*stackBytes+i*taskBytes)
		}
		for i, at := range tasks {
			sp, top, state := u.word(at), u.word(at+8), uint32(u.word(at+taskState))
			if top == 0 || i > 0 && (state < stateRuns || state > stateBlocked) && top != current {
				continue
			}
			if top%16 != 0 || top/stackBytes != (top+15)/stackBytes {
				t.Fatalf("task %d of vCPU %d has a stack that ends at %#x", i, cpu, top)
			}
			if top != current {
				u.use(0, sp, 0)
			} else if cpl == 3 {
				continue
			}
			// What it does at CPL3, if it came from there.
			if cs := u.word(guest.GVA(top - 8*frameWords + 8)); u.word(at+taskUser)&1 != 0 && cs == guest.SelUserCode {
				u.use(guest.GPA(u.word(at+taskCR3)), u.word(guest.GVA(top-8*frameWords+24)), userRedZone)
			}
		}
	}
	return u.stacks
}

// engineWords returns addresses of the engine's code, of m, in a snapshot that other has come back to: in its registers, and in its memory, where
// a context of the guest may use them. How many are below all of these, in dead memory, is counted.
func engineWords(t *testing.T, m, other *Machine, s *snapshot.Snapshot) (live []string, dead int) {
	t.Helper()
	inside := func(v uint64) bool { // 32 bits may be any number
		return v>>32 != 0 && m.engine.Home(guest.GVA(v)) != guest.GVA(v)
	}
	var stacks []usedStack
	for _, r := range s.Memory {
	words:
		for off := 0; off+8 <= len(r.Bytes); off += 8 {
			v := littleEndian(r.Bytes[off:][:8])
			if !inside(v) {
				continue
			}
			if stacks == nil {
				stacks = stacksOf(t, other, s)
			}
			at := r.At + guest.GPA(off)
			for _, x := range stacks {
				if at >= x.start && at < x.live {
					dead++
					continue words
				}
			}
			live = append(live, fmt.Sprintf("%#x at %v", v, at))
		}
	}
	for i, c := range s.CPUs {
		regs := probe.Regs(c.Regs)
		for k := x86.RAX; k <= x86.R15; k++ {
			if inside(*regs.Reg(k)) {
				live = append(live, fmt.Sprintf("%#x in register %d of vCPU %d", *regs.Reg(k), k, i))
			}
		}
		if inside(regs.RIP) {
			live = append(live, fmt.Sprintf("vCPU %d is at %#x", i, regs.RIP))
		}
	}
	return live, dead
}

// TestSavedTrap: a vCPU that is saved after the copy of an instruction in a slot, and before the step of that has ended, gets the trap of its
// TF where it goes on.
func TestSavedTrap(t *testing.T) {
	code, fn := countingGuest(1)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})
	p := &probe.Kprobe{Symbol: fn.name, Pre: func(*probe.Context) int { return 0 }, Post: func(*probe.Context) {}}
	if err := m.Engine().Register(p); err != nil {
		t.Fatal(err)
	}
	slot, ok := m.Engine().SlotOf(p)
	if !ok {
		t.Fatal("the instruction has no slot")
	}
	v := m.vcpus[0]
	for _, c := range []struct {
		what   string
		flags  uint64
		done   bool // the copy has been executed
		trap   bool
		offset uint64
	}{
		{"before the copy", x86.Flag1 | x86.FlagTF, false, false, 0},
		{"after it", x86.Flag1 | x86.FlagTF, true, true, 4},
		{"after it, without TF", x86.Flag1, true, false, 4},
	} {
		v.regs.RIP, v.regs.RFLAGS = fn.addr, c.flags
		if d := m.Engine().Hit(0, v.state(), probe.Trap{Kind: probe.TrapBreakpoint}); d.Action != probe.Resume || guest.GVA(v.regs.RIP) != slot || v.regs.RFLAGS != x86.Flag1 {
			t.Fatalf("%s: verdict %+v, RIP %#x, RFLAGS %#x", c.what, d, v.regs.RIP, v.regs.RFLAGS)
		}
		if c.done {
			v.regs.RIP += 4
		}
		cpu := reread(t, save(t, m)).CPUs[0]
		if got := cpu.Events.E.Inject == 1 && cpu.Events.E.Nr == x86.VectorDB && cpu.Debug.DR6>>14&1 == 1; got != c.trap ||
			cpu.Regs.RIP != fn.addr+c.offset || cpu.Regs.RFLAGS != c.flags {
			t.Errorf("%s: trap %v, want %v; RIP %#x, RFLAGS %#x", c.what, got, c.trap, cpu.Regs.RIP, cpu.Regs.RFLAGS)
		}
		v.regs.RIP = uint64(slot) + 4
		if d := m.Engine().Hit(0, v.state(), probe.Trap{Kind: probe.TrapBreakpoint}); (d.Action == probe.Inject) != (c.flags&x86.FlagTF != 0) {
			t.Fatalf("%s: the end of the step: verdict %+v", c.what, d)
		}
	}
}

// TestSavedReturnTrap: in the code of a return in the guest the traps of TF are swallowed, that of the return itself, too, which comes where the
// call goes on: so it does from a snapshot.
func TestSavedReturnTrap(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 1, Tick: -1, EmulatedStages: true, Probe: probe.Options{OptimizeDelay: -1}})
	s := newStagedReturns(t, m, "vfs_read", false, 4)
	if err := m.Engine().Register(&s.Kretprobe); err != nil {
		t.Fatal(err)
	}
	if i, _ := m.Engine().Info(&s.Kprobe); i.NoStage != "" {
		t.Fatal(i.NoStage)
	}
	back, err := m.Image().Lookup("do_fork")
	if err != nil {
		t.Fatal(err)
	}
	v := m.vcpus[0]
	place := v.regs.RSP - 256
	if err := m.WriteMemory(0, guest.GVA(place), binary.LittleEndian.AppendUint64(nil, uint64(back.Addr))); err != nil {
		t.Fatal(err)
	}
	v.regs.RIP, v.regs.RSP, v.regs.RFLAGS = uint64(s.Addr), place, x86.Flag1
	if d := m.Engine().Hit(0, v.state(), probe.Trap{Kind: probe.TrapBreakpoint}); d.Action != probe.Resume {
		t.Fatalf("at the entry: %+v", d)
	}
	var b [8]byte
	if err := m.Peek(guest.GVA(place), b[:]); err != nil {
		t.Fatal(err)
	}
	tramp := binary.LittleEndian.Uint64(b[:])
	if !m.Engine().InCode(guest.GVA(tramp)) || m.Peek(guest.GVA(tramp), b[:]) != nil || b[0] == x86.Int3 {
		t.Fatalf("the trampoline at %#x has no code: % x", tramp, b)
	}
	for _, c := range []struct {
		flags  uint64
		inject uint8 // a #DB that is on its way in already
		want   bool
	}{
		{x86.Flag1 | x86.FlagTF, 0, true},
		{x86.Flag1 | x86.FlagTF, 1, true}, // and no second one
		{x86.Flag1, 0, false},
	} {
		v.regs.RIP, v.regs.RSP, v.regs.RFLAGS = tramp, place+8, c.flags
		if c.inject != 0 {
			if err := v.kvm.InjectException(x86.VectorDB, false, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		cpu := reread(t, save(t, m)).CPUs[0]
		if got := cpu.Events.E.Inject == 1 && cpu.Events.E.Nr == x86.VectorDB; got != c.want || cpu.Regs.RIP != uint64(back.Addr) || cpu.Regs.RFLAGS != c.flags {
			t.Errorf("RFLAGS %#x, inject %d: trap %v, want %v; RIP %#x, RFLAGS %#x", c.flags, c.inject, got, c.want, cpu.Regs.RIP, cpu.Regs.RFLAGS)
		}
		e, err := v.kvm.Events()
		if err != nil {
			t.Fatal(err)
		}
		e.E.Inject = 0
		if err := v.kvm.SetEvents(&e); err != nil {
			t.Fatal(err)
		}
	}

	// In the code of a jump a trap on its way in is that of an instruction of the engine's, but where a copy has ended.
	k := &probe.Kprobe{Symbol: "vfs_read", Offset: 4, Pre: func(*probe.Context) int { return 0 }}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	if err := m.Engine().Optimize(); err != nil {
		t.Fatal(err)
	}
	if i, _ := m.Engine().Info(k); !i.Optimized {
		t.Fatalf("no jump: %+v", i.Unoptimized)
	}
	var code [5]byte
	follow := func(at uint64) uint64 {
		if err := m.Peek(guest.GVA(at), code[:]); err != nil || code[0] != 0xe9 {
			t.Fatalf("no jump at %#x: % x, %v", at, code, err)
		}
		return at + 5 + uint64(int64(int32(binary.LittleEndian.Uint32(code[1:]))))
	}
	board := follow(uint64(k.Addr))
	v.regs.RIP, v.regs.RSP, v.regs.RFLAGS = board, place, x86.Flag1|x86.FlagTF
	if err := v.kvm.InjectException(x86.VectorDB, false, 0, 0); err != nil {
		t.Fatal(err)
	}
	if cpu := reread(t, save(t, m)).CPUs[0]; cpu.Events.E.Inject != 0 || cpu.Regs.RIP != uint64(k.Addr) || cpu.Regs.RFLAGS&x86.FlagTF == 0 {
		t.Errorf("at the board: events %+v, RIP %#x, want %#x", cpu.Events.E, cpu.Regs.RIP, uint64(k.Addr))
	}
}
