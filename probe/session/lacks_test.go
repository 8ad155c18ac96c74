package session_test

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestTasksUnknown: a script's warnings name each feature that needs unknown data about the guest's tasks, once. Strict scripts, strict object files, definitions and
// filters with such features are rejected.
func TestTasksUnknown(t *testing.T) {
	b := newBareOf(t, builtinWith(t, "gp_profile", "no_profile"), nil)
	const says = "it does not describe its tasks"
	for _, c := range []struct {
		script string
		names  []string // expected warnings, in this order
	}{
		{`kprobe:vfs_read { @[comm, pid, tid] = count(); if (pid == 7) { @x = curtask; } }`, []string{"comm"}},
		{`kprobe:vfs_read /pid == 7/ { @++; } kprobe:vfs_write { @ = pid; }`, []string{"pid"}},
		{`kprobe:vfs_read { @ = uid; @g = gid; @c = cgroup; @t = tid; }`, []string{"uid", "cgroup", "tid"}},
		{`kprobe:vfs_read { @ = pid(init); }`, []string{"pid"}},
		{`BEGIN { printf("%s %d\n", comm, pid); } kprobe:vfs_read { @ = nsecs; }`, nil},
		{`profile:hz:99 { @[comm] = count(); }`, []string{"comm"}},
	} {
		_, warnings, _ := sessiontest.Start(t, b.s, c.script, session.ScriptOptions{}).End()
		var names []string
		for _, w := range warnings {
			if _, what, ok := strings.Cut(w, "WARNING: "); ok && strings.Contains(what, says) && strings.Contains(w, "HINT: a bare guest can define the object gp_profile") {
				name, _, _ := strings.Cut(what, " ")
				names = append(names, name)
			}
		}
		if strings.Join(names, " ") != strings.Join(c.names, " ") {
			t.Errorf("%s: warned of %q, want %q\n%s", c.script, names, c.names, strings.Join(warnings, "\n"))
		}
		if len(c.names) == 0 {
			continue
		}
		if _, err := b.s.CompileScript("config = { strict = 1 } "+c.script, session.ScriptOptions{}); err == nil || !strings.Contains(err.Error(), "ERROR: "+c.names[0]+" is not known in this guest: "+says) {
			t.Errorf("%s: strict: %v", c.script, err)
		}
	}
	for _, spec := range []session.Spec{{Def: "p:a vfs_read c=$comm"}, {Def: "p:a vfs_read", Filter: `comm == "sh"`}, {Def: "p:a vfs_read", Filter: "common_pid == 1"}} {
		if _, err := b.s.Attach([]session.Spec{spec}, nil); err == nil {
			t.Errorf("%+v is attached", spec)
		}
	}
	file := object(t, "latency.o")
	a, err := b.s.AttachObject(session.ObjectSpec{File: file})
	if err != nil {
		t.Fatal(err)
	}
	warned := 0
	for _, i := range b.s.Describe(a.Probes) {
		for _, w := range i.Program.Warnings {
			if strings.Contains(w.What, "get_current_pid_tgid is always 0 or empty in this guest: "+says) {
				warned++
			}
		}
	}
	if warned != len(a.Probes) || warned == 0 {
		t.Errorf("%d warnings of %d programs", warned, len(a.Probes))
	}
	if _, err := b.s.Detach(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.s.AttachObject(session.ObjectSpec{File: file, Strict: true}); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("strict: %v", err)
	}
}
