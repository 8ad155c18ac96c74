package http

import (
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestScriptWarningRecords checks the records of warnings in both formats, for a pattern that skips functions. The suite of probe/session
// checks all kinds of patterns.
func TestScriptWarningRecords(t *testing.T) {
	h := serveFake(t, nil)
	said := regexp.MustCompile(`WARNING: \S+: \d+ functions? that match(es)? cannot be probed and (are|is) left out: .* \(\d+\)`)
	for _, format := range []string{api.ScriptText, api.ScriptJSON} {
		s, start := h.script(api.RunScript{Script: "kprobe:* /0/ { @++; }", Format: format})
		if len(start.Probes) == 0 {
			t.Errorf("%s: no probes", format)
		}
		if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
			t.Fatal(err)
		}
		if _, warnings, _ := h.readRest(s); !said.MatchString(strings.Join(warnings, "\n")) {
			t.Errorf("%s: %q", format, warnings)
		}
	}
	h.checkNoScript()
}
