package bench

import (
	"context"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// bootBench returns the guest that is measured, until the test ends.
func bootBench(t *testing.T) (context.Context, *benchGuest) {
	t.Helper()
	kvmtest.Require(t)
	ctx := patience.Context(t)
	g, _, _, err := bootGuest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.close(ctx); err != nil {
			t.Error(err)
		}
	})
	return ctx, g
}

// TestInGuestRows measures everything that takes no exit, once: each row has
// as many hits as calls, and no exit.
func TestInGuestRows(t *testing.T) {
	ctx, g := bootBench(t)
	rows, err := g.guestRows(ctx, kvmtest.ChooseSize(2, 9), kvmtest.ChooseSize[uint64](fewInGuestCalls, inGuestCalls))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Unavailable != "" {
			t.Errorf("%s: %s", r.Name, r.Unavailable)
			continue
		}
		t.Logf("%-14s %6.1f ns a call, at least %6.1f, %6.1f of it the probe; %d hits, %d exits", r.Name, r.CallNs.Median, r.CallNs.Min, r.OverNs, r.Hits, r.Exits)
	}
}

// TestAttachCost: a script of 20 lines is at all of its places, and at most in the guest.
func TestAttachCost(t *testing.T) {
	_, g := bootBench(t)
	a, err := g.attachCost(3)
	if err != nil {
		t.Fatal(err)
	}
	if a.Lines != 20 || a.Sites != 100 || a.InGuest < 50 {
		t.Errorf("%+v", a)
	}
	t.Log(a.String())
}

// TestScriptCode: scripts are compiled to hardly more machine code than the same in C, with
// no locked instructions that this has not, which is what their cost comes from.
func TestScriptCode(t *testing.T) {
	_, g := bootBench(t)
	s, err := g.newSubjects()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	size := func(name string) (n, locked int) {
		ps := s.programs(name)
		if _, _, err := s.attach(name); err != nil || len(ps) == 0 {
			t.Fatalf("%s: %d programs, %v", name, len(ps), err)
		}
		for _, p := range ps {
			for code := p.Code(); len(code) > 0; {
				in, err := x86.Decode(code)
				if err != nil {
					t.Fatal(name, err)
				}
				if in.Prefix&x86.PrefixLock != 0 {
					locked++
				}
				n, code = n+int(in.Len), code[in.Len:]
			}
		}
		return n, locked
	}
	for _, sc := range scripts {
		beside := sc.beside
		if s.scripts[beside] != nil {
			continue // which does less
		}
		if beside == rowFloorCount {
			beside = rowCount
		}
		is, locked := size(sc.name)
		c, inC := size(beside)
		if strings.Contains(sc.text, "[") {
			inC++ // that an element had no room is counted by all together
		}
		if is*10 > c*13 || locked > inC {
			t.Errorf("%s: %d bytes of code with %d locked instructions, and %d with %d of %s in C", sc.name, is, locked, c, inC, beside)
		}
	}
}
