package machine

import (
	"context"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// reset resets the guest with its probes, in any phase, and resumes it.
func (x *onGuest) reset() {
	x.Helper()
	pause := func() error {
		if x.m.Phase() != PhaseRunning {
			return nil
		}
		return x.m.Pause()
	}
	if err := x.s.Reset(pause, func() error { return x.m.Reset(patience.Context(x), nil) }); err != nil {
		x.Fatal(err)
	}
	if err := x.m.Resume(); err != nil {
		x.Fatal(err)
	}
}

// TestResetOfOptimized resets a guest with programs and definitions that run in
// it, in kernel and in user code. Their sites must get their jumps back without a
// request, they must run in the guest again, and their counts must continue and add up.
func TestResetOfOptimized(t *testing.T) {
	x := onBuiltin(t, 2)
	x.attachPrivileges()
	names := []string{"kernel", "user_own", "def_user", "def_kernel"}
	last := map[string]uint64{}
	for boot := range 4 {
		if boot > 0 {
			x.reset()
		}
		for _, name := range names {
			last[name] = x.await(name, "in the guest, and hit there", func(i session.Info) bool {
				if i.Stats.Hits < last[name] {
					t.Fatalf("boot %d: %s: %d hits, and %d before", boot, name, i.Stats.Hits, last[name])
				}
				return i.Site.InGuest && i.Stats.InGuest > last[name]+2
			}).Stats.InGuest
		}
	}
	if err := x.m.Pause(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		i, err := x.s.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		if s := i.Stats; s.Hits != s.Handled+s.Filtered+s.Missed || s.Hits < last[name] {
			t.Errorf("%s: %+v", name, s)
		}
		if p := i.Program; p != nil && (p.Runs < last[name] || p.Faults != 0) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// attachPrivileges attaches programs and definitions that run in the guest, at kernel and at user code.
func (x *onGuest) attachPrivileges() {
	x.Helper()
	for _, section := range []string{"kprobe/vfs_read", "kprobe/user_hot"} {
		if _, err := x.s.AttachObject(session.ObjectSpec{File: objectFile(x.T, "privileges.o"), Section: section}); err != nil {
			x.Fatal(err)
		}
	}
	if _, err := x.s.Attach([]session.Spec{{Def: "p:def_user user_hot a=%di"}, {Def: "p:def_kernel vfs_read fd=%di"}}, nil); err != nil {
		x.Fatal(err)
	}
}

// TestResetFails: after a reset that has failed, and left the guest's memory as it was, the counts of programs and definitions in the guest
// continue from where they were, and events come again.
func TestResetFails(t *testing.T) {
	x := onBuiltin(t, 2)
	x.attachPrivileges()
	names := []string{"kernel", "user_own", "def_user", "def_kernel"}
	moves := func(name string, than uint64) uint64 {
		return x.await(name, "in the guest, and hit there", func(i session.Info) bool { return i.Site.InGuest && i.Stats.InGuest > than }).Stats.InGuest
	}
	for _, name := range names {
		moves(name, 0)
	}
	failed := errors.New("no memory for another one")
	ctx, cancel := context.WithCancel(patience.Context(t))
	defer cancel()
	for range 2 {
		before := map[string]session.Info{}
		if err := x.s.Reset(x.m.Pause, func() error {
			for _, name := range names {
				i, err := x.s.Get(name)
				if err != nil {
					t.Fatal(err)
				}
				before[name] = i
			}
			return failed
		}); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		for _, name := range names {
			i, err := x.s.Get(name)
			if err != nil {
				t.Fatal(err)
			}
			// Runs under way count as missed while the memory may be lost.
			if a, b := i.Stats, before[name].Stats; a.InGuest != b.InGuest || a.Handled+a.Missed > b.Handled+b.Missed || a.Missed > b.Missed {
				t.Errorf("%s: %+v, and before %+v", name, a, b)
			}
		}
		sub := x.s.Subscribe(nil, event.Queue{}, session.AllEvents)
		if err := x.m.Resume(); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			moves(name, before[name].Stats.InGuest)
		}
		for from := map[string]bool{}; !from["kprobes/def_user"] || !from["kprobes/def_kernel"]; {
			ev, err := sub.Next(ctx)
			if err != nil {
				t.Fatalf("%v; events of %v", err, from)
			}
			from[session.ProbeOf(ev).Name()] = true
		}
		sub.Close()
	}
}
