package machine

import (
	"encoding/binary"
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// trapped is what a probe in a trap's handler has seen: how often it was hit, and the sums
// of the registers that the handler's arguments are in, and of RSP.
type trapped struct{ Hits, RDI, RSI, RDX, RSP uint64 }

// ofTrap are the registers that trapped adds up, in its order.
var ofTrap = []x86.Reg64{x86.RDI, x86.RSI, x86.RDX, x86.RSP}

// watchTrap returns a probe on a function of the kernel, whose handler runs in the guest or on
// the host, and what it will have seen.
func watchTrap(t *testing.T, m *Machine, name string, inGuest bool) (*probe.Kprobe, func() trapped) {
	t.Helper()
	k := &probe.Kprobe{Name: name, Symbol: name}
	if !inGuest {
		var s trapped
		k.Pre = func(c *probe.Context) int {
			r := c.Regs
			s = trapped{s.Hits + 1, s.RDI + r.RDI, s.RSI + r.RSI, s.RDX + r.RDX, s.RSP + r.RSP}
			return 0
		}
		return k, func() trapped { return s }
	}
	block, host, err := m.AllocShared(128, false)
	if err != nil {
		t.Fatal(err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(host[8*i:]) }
	k.Stage = &probe.Stage{Block: block, Stride: 64, Lost: block + 64, NoStrings: true, Counts: func(int) (handled, filtered, missed uint64) { return word(0), 0, word(8) }}
	var a x86.Asm
	a.Inc(8, x86.At(x86.RSI, 0))
	for i, r := range ofTrap {
		k.Stage.Reads |= 1 << (x86.PtReg(r) / 8)
		a.Mov(8, x86.RAX, x86.At(x86.RDI, x86.PtReg(r)))
		a.Add(8, x86.At(x86.RSI, 8*(i+1)), x86.RAX)
	}
	a.Ret()
	k.Stage.Code = a.Code()
	return k, func() trapped { return trapped{word(0), word(1), word(2), word(3), word(4)} }
}

// TestStageInTrap: stages count exactly, and change nothing, where the kernel handles an
// exception on a stack of the interrupt stack table, and in its timer interrupt.
func TestStageInTrap(t *testing.T) {
	const vectorPF, istDF, stackSize = 14, 4, 8 << 10
	var faults [3]trapped
	var want []string
	for i, tc := range []struct{ inGuest, ist bool }{{false, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprintf("in guest %v, on IST %v", tc.inGuest, tc.ist), func(t *testing.T) {
			m := newMachine(t, Config{Image: builtinImage(t), Cmdline: "rounds=4", Tick: slowTick, EmulatedStages: true, Probe: probe.Options{OptimizeDelay: -1}})
			symbol := func(name string) guest.GVA {
				s, err := m.Image().Lookup(name)
				if err != nil {
					t.Fatal(err)
				}
				return s.Addr
			}
			load := func(at guest.GVA) uint64 {
				var b [8]byte
				if err := m.Peek(at, b[:]); err != nil {
					t.Fatal(err)
				}
				return binary.LittleEndian.Uint64(b[:])
			}
			fault, seenFault := watchTrap(t, m, "do_page_fault", tc.inGuest)
			tick, seenTick := watchTrap(t, m, "do_timer", tc.inGuest)
			other, seenOther := watchTrap(t, m, "do_trap", tc.inGuest)
			gate := symbol("idt") + 16*vectorPF + 4 // SDM Vol. 3, figure 6-8: bits 32 to 34
			written := false
			init := &probe.Kprobe{Symbol: "mm_init", Pre: func(c *probe.Context) int { // what comes behind idt_init
				written = tc.ist && c.Write(gate, []byte{istDF}) == nil
				return 0
			}}
			if err := m.Engine().Register(fault, tick, other, init); err != nil {
				t.Fatal(err)
			}
			if tc.inGuest {
				if err := m.Engine().Optimize(); err != nil {
					t.Fatal(err)
				}
			}
			got := results(t, m)
			if want == nil {
				want = got
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("results (-without +with):\n%s", diff)
			}
			if written != tc.ist {
				t.Fatal("the gate is not as wanted")
			}
			faults[i] = seenFault()
			var inGuest uint64
			for _, p := range []struct {
				k    *probe.Kprobe
				seen trapped
			}{{fault, faults[i]}, {tick, seenTick()}, {other, seenOther()}} {
				s, _, _ := m.Engine().Stats(p.k)
				if s.Hits != p.seen.Hits || s.Handled != p.seen.Hits || s.Missed != 0 {
					t.Errorf("%s: %+v, and %d runs of its handler", p.k.Name, s, p.seen.Hits)
				}
				if tc.inGuest != (s.InGuest == s.Hits) && s.Hits != 0 {
					t.Errorf("%s: %d of %d hits in the guest", p.k.Name, s.InGuest, s.Hits)
				}
				inGuest += s.InGuest
			}
			if fixed := load(symbol("exceptions_fixed")); fixed != faults[i].Hits+seenOther().Hits || faults[i].Hits == 0 {
				t.Errorf("%d exceptions, %d page faults and %d others seen", fixed, faults[i].Hits, seenOther().Hits)
			}
			if n := load(symbol("cpu_ticks")); n != seenTick().Hits {
				t.Errorf("%d ticks, %d seen", n, seenTick().Hits)
			}
			top := load(symbol("tss") + 4 + 3*8 + 8 + 8*(istDF-1))
			if sp := faults[i].RSP / faults[i].Hits; (top-stackSize < sp && sp < top) != tc.ist {
				t.Errorf("RSP %#x, the stack ends at %#x", sp, top)
			}
			t.Logf("%d page faults, %d other exceptions, %d ticks; %d in the guest", faults[i].Hits, seenOther().Hits, seenTick().Hits, inGuest)
			if err := m.Engine().Unregister(fault, tick, other, init); err != nil {
				t.Error(err)
			}
			checkText(t, m)
		})
	}
	if faults[1] != faults[2] {
		t.Errorf("on the host: %+v\nin the guest: %+v", faults[1], faults[2])
	}
}
