package http

import (
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestPendingModule: definitions of a module that is not there are accepted and wait for it,
// by all that a client can do with a probe; they are armed when it comes, gone with it, and
// count on when it comes again. Its symbols without its name do not wait.
func TestPendingModule(t *testing.T) {
	o := defaultOptions()
	g := newFakeGuest(t, o.vcpus)
	k := &probetest.Kernel{Image: g.img, Module: "mod", Absent: true}
	g.view = k
	read, err := g.img.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	k.Freed = guest.Range{Start: read.Addr, End: read.Addr + guest.GVA(read.Size)}
	h := serveGuest(t, g, o)
	module := func(there bool) {
		t.Helper()
		k.Absent, k.Freed = !there, guest.Range{}
		if err := g.WriteMemory(0, read.Addr, g.img.Code(read.Addr, int(read.Size))); err != nil {
			t.Fatal(err)
		}
		if !there {
			k.Freed = guest.Range{Start: read.Addr, End: read.Addr + guest.GVA(read.Size)}
		}
		if err := g.Engine().TargetChanged(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, pending bool, hits ...uint64) {
		t.Helper()
		for i, name := range []string{"m/in", "m/ret", "kprobes/p_mod_vfs_read_0"} {
			p, err := h.c.Probe(h.ctx, name)
			armed, addr, symbol := !pending && p.Enabled, api.Hex(read.Addr), "vfs_read"
			if pending {
				addr, symbol = 0, "mod:vfs_read"
			}
			if err != nil || p.Pending != pending || p.Gone || p.Armed != armed && i < 2 || p.Addr&^4 != addr || p.Symbol != symbol || p.Stats.Hits != hits[i] {
				t.Errorf("%s: %+v, %v; want %d hits", what, p, err, hits[i])
			}
		}
	}
	ps := h.attach("p:m/in mod:vfs_read a=$arg1", "r:m/ret mod:vfs_read got=$retval", "p mod:vfs_read")
	if ps[0].Def != "p:m/in mod:vfs_read a=$arg1" || !ps[0].Pending || ps[0].Armed {
		t.Errorf("%+v", ps[0])
	}
	for _, def := range []string{"p nomod:vfs_read count=$argn", "p vfs_reed", "p nomod:vfs_read count", "w:x @mod:vfs_read:8", "p mod:vfs_*"} {
		var e *api.Error
		if _, err := h.c.Apply(h.ctx, api.ProbeSpec{Def: def}); !errors.As(err, &e) || e.Column == nil {
			t.Errorf("%s: %v", def, err)
		}
	}
	check("at first", true, 0, 0, 0)
	off, on, filter := false, true, "a == 7"
	if _, err := h.c.Patch(h.ctx, api.PatchProbe{Enabled: &off}, "m/in", "p_mod_vfs_read_0"); err != nil {
		t.Error(err)
	}
	if _, err := h.c.Patch(h.ctx, api.PatchProbe{Enabled: &on}, "m/in"); err != nil {
		t.Error(err)
	}
	if ps, err := h.c.Patch(h.ctx, api.PatchProbe{Filter: &filter}, "m/in"); err != nil || !ps[0].Pending || ps[0].Filter != filter {
		t.Error(ps, err)
	}
	hit := func(arg uint64) {
		t.Helper()
		g.hit(t, 0, "vfs_read", 0, func(r *probe.Regs) { r.RDI = arg })
	}
	hit(7)
	check("before it comes", true, 0, 0, 0)

	s := h.stream(h.ctx, api.StreamEvents{})
	next[api.Start](h, s, api.RecordStart)
	module(true)
	hit(7)
	hit(8)
	check("loaded", false, 2, 2, 0)
	if r := next[api.Hit](h, s, api.RecordHit); r.Addr&^4 != api.Hex(read.Addr) || r.Symbol != "vfs_read+0x4" {
		t.Errorf("%+v", r)
	}
	module(false)
	hit(7)
	check("gone", true, 2, 2, 0)
	module(true)
	hit(7)
	check("back", false, 3, 3, 0)
	module(false)
	if err := g.Reset(h.ctx); err != nil {
		t.Fatal(err)
	}
	check("reset", true, 3, 3, 0)
	module(true)
	hit(7)
	check("back behind a reset", false, 4, 4, 0)

	if _, err := h.c.Detach(h.ctx, "m/ret"); err != nil {
		t.Error(err)
	}
	module(false)
	h.attach("-:m/in", "-:kprobes/p_mod_vfs_read_0")
	if ps, err := h.c.Probes(h.ctx); err != nil || len(ps) != 0 {
		t.Errorf("%+v, %v", ps, err)
	}
	alone := h.attach("p:alone mod:nosuch")
	module(true)
	if p, err := h.c.Probe(h.ctx, alone[0].Name); err != nil || p.Pending || !p.Gone || p.Armed {
		t.Errorf("%+v, %v", p, err)
	}
}
