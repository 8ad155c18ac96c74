package http

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveKept starts a daemon with --state.
func serveKept(t *testing.T, dir string) *harness {
	t.Helper()
	h := newHarness(t)
	o := defaultOptions()
	o.vcpus, o.state = 2, dir
	h.g = newFakeGuest(t, o.vcpus)
	k, err := saved.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	h.kept = k
	return h.serve(h.g, o)
}

// TestStateFailsRequests: what cannot be kept for the next start fails its request: nothing is attached then, and what is done
// already says so.
func TestStateFailsRequests(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	h := serveKept(t, dir)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:first vfs_read"}); err != nil {
		t.Fatal(err)
	}
	path := h.kept.Path()
	read := func() string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if text := read(); !strings.Contains(text, "kprobes/first") {
		t.Errorf("attached and answered, and not kept: %s", text)
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	away := filepath.Join(t.TempDir(), "away")
	move(dir, away)
	refused := func(err error, want string) {
		t.Helper()
		var wire *api.Error
		if !errors.As(err, &wire) || wire.Code != api.CodeNotKept || wire.Errno != "ENOENT" || !strings.Contains(wire.Message, want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:second vfs_read"})
	refused(err, "it cannot be kept for the next start: ")
	_, err = h.c.DetachScript(h.ctx, api.RunScript{Script: "kprobe:vfs_read { @ = count(); }", Format: api.ScriptText, Detach: "reads"})
	refused(err, "it cannot be kept for the next start: ")
	if ps, err := h.c.Probes(h.ctx); err != nil || len(ps) != 1 {
		t.Errorf("%d probes, %v; want the first one alone", len(ps), err)
	}
	if ss, err := h.c.Scripts(h.ctx); err != nil || len(ss) != 0 {
		t.Errorf("%+v, %v", ss, err)
	}
	_, err = h.c.SetEnabled(h.ctx, "first", false)
	refused(err, "done, but it cannot be kept")
	_, err = h.c.Detach(h.ctx, "first")
	refused(err, "done, but it cannot be kept")
	move(away, dir)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:third vfs_read"}); err != nil {
		t.Fatal(err)
	}
	if text := read(); strings.Contains(text, "kprobes/first") || !strings.Contains(text, "kprobes/third") {
		t.Errorf("when it can be written again: %s", text)
	}
}
