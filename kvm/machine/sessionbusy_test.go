package machine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe/session"
)

// TestBusyPrograms: programs that end only at their budget, of each kind that takes long,
// delay neither a pause nor a detach, on the host and in the guest. Both take effect
// while the program runs on all vCPUs, and the final counts add up.
func TestBusyPrograms(t *testing.T) {
	for _, tc := range []struct {
		section string
		guest   bool // the program can run in the guest
	}{
		{"kprobe/user_hot", true},           // an endless loop
		{"kprobe/user_hot+0x0", true},       // reads that fail
		{"kprobe/user_red_zone", true},      // long keys
		{"kprobe/user_red_zone+0x0", false}, // stack walks
	} {
		for _, onHost := range []bool{true, false} {
			if !onHost && !tc.guest || testing.Short() && strings.HasPrefix(tc.section, "kprobe/user_hot") { // these take minutes on an emulated host
				continue
			}
			t.Run(fmt.Sprintf("%s, on host %v", tc.section, onHost), func(t *testing.T) {
				onBuiltin(t, 2).attachBusy(session.ObjectSpec{File: objectFile(t, "busy.o"), Section: tc.section, OnHost: onHost, At: "user_hot"})
			})
		}
	}
}

// attachBusy repeatedly attaches a program, pauses and resumes the guest, and detaches the program.
func (x *onGuest) attachBusy(o session.ObjectSpec) {
	x.Helper()
	var pause, detach time.Duration
	runs := uint64(0)
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		a, err := x.s.AttachObject(o)
		if err != nil {
			x.Fatal(err)
		}
		first := x.s.Describe(a.Probes)[0]
		name := first.Name
		if !o.OnHost {
			x.await(name, "in the guest", func(i session.Info) bool { return i.Program.InGuest > 0 })
		}
		x.await(name, "run", func(i session.Info) bool { return i.Program.Faults > 0 })
		start := time.Now()
		err = x.m.Pause()
		pause = max(pause, time.Since(start))
		if err != nil || x.m.Phase() != PhasePaused {
			x.Fatal(x.m.Phase(), err)
		}
		if err := x.m.Resume(); err != nil {
			x.Fatal(err)
		}
		x.await(name, "another run", func(i session.Info) bool { return i.Program.Runs > first.Program.Runs })
		start = time.Now()
		gone, err := x.s.Detach(name)
		detach = max(detach, time.Since(start))
		if err != nil {
			x.Fatal(err)
		}
		s, p := gone[0].Stats, gone[0].Program
		if s.Hits != s.Handled+s.Filtered+s.Missed || s.Handled != p.Runs || s.Handled == 0 {
			x.Errorf("%+v, %+v", s, p)
		}
		if !strings.Contains(p.Fault, "budget used up") {
			x.Errorf("ended with %q", p.Fault)
		}
		runs += p.Runs
	}
	x.checkNothingLeft()
	if ph := x.m.Phase(); ph != PhaseRunning {
		x.Error(ph)
	}
	x.Logf("%d runs; a pause took %v at most, a detach %v", runs, pause, detach)
}
