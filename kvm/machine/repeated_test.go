package machine

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// TestTrapsOfRepeated: in a slot the traps of TF between the iterations of a string instruction go to the guest, at the probed instruction. A
// trap before the first iteration is dropped, and the copy starts after it.
func TestTrapsOfRepeated(t *testing.T) {
	code := asm([]byte{0xf3, 0xaa, 0x90, 0x90, 0x90, 0xc3}, hltForever, stub3) // fn: rep stosb; nop; nop; nop; ret
	fn := tinySym{"fn", tinyText, 6}
	for _, post := range []bool{false, true} {
		m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})
		p := &probe.Kprobe{Symbol: fn.name, Pre: func(*probe.Context) int { return 0 }}
		if post {
			p.Post = func(*probe.Context) {}
		}
		if err := m.Engine().Register(p); err != nil {
			t.Fatal(err)
		}
		slot, ok := m.Engine().SlotOf(p)
		if !ok {
			t.Fatal("the instruction has no slot")
		}
		v := m.vcpus[0]
		hit := func(k probe.TrapKind) probe.Verdict {
			return m.Engine().Hit(0, v.state(), probe.Trap{Kind: k, DR6: probe.TrapOfTF.DR6})
		}
		const flags = uint64(x86.Flag1 | x86.FlagTF)
		v.regs.RIP, v.regs.RFLAGS, v.regs.RCX = fn.addr, flags, 3
		if d := hit(probe.TrapBreakpoint); d.Action != probe.Resume || guest.GVA(v.regs.RIP) != slot || v.regs.RFLAGS != flags {
			t.Fatalf("post %v: verdict %+v, RIP %#x, RFLAGS %#x", post, d, v.regs.RIP, v.regs.RFLAGS)
		}
		for range 2 {
			if d := hit(probe.TrapStep); d.Action != probe.Resume || guest.GVA(v.regs.RIP) != slot || v.regs.RFLAGS != flags {
				t.Errorf("post %v: before the first iteration: verdict %+v, RIP %#x, RFLAGS %#x", post, d, v.regs.RIP, v.regs.RFLAGS)
			}
		}
		v.regs.RCX = 2
		if d := hit(probe.TrapStep); d.Action != probe.NotOurs || v.regs.RIP != fn.addr || v.regs.RFLAGS != flags {
			t.Errorf("post %v: after it: verdict %+v, RIP %#x, RFLAGS %#x", post, d, v.regs.RIP, v.regs.RFLAGS)
		}
		// The guest resumes, and the remaining iterations run.
		if d := hit(probe.TrapBreakpoint); d.Action != probe.Resume || guest.GVA(v.regs.RIP) != slot {
			t.Errorf("post %v: again: verdict %+v, RIP %#x", post, d, v.regs.RIP)
		}
		v.regs.RIP, v.regs.RCX = uint64(slot)+2, 0
		if d := hit(probe.TrapStep); d.Action != probe.NotOurs || v.regs.RIP != fn.addr+2 || v.regs.RFLAGS != flags {
			t.Errorf("post %v: at the end: verdict %+v, RIP %#x, RFLAGS %#x", post, d, v.regs.RIP, v.regs.RFLAGS)
		}
	}
}
