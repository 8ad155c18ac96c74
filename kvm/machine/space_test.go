package machine

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// aliasOffset is how much higher the built-in guest's second address space has
// the user program again.
const aliasOffset = 1 << 39

// instructionProbes returns a probe on each instruction of a function that can
// have one.
func instructionProbes(t *testing.T, m *Machine, name string, pre func(*probe.Context) int, post func(*probe.Context)) []*probe.Kprobe {
	t.Helper()
	s, err := m.Image().Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []*probe.Kprobe
	for off := uint64(0); off < s.Size; off++ {
		k := &probe.Kprobe{Name: name, Symbol: name, Offset: off, Pre: pre, Post: post}
		if _, err := m.Engine().Check(k); err == nil {
			all = append(all, k)
		}
	}
	if len(all) < 3 {
		t.Fatalf("only %d instructions of %s can be probed", len(all), name)
	}
	return all
}

// checkProfileFlags wants these flags in the guest's own profile.
func checkProfileFlags(t *testing.T, m *Machine, want guest.ProfileFlags) {
	t.Helper()
	p, err := m.Image().Profile()
	if err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	if err := m.Peek(p.FlagsAt, b[:]); err != nil || guest.ProfileFlags(binary.LittleEndian.Uint64(b[:])) != want {
		t.Errorf("the profile's flags are % x, %v, want %d", b, err, want)
	}
}

// TestAliases: user code that runs at two addresses in two address spaces
// computes the same with a probe on each of its instructions, and arrivals at
// either address are hits.
func TestAliases(t *testing.T) {
	rounds := "rounds=2"
	if testing.Short() { // emulated hosts, and slow ones
		rounds = "rounds=1"
	}
	vcpus := 2
	if kvmtest.Slow {
		vcpus = 1
	}
	config := Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: rounds + " alias", Tick: slowTick}
	want := results(t, newMachine(t, config))
	for _, post := range []bool{false, true} {
		m := newMachine(t, config)
		var here, there, pres atomic.Uint64
		pre := func(c *probe.Context) int {
			pres.Add(1)
			switch guest.GVA(c.Regs.RIP) - c.Addr {
			case 1:
				here.Add(1)
			case 1 + aliasOffset:
				there.Add(1)
			default:
				t.Errorf("probe at %v hit with RIP %#x", c.Addr, c.Regs.RIP)
			}
			return 0
		}
		var after func(*probe.Context)
		if post {
			after = func(*probe.Context) {}
		}
		all := instructionProbes(t, m, "user_hot", pre, after)
		if kvmtest.Slow { // each instruction in one of the two runs
			odd := 0
			all = slices.DeleteFunc(all, func(*probe.Kprobe) bool { odd++; return (odd%2 == 0) == post })
		}
		if err := m.Engine().Register(probe.Probes(all)...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, results(t, m)); diff != "" {
			t.Errorf("post %v: results (-unprobed +probed):\n%s", post, diff)
		}
		checkAccounts(t, m, all, &pres)
		checkProfileFlags(t, m, guest.ProfileKernelOnce)
		e := m.Engine().Totals(-1)
		t.Logf("post %v: %d hits at the image's address, %d at the other, %+v", post, here.Load(), there.Load(), e)
		if here.Load() == 0 || there.Load() == 0 || e.Aliases != there.Load() {
			t.Errorf("post %v: %d and %d hits, engine counts %d aliases", post, here.Load(), there.Load(), e.Aliases)
		}
		if err := m.Engine().Unregister(all...); err != nil {
			t.Error(err)
		}
		checkText(t, m)
	}
}

// TestOneMapping: without the second mapping the guest says so.
func TestOneMapping(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=1", Tick: slowTick})
	results(t, m)
	checkProfileFlags(t, m, guest.ProfileKernelOnce|guest.ProfileOneMapping)
}

// secondSpace returns the built-in guest's second address space, once it has
// run.
func secondSpace(t *testing.T, m *Machine) guest.GPA {
	t.Helper()
	v, err := m.Image().Lookup("second_cr3")
	if err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	if err := m.Peek(v.Addr, b[:]); err != nil {
		t.Fatal(err)
	}
	return guest.GPA(binary.LittleEndian.Uint64(b[:]))
}

// TestSpace: a probe for one address space is not hit in the other, at whatever
// address the code is there, and the arrivals add up.
func TestSpace(t *testing.T) {
	// The task of the second space calls the function at its own pace: it has several ticks.
	config := Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=8 alias", Tick: slowTick}
	plain := newMachine(t, config)
	want := results(t, plain)
	second := secondSpace(t, plain)
	m := newMachine(t, config)
	first := m.booted.Load().space.Root()
	if second == 0 || second == first {
		t.Fatalf("address spaces %v and %v", first, second)
	}
	mk := func(space guest.GPA) *probe.Kprobe {
		return &probe.Kprobe{Symbol: "user_hot", Space: space, Pre: func(c *probe.Context) int {
			if space != 0 && c.Root != space {
				t.Errorf("probe for %v hit in %v", space, c.Root)
			}
			return 0
		}}
	}
	any, one, two, none := mk(0), mk(first), mk(second), mk(0x7000)
	if err := m.Engine().Register(any, one, two, none); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []guest.GPA{first + 8, 1 << 52} {
		var refused *probe.Error
		if err := m.Engine().Register(mk(bad)); !errors.As(err, &refused) || refused.Code != probe.CodeBadSpace {
			t.Errorf("space %v: %v, want %s", bad, err, probe.CodeBadSpace)
		}
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-unprobed +probed):\n%s", diff)
	}
	if err := m.Stop(doNothing); err != nil {
		t.Fatal(err)
	}
	s := map[*probe.Kprobe]probe.Stats{}
	for _, k := range []*probe.Kprobe{any, one, two, none} {
		st, _, _ := m.Engine().Stats(k)
		if st.Hits != st.Handled {
			t.Errorf("space %v: %+v", k.Space, st)
		}
		s[k] = st
	}
	total := s[any].Hits
	t.Logf("%d hits in %v, %d in %v, %d in all", s[one].Hits, first, s[two].Hits, second, total)
	if s[one].Hits == 0 || s[two].Hits == 0 || s[one].Hits+s[two].Hits != total {
		t.Errorf("hits %d in %v, %d in %v, %d in all", s[one].Hits, first, s[two].Hits, second, total)
	}
	for k, st := range s {
		if st.Hits+st.Elsewhere != total {
			t.Errorf("space %v: %d hits and %d elsewhere, want a sum of %d", k.Space, st.Hits, st.Elsewhere, total)
		}
	}
	if s[any].Elsewhere != 0 || s[none].Hits != 0 {
		t.Errorf("any space: %+v; no such space: %+v", s[any], s[none])
	}
}
