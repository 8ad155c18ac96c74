package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/files"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveKept starts a daemon with --state.
func serveKept(t *testing.T, dir string) *harness {
	t.Helper()
	h := newHarness(t)
	o := defaultOptions()
	o.vcpus, o.state = 2, dir
	h.g = newFakeGuest(t, o.vcpus)
	k, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	h.kept = k
	return h.serve(h.g, o)
}

// TestStateFailsRequests: what cannot be kept for the next start fails its request: nothing is attached then, and what is done
// already says so.
func TestStateFailsRequests(t *testing.T) {
	dir := t.TempDir()
	h := serveKept(t, dir)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:first vfs_read"}); err != nil {
		t.Fatal(err)
	}
	path := h.kept.path
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
	set := func(path string) {
		h.kept.mu.Lock()
		defer h.kept.mu.Unlock()
		h.kept.path, h.kept.last = path, nil
	}
	set(filepath.Join(dir, "gone", "attached.json"))
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
	set(path)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:third vfs_read"}); err != nil {
		t.Fatal(err)
	}
	if text := read(); strings.Contains(text, "kprobes/first") || !strings.Contains(text, "kprobes/third") {
		t.Errorf("when it can be written again: %s", text)
	}
}

// FuzzState: a file of --state may hold anything: what is read is written in a form that is read again as the same.
func FuzzState(f *testing.F) {
	for _, seed := range []string{
		"", "{", "null", "[]", `{"version":2}`, `{"version":-1}`, `{"probes":[{"def":"p:kprobes/a vfs_read","stay":true}]}`,
		`{"version":1,"probes":[{"def":"x"}],"objects":[{"attach":{"object":"AAA=","section":"kprobe/x"},"probes":{"a/b":true},"maps":[{"name":"m","entries":[[["AA==","AQ=="]]]}]}],"disarmed":true}`,
		`{"version":1,"scripts":[{"run":{"script":"BEGIN { }","detach":"x"}}],"pending":{"probes":[{"def":"p x"}],"pending":{}},"leftOut":["x"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := readState(b)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		x.Version = stateVersion
		once, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		y, err := readState(once)
		if err != nil {
			t.Fatalf("%v: %s", err, once)
		}
		if twice, err := json.Marshal(y); err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%s is read as %s: %v", once, twice, err)
		}
		k := &state{pending: x.attachments}
		k.forget(false, "a", "kprobes/a")
		k.forget(true, "x")
		_ = k.waiting()
	})
}

// TestStateBehindLink: a folder that the kernel finds by a link, and .. after it, is the one that is checked.
func TestStateBehindLink(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"own": 0o700, "open": 0o777, "private": 0o700} {
		for _, d := range []string{name, name + "/sub"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"open", "private"} {
		if err := os.Symlink("../"+name+"/sub", filepath.Join(dir, "own", "to-"+name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := openState(dir + "/own/to-open/../state"); !errors.Is(err, files.ErrUntrusted) {
		t.Errorf("in a folder that others may write to: %v", err)
	}
	for _, at := range []string{"own/state", "open/state"} {
		if _, err := os.Lstat(filepath.Join(dir, at)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", at, err)
		}
	}
	k, err := openState(dir + "/own/to-private/../state")
	if err != nil {
		t.Fatal(err)
	}
	k.close()
	if want := filepath.Join(dir, "private", "state", stateName); k.path != want {
		t.Errorf("kept in %s, want %s", k.path, want)
	}
}
