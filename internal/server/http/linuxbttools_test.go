package http

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// toolRefusals are accepted reasons why one of bpftrace's tools does not start on a Debian kernel for virtual machines.
var toolRefusals = regexp.MustCompile(`is no file of the guest \(write where it is there|No matches for (k(ret)?probe|tracepoint) |does not contain a field named|cgroup_path is not supported`)

// TestLinuxBpftraceTools starts and stops each tool of the bpftrace in -bpftrace on a Linux guest, and prints the results. If a tool
// does not start, the reason must be one of toolRefusals.
func TestLinuxBpftraceTools(t *testing.T) {
	dirs := kvmtest.RequireLinux(t)
	tools, err := filepath.Glob(filepath.Join(*bpftraceRoot, "usr/sbin/*.bt"))
	if err != nil || *bpftraceRoot == "" || len(tools) == 0 {
		t.Fatalf("-bpftrace %q has no tools of bpftrace's (%v): make test-bpftrace-tools gives them", *bpftraceRoot, err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, "echo ready;read x")
			h.console("ready")
			runs := 0
			for _, tool := range tools {
				name := strings.TrimSuffix(filepath.Base(tool), ".bt")
				text, err := os.ReadFile(tool)
				if err != nil {
					t.Fatal(err)
				}
				err = h.startAndStop(api.RunScript{Script: string(text), Name: name, Format: api.ScriptText})
				if err == nil {
					runs++
					continue
				}
				first, _, _ := strings.Cut(err.Error(), "\n")
				t.Logf("%s: %s", name, first)
				if !toolRefusals.MatchString(err.Error()) {
					t.Errorf("%s is refused: %v", name, err)
				}
			}
			t.Logf("%d of bpftrace's %d tools run", runs, len(tools))
			if 2*runs < len(tools) {
				t.Error("that is less than half of them")
			}
		})
	}
}

// startAndStop starts a script and stops it.
func (h *harness) startAndStop(r api.RunScript) error {
	h.Helper()
	s, err := h.c.RunScript(h.ctx, r)
	if err != nil {
		return err
	}
	defer s.Close()
	start := next[api.Start](h, s, api.RecordStart)
	// A script without probes, such as xfsdist without XFS, has already ended.
	var wire *api.Error
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil && !(errors.As(err, &wire) && wire.Code == api.CodeNoStream) {
		return err
	}
	h.readRest(s)
	return nil
}
