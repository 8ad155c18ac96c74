package http

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestScriptTakes: of maps that are printed and emptied again and again, while programs in the
// guest add to them all the time, every hit is printed once, and so is what programs on the
// host add.
func TestScriptTakes(t *testing.T) {
	h := serveMachine(t, 2)
	h.attach("p:first user_hot a=%di")
	h.await("first", "in the guest", func(p api.Probe) bool { return p.Runs == api.RunsInGuest && h.inGuest("first") > 0 })
	if _, err := h.c.Detach(h.ctx, "first"); err != nil {
		t.Fatal(err)
	}
	const counts = `kprobe:user_hot { @n = count(); @k[arg1 & 3] = count(); @s[arg1 & 7] = sum(1); @there = 1; } interval:ms:400 { if (@there) { exit(); } } `
	for name, r := range map[string]api.RunScript{
		"by an option":         {Script: counts + `interval:ms:2 { @ticks = count(); @n = count(); }`, IntervalMS: 1},
		"print and then clear": {Script: counts + `interval:ms:2 { @ticks = count(); @n = count(); print(@n); clear(@n); print(@k); clear(@k); print(@s); clear(@s); }`},
		"print and then zero":  {Script: counts + `interval:ms:2 { @ticks = count(); @n = count(); print(@n); zero(@n); print(@k); zero(@k); print(@s); zero(@s); }`},
	} {
		s, start := h.script(r)
		if p := start.Probes[0]; p.Runs != api.RunsInGuest {
			t.Fatalf("it runs on the host: %s", p.OnHost)
		}
		out, warnings, end := h.rest(s)
		sums, times := map[string]uint64{}, 0
		for _, line := range strings.Split(out, "\n") {
			key, value, _ := strings.Cut(line, ": ")
			key, _, _ = strings.Cut(key, "[")
			if n := uint64(0); key != "" {
				fmt.Sscan(value, &n)
				sums[key] += n
				times++
			}
		}
		handled := end.Probes[0].Stats.Handled
		if handled == 0 || sums["@k"] != handled || sums["@s"] != handled || sums["@n"] != handled+sums["@ticks"] || sums["@ticks"] == 0 || len(warnings) > 0 {
			t.Errorf("%s: %d lines with %v of %d hits; warnings %q", name, times, sums, handled, warnings)
		}
		t.Logf("%s: %d lines with %v of %d hits", name, times, sums, handled)
	}
}
