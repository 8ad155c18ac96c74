package machine

import (
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
