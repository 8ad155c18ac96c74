package http

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestPendingAnswer is about the fields of a probe whose module is not there, and of its record when the module has come. TestPendingModule of
// probe/session has all changes of such probes.
func TestPendingAnswer(t *testing.T) {
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
	ps := h.attach("p:m/in mod:vfs_read a=$arg1", "p:alone mod:nosuch")
	if p := ps[0]; p.Def != "p:m/in mod:vfs_read a=$arg1" || !p.Pending || p.Armed || p.Gone || p.Addr != 0 || p.Symbol != "mod:vfs_read" {
		t.Errorf("%+v", p)
	}
	s := h.stream(h.ctx, api.StreamEvents{})
	next[api.Start](h, s, api.RecordStart)
	k.Absent, k.Freed = false, guest.Range{}
	if err := g.Poke(read.Addr, g.img.Code(read.Addr, int(read.Size))); err != nil {
		t.Fatal(err)
	}
	if err := g.Engine().TargetChanged(); err != nil {
		t.Fatal(err)
	}
	g.hit(t, 0, "vfs_read", 0, func(r *probe.Regs) { r.RDI = 7 })
	if r := next[api.Hit](h, s, api.RecordHit); r.Addr&^4 != api.Hex(read.Addr) || r.Symbol != "vfs_read+0x4" {
		t.Errorf("%+v", r)
	}
	if p, err := h.c.Probe(h.ctx, "m/in"); err != nil || p.Pending || p.Gone || !p.Armed || p.Addr&^4 != api.Hex(read.Addr) || p.Symbol != "vfs_read" || p.Stats.Hits != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := h.c.Probe(h.ctx, "alone"); err != nil || p.Pending || !p.Gone || p.Armed {
		t.Errorf("%+v, %v", p, err)
	}
}
