package kvm

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

// countToThree writes 1, 2 and 3 to a port and then halts.
var countToThree = []byte{
	0x31, 0xc0, // xor %eax,%eax
	0xff, 0xc0, // inc %eax
	0xe6, 0x10, // out %al,$0x10
	0xff, 0xc0, 0xe6, 0x10,
	0xff, 0xc0, 0xe6, 0x10,
	0xf4, // hlt
}

func TestSyncRegsChoice(t *testing.T) {
	b := newBox(t, countToThree, withoutSyncRegs())
	if b.v.syncRegs() {
		t.Error("withoutSyncRegs: registers are shared")
	}
	b = newBox(t, countToThree)
	if got, want := b.v.syncRegs(), b.vm.Check(CapSyncRegs)&3 == 3; got != want {
		t.Errorf("registers are shared: %v, want %v", got, want)
	}
}

// Before the first Run, both ways show the processor after reset.
func TestRegsFromCreation(t *testing.T) {
	b := newBox(t, countToThree)
	for i, opts := range [][]vcpuOption{nil, {withoutSyncRegs()}} {
		v, err := b.vm.createVCPU(i+1, opts...)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		r, s := v.Regs(), v.Sregs()
		// SDM Vol. 3, table 10-1.
		if r.RIP != 0xfff0 || r.RFLAGS != 2 || s.CS.Base != 0xffff0000 || s.CS.Selector != 0xf000 || s.CR0 != 0x60000010 {
			t.Errorf("vcpu %d: rip %#x, rflags %#x, cs %+v, cr0 %#x; want the state after reset", i+1, r.RIP, r.RFLAGS, s.CS, s.CR0)
		}
	}
}

// The two ways of passing registers give the same ones at each exit.
func TestRegsBothWaysAgree(t *testing.T) {
	var regs [2][]Regs
	var sregs [2][]Sregs
	for i, opts := range [][]vcpuOption{nil, {withoutSyncRegs()}} {
		b := newBox(t, countToThree, opts...)
		for range 4 {
			b.run()
			var r Regs
			var s Sregs
			if err := errors.Join(b.v.getRegs(&r), b.v.GetSregs(&s)); err != nil {
				t.Fatal(err)
			}
			if r != *b.v.Regs() || s != *b.v.Sregs() {
				t.Errorf("way %d: Regs or Sregs differ from what KVM has", i)
			}
			regs[i], sregs[i] = append(regs[i], r), append(sregs[i], s)
		}
	}
	if d := cmp.Diff(regs[0], regs[1]); d != "" {
		t.Errorf("registers (-sync +getset):\n%s", d)
	}
	if d := cmp.Diff(sregs[0], sregs[1], cmpopts.IgnoreUnexported(Segment{}, Descriptor{})); d != "" {
		t.Errorf("special registers (-sync +getset):\n%s", d)
	}
}

func TestRegsDirty(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, countToThree, opts...)
		want := func(al byte) {
			t.Helper()
			if e := b.wantOut(0x10); e.IO.Data[0] != al {
				t.Fatalf("guest wrote %d, want %d", e.IO.Data[0], al)
			}
		}
		want(1)
		// Not marked: the guest does not see it.
		b.v.Regs().RAX = 50
		want(2)
		if got := b.v.Regs().RAX; got != 2 {
			t.Errorf("rax = %d, want 2", got)
		}
		b.v.Regs().RAX = 99
		b.v.SetRegsDirty()
		want(100)
		b.want(ReasonHLT)
		// The mark holds for one Run.
		if b.v.dirty != 0 || b.v.page.dirtyRegs != 0 {
			t.Errorf("dirty after Run: %#x, in the page %#x; want 0", b.v.dirty, b.v.page.dirtyRegs)
		}
	})
}

// SetRegs and SetSregs win over changes that were marked before.
func TestSetRegs(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, countToThree, opts...)
		b.wantOut(0x10)
		b.v.Regs().RIP = 0xdead
		b.v.SetRegsDirty()
		b.v.Sregs().CR3 = 0xdead000
		b.v.SetSregsDirty()
		r := Regs{RAX: 7, RIP: boxCode + 2, RSP: boxTop, RFLAGS: 2}
		var s Sregs
		if err := errors.Join(b.v.GetSregs(&s), b.v.SetRegs(&r), b.v.SetSregs(&s)); err != nil {
			t.Fatal(err)
		}
		if *b.v.Regs() != r || b.v.Sregs().CR3 != boxPML4 {
			t.Errorf("Regs %+v, cr3 %#x; want what was set", *b.v.Regs(), b.v.Sregs().CR3)
		}
		if e := b.wantOut(0x10); e.IO.Data[0] != 8 {
			t.Errorf("guest wrote %d, want 8", e.IO.Data[0])
		}
	})
}

func TestSetSregsInvalid(t *testing.T) {
	b := newBox(t, countToThree)
	before := *b.v.Sregs()
	bad := before
	bad.CR0 &^= 1
	if err := b.v.SetSregs(&bad); !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v, want EINVAL", err)
	}
	if *b.v.Sregs() != before {
		t.Error("Sregs changed by a SetSregs that failed")
	}
}
