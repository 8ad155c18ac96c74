package machine

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestReturnsInSpaces: kretprobes on user code that runs in two address spaces,
// in one of them at a second address too: each follows the calls of its own
// space, wherever they are made, and all of them return to the right place.
func TestReturnsInSpaces(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=1 alias", Tick: slowTick}
	plain := newMachine(t, config)
	want := results(t, plain)
	m := newMachine(t, config)
	first, second := m.booted.Load().space.Root(), secondSpace(t, plain)
	hot, err := m.Image().Lookup("user_hot")
	if err != nil {
		t.Fatal(err)
	}
	var there, returns atomic.Uint64
	mk := func(space guest.GPA) *probe.Kretprobe {
		return &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "user_hot", Space: space}, DataSize: 8,
			Entry: func(c *probe.Context) int {
				if space == 0 && guest.GVA(c.Regs.RIP) > hot.Addr+aliasOffset {
					there.Add(1)
				}
				v := c.Regs.RDI*31 + c.Regs.RSI
				for i := range c.Data {
					c.Data[i] = byte((v ^ v>>7) >> (8 * i))
				}
				return 0
			},
			Return: func(c *probe.Context) {
				returns.Add(1)
				if space != 0 && c.Root != space {
					t.Errorf("kretprobe for %v: a return in %v", space, c.Root)
				}
				if want := littleEndian(c.Data); c.Regs.RAX != want || c.CPL != 3 {
					t.Errorf("a call at CPL %d has returned %#x, want %#x", c.CPL, c.Regs.RAX, want)
				}
			},
		}
	}
	all := []*probe.Kretprobe{mk(0), mk(first), mk(second), mk(0x7000)}
	if err := m.Engine().Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-unprobed +probed):\n%s", diff)
	}
	if err := m.Stop(doNothing); err != nil {
		t.Fatal(err)
	}
	var s [4]probe.Stats
	var sum uint64
	for i, r := range all {
		in, _ := m.Engine().Info(&r.Kprobe)
		s[i] = in.Stats
		sum += s[i].Returns
		if s[i].Hits+s[i].Elsewhere != s[0].Hits || s[i].Hits != s[i].Handled || s[i].Handled != s[i].Returns || in.InUse != 0 {
			t.Errorf("space %v: %d in use, %+v", r.Space, in.InUse, s[i])
		}
	}
	t.Logf("%d calls, %d of them at the second address; %d in %v, %d in %v", s[0].Hits, there.Load(), s[1].Hits, first, s[2].Hits, second)
	if s[1].Hits == 0 || s[2].Hits == 0 || s[1].Hits+s[2].Hits != s[0].Hits || s[3].Hits != 0 || there.Load() == 0 || sum != returns.Load() {
		t.Errorf("calls %d in all, %d and %d in the two spaces, %d in none, %d at the second address; %d return handlers for %d returns",
			s[0].Hits, s[1].Hits, s[2].Hits, s[3].Hits, there.Load(), returns.Load(), sum)
	}
	for _, r := range all {
		if err := m.Engine().Unregister(&r.Kprobe); err != nil {
			t.Error(err)
		}
	}
	checkText(t, m)
}

// TestMirrorThroughAlias: the mirror of a jprobe on user code runs before calls at
// a second address too, and the probed function then goes on at the one that it
// was called at. A function that ends in a jump to another one serves as mirror.
func TestMirrorThroughAlias(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=1 alias", Tick: slowTick}
	want := results(t, newMachine(t, config))
	m := newMachine(t, config)
	var here, there atomic.Uint64
	j := &probe.Jprobe{
		Kprobe: probe.Kprobe{Symbol: "user_hot"}, Mirror: "user_jump_entry", End: "user_jump_entry_cold", StackSize: 8,
		Entry: func(c *probe.Context, a probe.Args) {
			if guest.GVA(c.Regs.RIP) == c.Addr+1 {
				here.Add(1)
			} else {
				there.Add(1)
			}
		},
	}
	// The mirror ran if and only if its own entry was hit: inside it hits are missed.
	inside := &probe.Kprobe{Symbol: "user_jump_entry"}
	if err := m.Engine().Register(j, inside); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-unprobed +probed):\n%s", diff)
	}
	if err := m.Stop(doNothing); err != nil {
		t.Fatal(err)
	}
	s, _, _ := m.Engine().Stats(&j.Kprobe)
	k, _, _ := m.Engine().Stats(inside)
	t.Logf("%d calls at the image's address, %d at the other; %+v", here.Load(), there.Load(), s)
	// A vCPU may have been inside its mirror when the other one ended the guest.
	if open := s.Hits - s.SecondExits; open > 1 || k.Missed > s.Hits || s.Hits-k.Missed > open {
		t.Errorf("%d mirrors have not ended", open)
	}
	if here.Load() == 0 || there.Load() == 0 || s.Hits != here.Load()+there.Load() || s.Handled != s.Hits {
		t.Errorf("jprobe %+v; the mirror's entry %+v; %d and %d calls", s, k, here.Load(), there.Load())
	}
	if err := m.Reset(t.Context(), nil); err != nil { // which ends that one
		t.Fatal(err)
	}
	if err := m.Engine().Unregister(&j.Kprobe, inside); err != nil {
		t.Error(err)
	}
	checkText(t, m)
}

// TestProbeAtAlias: probes are asked for at addresses of the image. One that only
// another address space has its code at is refused, whichever kind and space, and
// nothing changes.
func TestProbeAtAlias(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=1 alias", Tick: slowTick}
	m := newMachine(t, config)
	want := results(t, m)
	second := secondSpace(t, m)
	if err := m.Reset(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	hot, err := m.Image().Lookup("user_hot")
	if err != nil {
		t.Fatal(err)
	}
	for _, space := range []guest.GPA{0, second} {
		at := probe.Kprobe{Addr: hot.Addr + aliasOffset, Space: space}
		for kind, p := range map[string]probe.Probe{
			"kprobe": &at, "kretprobe": &probe.Kretprobe{Kprobe: at}, "jprobe": &probe.Jprobe{Kprobe: at, Entry: func(*probe.Context, probe.Args) {}},
		} {
			var refused *probe.Error
			if err := m.Engine().Register(p); !errors.As(err, &refused) || refused.Code != probe.CodeNoSymbolAt || !errors.Is(err, syscall.ENOENT) {
				t.Errorf("%s at %v in space %v: %v, want %s", kind, at.Addr, space, err, probe.CodeNoSymbolAt)
			}
		}
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-before +behind):\n%s", diff)
	}
	checkText(t, m)
}
