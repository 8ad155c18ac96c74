package machine

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe/session"
)

// TestCycles attaches and detaches probes of every kind on a running guest, which hits
// them meanwhile, on the host and in the guest: the heap, executable guest memory and
// memory that is shared with the guest stay what they were. GUESTPROBE_CYCLES=100000
// makes more of them.
func TestCycles(t *testing.T) {
	cycles := 400
	if testing.Short() {
		cycles = 44
	}
	if s := os.Getenv("GUESTPROBE_CYCLES"); s != "" {
		var err error
		if cycles, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	x := onBuiltin(t, 2)
	m, e := x.m, x.m.Engine()
	object := objectFile(t, "privileges.o")
	defs := []session.Spec{
		{Def: "r:c user_hot $retval"}, {Def: "r:c vfs_read $retval"}, {Def: "r:c user_checksum"}, {Def: "r:c do_fork $retval"},
		{Def: "p:c user_hot a=%di"}, {Def: "p:c vfs_read fd=%di", Filter: "fd < 3"}, {Def: "p:c schedule+4"}, {Def: "p:c memcpy"},
		{Def: "p:c vfs_read", Args: 3}, {Def: "r:c user_hot a=$arg7"},
	}
	rng := rand.New(rand.NewPCG(3, 4))
	hit := 0
	cycle := func(i int) {
		var a session.Attached
		var err error
		what := "a program"
		if n := i % (len(defs) + 1); n == len(defs) {
			a, err = x.s.AttachObject(session.ObjectSpec{File: object, Section: "kprobe/user_hot"})
		} else {
			what = defs[n].Def
			a, err = x.s.Attach(defs[n:n+1], nil)
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		name := a.Probes[0].Name()
		if rng.IntN(2) == 0 {
			if err := e.Optimize(); err != nil {
				t.Fatal(err)
			}
		}
		for range rng.IntN(3) * 10 { // for it to be hit, if it ever is
			p, err := x.s.Get(name)
			if err != nil {
				t.Fatal(err)
			}
			if p.Stats.Hits != 0 {
				hit++
				break
			}
			breathe()
		}
		if s := m.State(); s.Phase != PhaseRunning {
			t.Fatalf("cycle %d, %s: the guest is %s: %v", i, what, s.Phase, s.Crash)
		}
		if gone, err := x.s.Detach(name); err != nil {
			t.Fatal(err)
		} else if s := gone[0].Stats; s.Hits != s.Handled+s.Filtered+s.Missed {
			t.Errorf("%s: %+v", what, s)
		}
	}
	type use struct {
		heap   uint64
		exec   int
		shared [2]uint64 // left, by level
	}
	now := func() (u use) {
		if err := e.Collect(); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.GC() // finalizers of the first one have run
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		u.heap, u.exec = ms.HeapAlloc, e.CollectorStats().Used
		for i := range u.shared {
			u.shared[i] = m.SharedFree(i == 1)
		}
		return u
	}
	var first use
	start := time.Now()
	for i := range cycles {
		cycle(i)
		if i == cycles/4 {
			first = now()
		}
	}
	last := now()
	s := e.CollectorStats()
	t.Logf("%d cycles, %d of them hit, in %v: a quarter of the way %+v, at the end %+v; %+v", cycles, hit, time.Since(start), first, last, s)
	// Conservatism: what looks as if somebody were in it. And a page that was mapped for
	// a board stays, and is looked up on the host: as many as boards were there at a time,
	// between two collections, and no more than there is room for.
	const slack = 2 << 20
	if last.heap > first.heap+slack {
		t.Errorf("the heap has grown from %d to %d bytes", first.heap, last.heap)
	}
	if last.exec > 256<<10 {
		t.Errorf("%d bytes of executable memory are in use", last.exec)
	}
	for i := range last.shared {
		if last.shared[i]+slack < first.shared[i] {
			t.Errorf("level %d: %d bytes of shared memory are left of %d", i, last.shared[i], first.shared[i])
		}
	}
	if s := m.State(); s.Phase != PhaseRunning || s.Checks.Count != 0 {
		t.Errorf("%s, %d failed checks", s.Phase, s.Checks.Count)
	}
}
