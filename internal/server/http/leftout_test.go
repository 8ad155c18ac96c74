package http

import (
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestPatternLeavesOut: patterns of all kinds leave out what cannot be probed, and say how many and why.
func TestPatternLeavesOut(t *testing.T) {
	h := serveMachine(t, 1)
	said := regexp.MustCompile(`WARNING: \S+: \d+ functions? that match(es)? cannot be probed and (are|is) left out: .* \(\d+\)`)
	for _, at := range []string{"kprobe:*", "kretprobe:*", "uprobe:*", "uretprobe:*", "fentry:*", "fexit:*"} {
		for _, format := range []string{api.ScriptText, api.ScriptJSON} {
			s, start := h.script(api.RunScript{Script: at + " /0/ { @++; }", Format: format})
			if len(start.Probes) == 0 {
				t.Errorf("%s: no probes", at)
			}
			if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
				t.Fatal(err)
			}
			_, warnings, _ := h.rest(s)
			if kernel := !strings.HasPrefix(at, "u"); kernel != said.MatchString(strings.Join(warnings, "\n")) && kernel {
				t.Errorf("%s: %q", at, warnings)
			}
		}
	}
	h.noScript()
}
