package http

import (
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestFunctionLeftOutWhole: where one of a function's exits cannot be probed a pattern
// leaves the function out with all of them.
func TestFunctionLeftOutWhole(t *testing.T) {
	h := serveFake(t, nil)
	img := h.g.Image()
	for _, sym := range img.Symbols() {
		if sym.Kind != guest.SymFunc || sym.User {
			continue
		}
		exits, err := probe.NewFunctions(img).Exits(sym)
		if err != nil || len(exits) < 2 {
			continue
		}
		last := exits[len(exits)-1]
		taken := h.attach(fmt.Sprintf("p:g/e %s+%d", sym.Name, uint64(last.Addr-sym.Addr)))
		list, err := h.c.Apply(h.ctx, api.ProbeSpec{Def: "r:g/e " + sym.Name[:len(sym.Name)-1] + "[" + sym.Name[len(sym.Name)-1:] + "]", AtRets: true})
		ps, lerr := h.c.Probes(h.ctx)
		if err == nil || lerr != nil || len(ps) != 1 || ps[0].ID != taken[0].ID {
			t.Errorf("%s, %d exits: %+v, %v; %d probes, %v", sym.Name, len(exits), list, err, len(ps), lerr)
		}
		return
	}
	t.Fatal("no function has two exits")
}
