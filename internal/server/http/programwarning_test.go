package http

import (
	"bytes"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestProgramWarnings checks the field warnings of programs, and the field strict of a request, in a guest whose tasks are unknown.
// TestTasksUnknown of probe/session checks everything that such a guest lacks.
func TestProgramWarnings(t *testing.T) {
	img, err := guest.ParseELF(bytes.ReplaceAll(builtin.ELF(), []byte("\x00gp_profile\x00"), []byte("\x00no_profile\x00")))
	if err != nil {
		t.Fatal(err)
	}
	o := defaultOptions()
	o.vcpus = 2
	h := serveGuest(t, newFakeGuestOf(t, img, o.vcpus), o)
	const says = "it does not describe its tasks"
	list, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "latency.o")})
	ps := list.Probes
	if err != nil {
		t.Fatal(err)
	}
	warned := 0
	for _, p := range ps {
		for _, w := range p.Program.Warnings {
			if strings.Contains(w.What, "get_current_pid_tgid is always 0 or empty in this guest: "+says) {
				warned++
			}
		}
	}
	if warned != len(ps) {
		t.Errorf("%d warnings of %d programs: %+v", warned, len(ps), ps)
	}
	if _, err := h.c.DetachAll(h.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "latency.o"), Strict: true}); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("strict: %v", err)
	}
	_, err = h.c.RunScript(h.ctx, api.RunScript{Script: "config = { strict = 1 } kprobe:vfs_read { @[comm] = count(); }"})
	if err == nil || !strings.Contains(err.Error(), "ERROR: comm is not known in this guest: "+says) {
		t.Errorf("a strict script: %v", err)
	}
}
