package http

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestJprobeAnswer is about the fields that only jprobes with mirrors have, and the counts and the list after a hit. TestJprobeMirror of
// probe/session has the jprobe.
func TestJprobeAnswer(t *testing.T) {
	h := serveFake(t, nil)
	ps, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:j do_fork", Mirror: "jdo_fork", MirrorStack: 17})
	if err != nil {
		t.Fatal(err)
	}
	if p := ps[0]; p.Kind != "j" || p.Mirror != "jdo_fork" || p.MirrorStack != 24 || p.Def != "p:kprobes/j do_fork" {
		t.Errorf("listed as %+v", p)
	}
	var at probe.Regs
	h.g.hit(t, 0, "do_fork", ps[0].Offset, func(r *probe.Regs) { r.RDI = 5; at = *r })
	mirror, err := h.g.img.Lookup("jdo_fork")
	if err != nil {
		t.Fatal(err)
	}
	end, err := h.g.img.Lookup("jprobe_return")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := h.g.BytesAt(end.Addr, 1); err != nil || b[0] != 0xcc {
		t.Errorf("no breakpoint at the mirror's end: % x, %v", b, err)
	}
	if list, err := h.c.Probes(h.ctx); err != nil || len(list) != 1 {
		t.Errorf("%d probes listed, %v", len(list), err)
	}
	regs := at
	regs.RDI, regs.RIP = 99, uint64(end.Addr)
	v := h.g.Deliver(0, probe.State{Regs: &regs}, probe.Trap{Kind: probe.TrapBreakpoint})
	if v.Action != probe.Resume || regs.RDI != 5 || guest.GVA(regs.RIP) == mirror.Addr {
		t.Errorf("behind the mirror: %+v, %+v", v, regs)
	}
	if p, err := h.c.Probe(h.ctx, "j"); err != nil || p.Stats.Handled != 1 || p.Stats.SecondExits != 1 {
		t.Errorf("counts %+v, %v", p.Stats, err)
	}
}
