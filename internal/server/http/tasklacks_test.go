package http

import (
	"bytes"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestTasksUnknown warns once of what a guest does not tell of its tasks, and refuses it where the script or the request is strict.
func TestTasksUnknown(t *testing.T) {
	img, err := guest.ParseELF(bytes.ReplaceAll(builtin.ELF(), []byte("\x00gp_profile\x00"), []byte("\x00no_profile\x00")))
	if err != nil {
		t.Fatal(err)
	}
	o := defaultOptions()
	o.vcpus = 2
	h := serveGuest(t, newFakeGuestOf(t, img, o.vcpus), o)
	const says = "the guest does not say where its tasks are"
	for _, c := range []struct {
		script string
		names  []string // of which is warned, in that order
	}{
		{`kprobe:vfs_read { @[comm, pid, tid] = count(); if (pid == 7) { @x = curtask; } }`, []string{"comm"}},
		{`kprobe:vfs_read /pid == 7/ { @++; } kprobe:vfs_write { @ = pid; }`, []string{"pid"}},
		{`kprobe:vfs_read { @ = uid; @g = gid; @c = cgroup; @t = tid; }`, []string{"uid", "cgroup", "tid"}},
		{`kprobe:vfs_read { @ = pid(init); }`, []string{"pid"}},
		{`BEGIN { printf("%s %d\n", comm, pid); } kprobe:vfs_read { @ = nsecs; }`, nil},
		{`profile:hz:99 { @[comm] = count(); }`, []string{"comm"}},
	} {
		s, err := h.c.RunScript(h.ctx, api.RunScript{Script: c.script})
		if err != nil {
			if strings.HasPrefix(c.script, "profile") { // what a made-up guest does cannot be looked at
				continue
			}
			t.Fatal(err)
		}
		start := next[api.Start](h, s, api.RecordStart)
		if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
			t.Fatal(err)
		}
		_, warnings, _ := h.rest(s)
		var names []string
		for _, w := range warnings {
			if _, what, ok := strings.Cut(w, "WARNING: "); ok && strings.Contains(what, says) && strings.Contains(w, "HINT: a guest that is no Linux has an object gp_profile") {
				name, _, _ := strings.Cut(what, ",")
				names = append(names, name)
			}
		}
		if strings.Join(names, " ") != strings.Join(c.names, " ") {
			t.Errorf("%s: warned of %q, want %q\n%s", c.script, names, c.names, strings.Join(warnings, "\n"))
		}
		if len(c.names) == 0 {
			continue
		}
		_, err = h.c.RunScript(h.ctx, api.RunScript{Script: "config = { strict = 1 } " + c.script})
		if err == nil || !strings.Contains(err.Error(), "ERROR: "+c.names[0]+" is not known in this guest: "+says) {
			t.Errorf("%s: strict: %v", c.script, err)
		}
	}
	h.noScript()
	// Definitions and filters are refused in any case.
	for _, spec := range []api.ProbeSpec{{Def: "p:a vfs_read c=$comm"}, {Def: "p:a vfs_read", Filter: `comm == "sh"`}, {Def: "p:a vfs_read", Filter: "common_pid == 1"}} {
		_, err := h.c.Attach(h.ctx, spec)
		t.Log(err)
		if err == nil {
			t.Errorf("%+v is attached", spec)
		}
	}
	// Programs of object files likewise.
	ps, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "latency.o")})
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
}
