package probe_test

import (
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

const userBase = guest.GVA(0x40_0000)

// userFake has user code: push rax, pop rax, ret; and a load of (rdi), ret.
func userFake(t *testing.T) *probetest.Fake {
	t.Helper()
	img, err := probetest.BuildImage(userBase, true,
		probetest.Func{Name: "frame", Code: []byte("\x50\x58\xb8\x07\x00\x00\x00\xc3")},
		probetest.Func{Name: "load", Code: []byte("\x48\x8b\x07\xc3")})
	if err != nil {
		t.Fatal(err)
	}
	return newFake(t, 1, img)
}

// TestUserProbe runs user code at CPL3 with probes of every kind.
func TestUserProbe(t *testing.T) {
	f := userFake(t)
	e := f.Engine()
	var cpl []uint8
	see := func(c *probe.Context) int { cpl = append(cpl, c.CPL); return 0 }
	ps := []*probe.Kprobe{
		{Symbol: "frame", Pre: see},
		{Symbol: "frame", Offset: 1, Post: func(*probe.Context) {}},
		{Symbol: "frame", Offset: 7},
		{Symbol: "load", Pre: see},
		{Symbol: "load", Post: func(*probe.Context) {}, Disabled: true},
	}
	if err := e.Register(probe.Probes(ps)...); err != nil {
		t.Fatal(err)
	}
	for _, i := range e.List() {
		if !i.User {
			t.Errorf("%v is not listed as user code", i)
		}
	}
	if r, err := f.Call(0, ps[0].Addr, 1); err != nil || r != 7 {
		t.Errorf("frame: got %d, %v, want 7", r, err)
	}
	const there = 0x7000_1000
	if err := f.Write(there, []byte{9}); err != nil {
		t.Fatal(err)
	}
	for _, disabled := range []bool{true, false} {
		if !disabled {
			if err := e.Enable(ps[4]); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := f.Call(0, ps[3].Addr, there); err != nil || r != 9 {
			t.Errorf("load: got %d, %v, want 9", r, err)
		}
	}
	if len(cpl) != 3 || cpl[0] != 3 || cpl[1] != 3 {
		t.Errorf("CPL in handlers: %v, want 3 each time", cpl)
	}
	// User slots are apart from kernel slots, where user code can execute.
	at, ok := e.SlotOf(ps[3])
	if !ok || uint64(at)>>47 != 0 {
		t.Errorf("slot of user code at %v, %v", at, ok)
	}
}

// TestSlotsByPrivilege: kernel and user code run from different memory, in
// whatever order their probes came.
func TestSlotsByPrivilege(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	e := f.Engine()
	for _, name := range []string{"hot_load", "u_load", "f_boost", "u_fault"} {
		p := &probe.Kprobe{Symbol: name}
		if err := e.Register(p); err != nil {
			t.Fatal(err)
		}
		at, ok := e.SlotOf(p)
		if user := name[0] == 'u'; !ok || (at>>63 == 0) != user {
			t.Errorf("slot of %s at %v, %v", name, at, ok)
		}
	}
}

// TestUserStackIsChecked: an emulated push of user code has no more rights than
// the processor would give it, whatever the stack pointer says.
func TestUserStackIsChecked(t *testing.T) {
	f := userFake(t)
	e := f.Engine()
	p := &probe.Kprobe{Symbol: "frame"}
	if err := e.Register(p); err != nil {
		t.Fatal(err)
	}
	const (
		supervisor = 0x0200_0000 // the engine's slots come here: mapped for users, not writable
		write      = 2
		user       = 4
		present    = 1
	)
	q := &probe.Kprobe{Symbol: "load"} // makes a slot
	if err := e.Register(q); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		rsp  uint64
		want probe.Trap
	}{
		{"read-only", uint64(userBase) + 16, probe.Trap{Kind: probe.TrapFault, Vector: 14, Code: present | write | user, CR2: userBase + 8}},
		{"slots", supervisor + 16, probe.Trap{Kind: probe.TrapFault, Vector: 14, Code: present | write | user, CR2: supervisor + 8}},
		{"unmapped", 0x5000_0000, probe.Trap{Kind: probe.TrapFault, Vector: 14, Code: write | user, CR2: 0x5000_0000 - 8}},
		{"not canonical with 4 levels", 0x8000_0000_1000, probe.Trap{Kind: probe.TrapFault, Vector: 12}},
	} {
		r := probe.Regs{RIP: uint64(p.Addr), RSP: c.rsp, RAX: 1}
		v := e.Hit(0, probe.State{Regs: &r, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint})
		if v.Action != probe.Inject || v.Fault != c.want {
			t.Errorf("%s: got %+v, want injection of %+v", c.name, v, c.want)
		}
		if r.RIP != uint64(p.Addr) || r.RSP != c.rsp {
			t.Errorf("%s: RIP %#x, RSP %#x: the registers are not those from before the push", c.name, r.RIP, r.RSP)
		}
	}
	// What the engine cannot tell, the processor finds out, in a slot.
	r := probe.Regs{RIP: uint64(p.Addr), RSP: 1 << 60, RAX: 1}
	v := e.Hit(0, probe.State{Regs: &r, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint})
	if v.Action != probe.Resume || !e.InSlot(guest.GVA(r.RIP)) {
		t.Errorf("not canonical: got %+v at %#x, want a slot", v, r.RIP)
	}
}

// kernelOnly is a target that has no PageTables.
type kernelOnly struct{ probe.Target }

// TestWithoutPageTables: a target that cannot access memory with a user's
// rights has user instructions that touch memory executed by the processor.
func TestWithoutPageTables(t *testing.T) {
	f := userFake(t)
	e, err := probe.New(kernelOnly{&limited{Target: f}}, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	push := &probe.Kprobe{Symbol: "frame"}
	if err := e.Register(push); err != nil {
		t.Fatal(err)
	}
	r := probe.Regs{RIP: uint64(push.Addr), RSP: 0x7000_1000}
	v := e.Hit(0, probe.State{Regs: &r, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint})
	if v.Action != probe.Resume || !e.InSlot(guest.GVA(r.RIP)) {
		t.Errorf("push: got %+v at %#x, want a slot", v, r.RIP)
	}
	// A return cannot run in a slot.
	wantCode(t, e.Register(&probe.Kprobe{Symbol: "frame", Offset: 7}), probe.CodeHostCannot, syscall.ENODEV, nil)
}

// failing is a target whose memory accesses fail without a page fault.
type failing struct{ probe.Target }

func (failing) WriteMemory(guest.GPA, guest.GVA, []byte) error { return errBroken }

// TestEmulationFallsBack: when the engine cannot tell what the processor would
// do, it lets the processor do it.
func TestEmulationFallsBack(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	e, err := probe.New(failing{&limited{Target: f}}, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &probe.Kprobe{Symbol: "f_emulate"} // push rbp
	if err := e.Register(p); err != nil {
		t.Fatal(err)
	}
	r := probe.Regs{RIP: uint64(p.Addr), RSP: 0x7000_1000}
	v := e.Hit(0, probe.State{Regs: &r}, probe.Trap{Kind: probe.TrapBreakpoint})
	if v.Action != probe.Resume || !e.InSlot(guest.GVA(r.RIP)) || r.RSP != 0x7000_1000 {
		t.Errorf("got %+v at %#x, RSP %#x, want a slot", v, r.RIP, r.RSP)
	}
	// Where only the processor at the original place could: #GP, or #SS for a bad stack.
	call := &probe.Kprobe{Symbol: "e_callmem", Offset: 1}
	if err := e.Register(call); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rsp    uint64
		vector uint8
	}{{0x7000_1000, 13}, {1 << 60, 12}} {
		r = probe.Regs{RIP: uint64(call.Addr), RSP: c.rsp}
		v = e.Hit(0, probe.State{Regs: &r}, probe.Trap{Kind: probe.TrapBreakpoint})
		if v.Action != probe.Inject || v.Fault.Vector != c.vector || r.RIP != uint64(call.Addr) {
			t.Errorf("RSP %#x: got %+v at %#x, want vector %d", c.rsp, v, r.RIP, c.vector)
		}
	}
}
