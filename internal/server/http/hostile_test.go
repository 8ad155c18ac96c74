package http

import (
	"strconv"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// stageOf returns where the block and the code of a probe in the guest are.
func (h *harness) stageOf(name string) (block guest.GVA, n uint64) {
	h.Helper()
	k, err := h.kprobe(name)
	if err != nil || k.Stage == nil {
		h.Fatalf("%s: %+v, %v", name, k, err)
	}
	return k.Stage.Block, 2*k.Stage.Stride + 64
}

// TestScribblingGuest has the guest's kernel write over the run blocks, maps and
// rings of programs of both privileges while they run, and then over the profile
// that says how vCPUs are found. It may come to whatever end: the daemon answers,
// every count is defined and closes, and a reset makes all of it good.
func TestScribblingGuest(t *testing.T) {
	h := serveMachine(t, 2)
	m := h.s.guest.(machineGuest).Machine
	for _, section := range []string{"kprobe/vfs_read", "kprobe/user_hot"} {
		if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "privileges.o"), Section: section}); err != nil {
			t.Fatal(err)
		}
	}
	// One with hash maps, whose code follows the segment table in its block.
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "count.o")}); err != nil {
		t.Fatal(err)
	}
	h.attach("p:def_user user_hot a=%di", "p:def_kernel vfs_read fd=%di")
	names := []string{"count", "kernel", "user_own", "def_user", "def_kernel"}
	fresh := func() {
		t.Helper()
		for _, name := range names {
			was := h.inGuest(name)
			h.await(name, "in the guest, and hit there", func(p api.Probe) bool { return p.Runs == api.RunsInGuest && h.inGuest(name) != was })
		}
	}
	memset, err := m.Image().Lookup("memset")
	if err != nil {
		t.Fatal(err)
	}
	vfsRead, err := m.Image().Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.Image().Profile()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(names, "count's segment table", "profile") {
		for _, fill := range []uint64{0xff, 0x41, 0x01, 0x00} {
			fresh()
			at, n := p.FlagsAt, uint64(8)
			switch name {
			case "profile":
			case "count's segment table":
				at, _ = h.stageOf("count")
				at, n = at+4416, 512 // docs/programs.md: the run blocks
			default:
				at, n = h.stageOf(name)
				at, n = at-1024, n+2048 // what was given out before and behind it, too
			}
			if _, err := m.Call(h.ctx, memset.Addr, uint64(at), fill, n); err != nil {
				t.Logf("%s, %#x: %v", name, fill, err) // the guest has come to its end on the way
			}
			if name == "count's segment table" {
				// The next runs on this vCPU are lost in it, or end the guest.
				for range 3 {
					_, _ = m.Call(h.ctx, vfsRead.Addr, 3, 0, 200)
				}
			}
			for _, name := range names {
				p, err := h.c.Probe(h.ctx, name)
				if err != nil {
					t.Fatal(err)
				}
				if s := p.Stats; s.Hits != s.Handled+s.Filtered+s.Missed {
					t.Errorf("%s: counts do not close: %+v", name, s)
				}
			}
			ms, err := h.c.Maps(h.ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range ms {
				if _, err := h.c.Map(h.ctx, strconv.FormatUint(uint64(x.ID), 10)); err != nil {
					t.Error(err)
				}
			}
			h.s.probes.Poll()
			if ph := m.State().Phase; ph != machine.PhaseRunning {
				t.Logf("%s, %#x: %s", name, fill, ph)
			}
			if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fresh()
	for _, name := range names {
		if _, err := h.c.Detach(h.ctx, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
