package http

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestScriptUnsafeRequest is about the field unsafe: a script that changes what the guest does is refused without it. The suite of
// probe/session has what such a script does.
func TestScriptUnsafeRequest(t *testing.T) {
	h := serveFake(t, nil)
	const text = `kprobe:vfs_read /arg2 == 7/ { override(arg1 + 41); @after++; }`
	_, err := h.c.RunScript(h.ctx, api.RunScript{Script: text})
	if e := (*api.Error)(nil); !errors.As(err, &e) || e.Code != api.CodeBadScript || !strings.Contains(e.Message, "is an unsafe function being used in safe mode") {
		t.Fatal(err)
	}
	s, start := h.script(api.RunScript{Script: text, Unsafe: true})
	if p := start.Probes[0]; p.Runs != api.RunsOnHost {
		t.Errorf("runs %s: %s", p.Runs, p.OnHost)
	}
	h.read(0, 7)
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	if out, warnings, _ := h.readRest(s); out != "\n\n@after: 1\n" || len(warnings) > 0 {
		t.Errorf("prints %q, %q", out, warnings)
	}
	h.checkNoScript()
}
