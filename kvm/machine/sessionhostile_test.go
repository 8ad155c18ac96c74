package machine

import (
	"strconv"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/session"
)

// stageOf returns the addresses of the block and the code of a probe in the guest.
func (x *onGuest) stageOf(name string) (block guest.GVA, n uint64) {
	x.Helper()
	i, err := x.s.Get(name)
	if err != nil || i.Site.Probe.Stage == nil {
		x.Fatalf("%s: %+v, %v", name, i.Site.Probe, err)
	}
	s := i.Site.Probe.Stage
	return s.Block, 2*s.Stride + 64
}

// TestScribblingGuest makes the guest's kernel overwrite the run blocks, maps and
// rings of programs of both privileges while they run, and then the profile
// that describes how to find vCPUs. The guest may crash. But the session must answer,
// all counts must be defined and add up, and a reset must repair everything.
func TestScribblingGuest(t *testing.T) {
	x := onBuiltin(t, 2)
	m, ctx := x.m, patience.Context(t)
	x.attachPrivileges()
	// An object with hash maps: its code follows the segment table in its block.
	if _, err := x.s.AttachObject(session.ObjectSpec{File: objectFile(t, "count.o")}); err != nil {
		t.Fatal(err)
	}
	names := []string{"count", "kernel", "user_own", "def_user", "def_kernel"}
	inGuest := func(name string) uint64 {
		t.Helper()
		i, err := x.s.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		return i.Stats.InGuest
	}
	fresh := func() {
		t.Helper()
		for _, name := range names {
			was := inGuest(name)
			x.await(name, "in the guest, and hit there", func(i session.Info) bool { return i.Site.InGuest && i.Stats.InGuest != was })
		}
	}
	memset, vfsRead := address(t, m, "memset"), address(t, m, "vfs_read")
	p, err := m.Image().Profile()
	if err != nil {
		t.Fatal(err)
	}
	fills := []uint64{0xff, 0x41, 0x01, 0x00}
	if testing.Short() {
		fills = fills[:1]
	}
	for _, name := range append(names, "count's segment table", "profile") {
		for _, fill := range fills {
			fresh()
			at, n := p.FlagsAt, uint64(8)
			switch name {
			case "profile":
			case "count's segment table":
				at, _ = x.stageOf("count")
				at, n = at+4416, 512 // docs/engine.md: the run blocks
			default:
				at, n = x.stageOf(name)
				at, n = at-1024, n+2048 // including the memory allocated before and after it
			}
			if _, err := m.Call(ctx, memset, uint64(at), fill, n); err != nil {
				t.Logf("%s, %#x: %v", name, fill, err) // the guest ended before
			}
			if name == "count's segment table" {
				// The next runs on this vCPU are lost, or end the guest.
				for range 3 {
					_, _ = m.Call(ctx, vfsRead, 3, 0, 200)
				}
			}
			for _, name := range names {
				i, err := x.s.Get(name)
				if err != nil {
					t.Fatal(err)
				}
				if s := i.Stats; s.Hits != s.Handled+s.Filtered+s.Missed {
					t.Errorf("%s: counts do not close: %+v", name, s)
				}
			}
			for _, i := range x.s.Maps() {
				if err := x.s.ReadMap(strconv.FormatUint(i.ID, 10), func(_ session.MapInfo, m *bpf.Map) error {
					m.RingStats()
					m.Walk(func([]byte, [][]byte) bool { return true })
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
			x.s.Poll()
			if ph := m.Phase(); ph != PhaseRunning {
				t.Logf("%s, %#x: %s", name, fill, ph)
			}
			x.reset()
		}
	}
	fresh()
	for _, name := range names {
		if _, err := x.s.Detach(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
