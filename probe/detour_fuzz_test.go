package probe_test

import (
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// detourBytes is more than a detour has, its stages included.
const detourBytes = 512

// FuzzDetour reports any traps, with any registers and at either privilege, in
// and around detours and boards, of kernel and user code, with exits and with
// stages, and takes jumps away and puts them back in between. Nothing panics,
// no vCPU that is on its own is left or injected an exception in the engine's
// memory that it was not in, CPL3 learns no address of the kernel's, every
// count closes, and in the end the text is the image's.
func FuzzDetour(f *testing.F) {
	const trapDetour, trapFault = byte(probe.TrapDetour), byte(probe.TrapFault)
	f.Add([]byte{trapDetour, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{byte(probe.TrapBreakpoint), 1, 0, 0x80, 1, 2, 3, 4, 5, 6, 0x80 | trapDetour, 1, 1, 0, 1, 2, 3, 4, 5, 6})
	f.Add([]byte{trapFault, 2, 0x31, 0x8e, 0, 0, 0, 0, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, trapFault, 2, 0x40, 0x0d, 1, 1, 1, 1, 1, 1})
	f.Add([]byte{trapFault, 0x41, 0, 0x0e, 0, 0, 0, 0, 0, 0, byte(probe.TrapStep), 3, 9, 1, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		fake, err := probetest.NewFake(probetest.FakeOptions{CPUs: 2, Probe: manual})
		if err != nil {
			t.Fatal(err)
		}
		e := fake.Engine()
		stage := func() *probe.Stage {
			return &probe.Stage{
				// mov (%rdi), %rax; ret
				Code: []byte{0x48, 0x8b, 0x07, 0xc3}, Fixups: []probe.Fixup{{Fault: 0, Resume: 3}}, Reads: 1 << 19, Block: 0x1000, Stride: 64,
				Lost: 0x2000, NoStrings: true,
			}
		}
		ps := []*probe.Kprobe{
			{Symbol: "f_emulate", Pre: emptyHandler}, {Symbol: "work", Pre: emptyHandler}, {Symbol: "f_boost", Pre: emptyHandler, Stage: stage()},
			{Symbol: "u_work", Pre: emptyHandler}, {Symbol: "u_frame", Pre: emptyHandler, Stage: stage()},
		}
		if err := e.Register(probe.Probes(ps)...); err != nil {
			t.Fatal(err)
		}
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
		var places []guest.GVA
		boards := map[guest.GVA]bool{} // pages of user code, which may be anywhere
		for _, p := range ps {
			i, _ := e.Info(p)
			if !i.Optimized {
				t.Fatalf("%s: %+v", p.Symbol, i.Unoptimized)
			}
			at, entry := detourOf(t, fake, p.Addr)
			places = append(places, p.Addr, at, entry-detourBytes/2)
			if i.User && at != entry {
				boards[at&^(guest.PageSize-1)] = true
			}
		}
		// The image has its kernel in the higher half.
		user := func(a guest.GVA) bool { return int64(a) >= 0 || boards[a&^(guest.PageSize-1)] }
		on := true
		for ; len(b) >= 10; b = b[10:] {
			if b[0]&7 == 7 {
				on = !on
				if err := e.SetOptimization(on); err != nil {
					t.Fatal(err)
				}
				if err := e.Optimize(); err != nil {
					t.Fatal(err)
				}
				continue
			}
			rip := places[int(b[1])%len(places)] + guest.GVA(int(b[2])|int(b[1]>>6)<<8)
			cpl := b[3] >> 7 * 3
			r := probe.Regs{RIP: uint64(rip), RSP: uint64(binary.LittleEndian.Uint32(b[4:])) << (b[8] % 33), RFLAGS: uint64(b[9]) << 5}
			s := probe.State{Regs: &r, CPL: cpl}
			v := e.Hit(int(b[0]>>7), s, probe.Trap{Kind: probe.TrapKind(b[0] & 7), Vector: b[3] & 0x1f, DR6: 1 << 14})
			now := guest.GVA(r.RIP)
			switch {
			case v.Action == probe.NotOurs && rip != now && e.InSlot(now), v.Action == probe.Inject && rip != now && e.InSlot(now):
				t.Fatalf("%v: left in the engine's memory at %v", rip, now)
			case cpl == 3 && !user(rip) && probe.TrapKind(b[0]&7) == probe.TrapFault && (v.Action != probe.NotOurs || now != rip) && e.InSlot(rip):
				t.Fatalf("%v: CPL3 goes on at %v: %+v", rip, now, v)
			case v.Action == probe.Resume && now != rip && user(now) != user(rip):
				t.Fatalf("%v: goes on at %v, of the other privilege", rip, now)
			case v.Action == probe.StepInPlace:
				e.NoteStep(int(b[0]>>7), s)
			}
		}
		for _, p := range ps {
			if s, _, _ := e.Stats(p); s.Hits != s.Handled+s.Filtered+s.Missed {
				t.Fatalf("%s: counts do not close: %+v", p.Symbol, s)
			}
		}
		if err := fake.Close(); err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			var now [16]byte
			at := symbol(t, fake, p.Symbol)
			if err := fake.Read(at, now[:]); err != nil || string(now[:]) != string(probetest.Image().Code(at, 16)) {
				t.Fatalf("%s: text is % x, %v", p.Symbol, now, err)
			}
		}
	})
}
