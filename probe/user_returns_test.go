package probe_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// stacks is a target whose words from userStacks upwards are another memory in
// each address space; a space that is not in the map has none there.
type stacks struct {
	*probetest.Fake
	words map[guest.GPA]map[guest.GVA]uint64
}

const (
	userStacks = guest.GVA(0x7000_0000)
	userRet    = 0x1234_5000 // where the probed calls return to
)

func (s *stacks) ReadMemory(root guest.GPA, a guest.GVA, p []byte) error {
	if a < userStacks || a > userStacks+1<<20 {
		return s.Fake.ReadMemory(root, a, p)
	}
	space, ok := s.words[root]
	if !ok || len(p) != 8 {
		return errBroken
	}
	binary.LittleEndian.PutUint64(p, space[a])
	return nil
}

func (s *stacks) WriteMemory(root guest.GPA, a guest.GVA, p []byte) error {
	space, ok := s.words[root]
	if !ok || len(p) != 8 {
		return errBroken
	}
	space[a] = binary.LittleEndian.Uint64(p)
	return nil
}

func (s *stacks) ReadUser(root guest.GPA, a guest.GVA, p []byte) error {
	return s.ReadMemory(root, a, p)
}

func (s *stacks) WriteUser(root guest.GPA, a guest.GVA, p []byte) error {
	return s.WriteMemory(root, a, p)
}

// userCall is a followed call of user code, from its entry on.
type userCall struct {
	*stacks
	e       *probe.Engine
	r       *probe.Kretprobe
	slot    guest.GVA
	tramp   uint64
	returns []guest.GPA // address space of each return handler
}

// enterUser makes a call in address space 0x1000, with a kretprobe on it.
func enterUser(t *testing.T) *userCall {
	t.Helper()
	u := &userCall{stacks: &stacks{Fake: userFake(t), words: map[guest.GPA]map[guest.GVA]uint64{}}, slot: userStacks + 0x800}
	var err error
	if u.e, err = probe.New(u.stacks, probe.Options{}); err != nil {
		t.Fatal(err)
	}
	u.r = &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "frame"}, Return: func(c *probe.Context) { u.returns = append(u.returns, c.Root) }}
	if err := u.e.Register(u.r); err != nil {
		t.Fatal(err)
	}
	u.words[0x1000] = map[guest.GVA]uint64{u.slot: userRet}
	regs := probe.Regs{RIP: uint64(u.r.Addr), RSP: uint64(u.slot)}
	if v := u.e.Hit(0, probe.State{Regs: &regs, Root: 0x1000, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.Resume {
		t.Fatalf("at the entry: %+v", v)
	}
	if u.tramp = u.words[0x1000][u.slot]; u.tramp == userRet {
		t.Fatal("the return address is still there")
	}
	u.wantInUse(t, "behind the entry", 1)
	return u
}

// returnIn returns from the call in an address space.
func (u *userCall) returnIn(t *testing.T, root guest.GPA) {
	t.Helper()
	regs := probe.Regs{RIP: u.words[root][u.slot], RSP: uint64(u.slot) + 8}
	if v := u.e.Hit(0, probe.State{Regs: &regs, Root: root, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.Resume || regs.RIP != userRet {
		t.Errorf("the return in %v goes to %#x: %+v", root, regs.RIP, v)
	}
}

func (u *userCall) wantInUse(t *testing.T, when string, want int) {
	t.Helper()
	if i, _ := u.e.Info(&u.r.Kprobe); i.InUse != want {
		t.Errorf("%s: %d in use, want %d: %+v", when, i.InUse, want, i.Stats)
	}
}

// TestForkedStack: a copy of the stack of a probed call, in another address space,
// returns to the right place without a handler, before and after the call itself
// returns; only the call's own return counts.
func TestForkedStack(t *testing.T) {
	for _, childFirst := range []bool{false, true} {
		u := enterUser(t)
		u.words[0x2000] = maps.Clone(u.words[0x1000])
		order := []guest.GPA{0x1000, 0x2000}
		if childFirst {
			order = []guest.GPA{0x2000, 0x1000}
		}
		for _, root := range order {
			u.returnIn(t, root)
		}
		u.wantInUse(t, "behind both returns", 0)
		s, _, _ := u.e.Stats(&u.r.Kprobe)
		e := u.e.Totals(-1)
		if len(u.returns) != 1 || u.returns[0] != 0x1000 || s.Returns != 1 || s.Abandoned != 0 || e.Copies != 1 || e.Foreign != 0 {
			t.Errorf("child first %v: return handlers in %v, %+v, %+v", childFirst, u.returns, s, e)
		}
	}
}

// TestUnmappedStack: a user stack that is not mapped may be swapped out: nothing
// on it is given back, and the call returns when it is there again.
func TestUnmappedStack(t *testing.T) {
	u := enterUser(t)
	stack := u.words[0x1000]
	delete(u.words, 0x1000)
	u.wantInUse(t, "without the stack", 1)
	if err := u.e.Reclaim(); err != nil {
		t.Fatal(err)
	}
	u.wantInUse(t, "in a stopped world", 1)
	u.words[0x1000] = stack
	u.returnIn(t, 0x1000)
	u.wantInUse(t, "behind the return", 0)
	if len(u.returns) != 1 {
		t.Errorf("%d return handlers", len(u.returns))
	}
}

// TestReturnStageNoStack: a return whose code in the guest finds no stack below the
// caller's, where it pushes or where it tries the far end of what it needs, or finds it
// not aligned where that is checked, is the host's, with all registers as the function has
// left them.
func TestReturnStageNoStack(t *testing.T) {
	for at := range 2 {
		for _, vector := range []uint8{x86.VectorPF, x86.VectorSS, 17 /* #AC */} {
			u := &userCall{stacks: &stacks{Fake: userFake(t), words: map[guest.GPA]map[guest.GVA]uint64{}}, slot: userStacks + 0x800}
			var err error
			if u.e, err = probe.New(u.stacks, probe.Options{}); err != nil {
				t.Fatal(err)
			}
			u.r = &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "frame"}, ReturnStage: newReturnStage(), Return: func(c *probe.Context) { u.returns = append(u.returns, c.Root) }}
			if err := u.e.Register(u.r); err != nil {
				t.Fatal(err)
			}
			space := map[guest.GVA]uint64{u.slot: userRet}
			u.words[0x1000] = space
			entry := probe.Regs{RIP: uint64(u.r.Addr), RSP: uint64(u.slot)}
			if v := u.e.Hit(0, probe.State{Regs: &entry, Root: 0x1000, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.Resume {
				t.Fatalf("at the entry: %+v", v)
			}
			tramp := guest.GVA(space[u.slot])
			var code [16]byte
			if err := u.Read(tramp, code[:]); err != nil {
				t.Fatal(err)
			}
			// lea -8(%rsp), %rsp; push $imm32; jmp
			if code[5] != 0x68 || code[10] != 0xe9 {
				t.Fatalf("trampoline % x", code)
			}
			common := tramp + 15 + guest.GVA(int32(binary.LittleEndian.Uint32(code[11:])))
			if err := u.Read(common, code[:]); err != nil || code[0] != 0x48 || code[1] != 0x8d || code[2] != 0xa4 || code[8] != 0x50 {
				t.Fatalf("behind it % x, %v", code, err) // lea disp32(%rsp), %rsp; push %rax
			}
			var num [1]byte
			if err := u.Read(tramp+6, num[:]); err != nil {
				t.Fatal(err)
			}
			if err := u.e.RunUnpatched(false, func(c *probe.Clean) error { // an exception there is not the guest's in a snapshot, either
				for _, rip := range []guest.GVA{tramp, tramp + 5, tramp + 10, common, common + 8, common + 9} {
					if got, want := c.Touches(rip), rip == tramp+5 || rip == common+8; got != want {
						t.Errorf("trampoline%+d is an access of the stack: %v, want %v", int64(rip-tramp), got, want)
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			before := probe.Regs{RAX: 1, RCX: 2, RDX: 3, RSI: 4, RDI: 5, RFLAGS: 0x40202}
			regs := before
			switch at {
			case 0:
				regs.RIP, regs.RSP = uint64(tramp+5), uint64(u.slot)
			case 1:
				regs.RIP, regs.RSP = uint64(common+8), uint64(u.slot)-8+uint64(int32(binary.LittleEndian.Uint32(code[4:])))
			}
			if at != 0 {
				space[u.slot-8] = uint64(num[0])
			}
			v := u.e.Hit(0, probe.State{Regs: &regs, Root: 0x1000, CPL: 3}, probe.Trap{Kind: probe.TrapFault, Vector: vector, CR2: u.slot - 8})
			before.RIP, before.RSP = userRet, uint64(u.slot)+8
			if s, _, _ := u.e.Stats(&u.r.Kprobe); v.Action != probe.Resume || regs != before || len(u.returns) != 1 || s.Returns != 1 {
				t.Errorf("place %d, vector %d: %+v, %d handlers, %+v\ngot  %+v\nwant %+v", at, vector, v, len(u.returns), s, regs, before)
			}
			u.wantInUse(t, "behind the return", 0)
		}
	}
}

// TestReturnNowhere: no vCPU is sent to an address that is not canonical: a call with
// such a return address is not followed, and one that the guest has put into a record
// is not believed.
func TestReturnNowhere(t *testing.T) {
	const nowhere, stack = 0x1234_5678_9abc_def0, guest.GVA(0x7000_8000)
	for _, stage := range []*probe.Stage{nil, newReturnStage()} {
		b := newBench(t)
		put := func(at guest.GVA, v uint64) {
			t.Helper()
			if err := b.f.Write(at, binary.LittleEndian.AppendUint64(nil, v)); err != nil {
				t.Fatal(err)
			}
		}
		get := func(at guest.GVA) uint64 {
			t.Helper()
			var w [8]byte
			if err := b.f.Read(at, w[:]); err != nil {
				t.Fatal(err)
			}
			return binary.LittleEndian.Uint64(w[:])
		}
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "hot_load"}, ReturnStage: stage}
		if err := b.e.Register(r); err != nil {
			t.Fatal(err)
		}
		b.regs[0].RSP = uint64(stack)
		put(stack, nowhere)
		b.action("entry", b.trapAt(0, r.Addr, breakpoint), probe.Resume)
		if s, _, _ := b.e.Stats(&r.Kprobe); s.Missed != 1 || s.Handled != 0 || get(stack) != nowhere {
			t.Errorf("%+v, %#x on the stack", s, get(stack))
		}
		if stage == nil {
			continue
		}
		home := uint64(b.symbol("hot"))
		put(stack, home)
		b.action("entry", b.trapAt(0, r.Addr, breakpoint), probe.Resume)
		tramp := guest.GVA(get(stack))
		wrote := false
		for at := guest.GVA(0x5000_0000); at < 0x5000_4000 && !wrote; at += 8 { // where the fake has its shared memory
			if wrote = get(at) == home; wrote {
				put(at, nowhere)
			}
		}
		b.regs[0].RSP += 8
		b.action("return", b.trapAt(0, tramp, pageFault), probe.NotOurs)
		b.rip(0, tramp)
		if s, _, _ := b.e.Stats(&r.Kprobe); !wrote || s.Handled != 1 || s.Returns != 1 {
			t.Errorf("wrote %v, %+v", wrote, s)
		}
	}
}

// TestReturnStageFaults: where the entry of a kretprobe in the guest comes to memory that
// is not there, the guest sees no fault. A call whose return address cannot be read or
// written is missed, and a task whose number cannot be read stays unknown: it may be on
// another page of the stack than what marks it as one.
func TestReturnStageFaults(t *testing.T) {
	s := newStaged(t, true)
	n := 0
	s.register(true, s.registerOn("co_body", 2, &n))
	prof, err := probetest.Image().Profile()
	if err != nil {
		t.Fatal(err)
	}
	entry := s.addr("co_body")
	for {
		var b [x86.JmpLen]byte
		if err := s.f.Read(entry, b[:]); err != nil {
			t.Fatal(err)
		}
		if b[0] != x86.JmpOp {
			break
		}
		entry += guest.GVA(x86.JmpLen + int64(int32(binary.LittleEndian.Uint32(b[1:]))))
	}
	code := make([]byte, 2048) // larger than a kretprobe's entry, which precedes the detour's
	for len(code) > 0 && s.f.Read(entry-guest.GVA(len(code)), code) != nil {
		code = code[64:]
	}
	start := entry - guest.GVA(len(code))
	const rax, rcx, rdx, rdi = x86.RAX, x86.RCX, x86.RDX, x86.RDI
	for _, c := range []struct {
		name          string
		fault, resume func(a *x86.Asm)
	}{
		{"return address", func(a *x86.Asm) { a.Mov(8, rax, x86.At(rdx, 0)) }, func(a *x86.Asm) { a.Mov(8, rcx, x86.Imm(0x5000_0000)); a.Lock().Dec(8, x86.At(rcx, 0)) }},
		{"trampoline", func(a *x86.Asm) { a.Mov(8, x86.At(rdx, 0), rax) }, func(a *x86.Asm) { a.Neg(8, x86.At(rcx, 32)); a.Dec(8, x86.At(rcx, 0)) }},
		{"task", func(a *x86.Asm) { a.Mov(4, rax, x86.At(rdi, int(prof.PIDOff))) }, func(a *x86.Asm) { a.Mov(8, x86.At(rcx, 32), rax) }},
	} {
		fault, resume := x86.Assemble(c.fault), x86.Assemble(c.resume)
		i := bytes.Index(code, fault)
		if i < 0 {
			t.Fatalf("%s: no % x in % x", c.name, fault, code)
		}
		regs := probe.Regs{RIP: uint64(start) + uint64(i)}
		v := s.e.Hit(0, probe.State{Regs: &regs}, pageFault)
		if to := int(regs.RIP - uint64(start)); v.Action != probe.Resume || to < 0 || to >= len(code) || !bytes.HasPrefix(code[to:], resume) {
			t.Errorf("%s: %+v at %#x, want to go on at % x", c.name, v, regs.RIP, resume)
		}
	}
}

// TestReadAsKernel: at user code the kernel's memory is read by the page tables that the kernel was booted with, not by those of
// the process.
func TestReadAsKernel(t *testing.T) {
	s := &stacks{Fake: userFake(t), words: map[guest.GPA]map[guest.GVA]uint64{0: {userStacks: 7}, 0x1000: {userStacks: 8}}}
	e, err := probe.New(s, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	k := &probe.Kprobe{Symbol: "frame", Pre: func(c *probe.Context) int {
		seen++
		var b [8]byte
		if err := c.ReadAsKernel(userStacks, b[:]); err != nil || b[0] != 7 {
			t.Errorf("the kernel's: %v, %v", b, err)
		}
		if err := c.ReadAsGuest(userStacks, b[:]); err != nil || b[0] != 8 {
			t.Errorf("the user's: %v, %v", b, err)
		}
		return 0
	}}
	if err := e.Register(k); err != nil {
		t.Fatal(err)
	}
	regs := probe.Regs{RIP: uint64(k.Addr), RSP: uint64(userStacks) + 0x800}
	e.Hit(0, probe.State{Regs: &regs, Root: 0x1000, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint})
	if seen != 1 {
		t.Errorf("%d hits", seen)
	}
}
