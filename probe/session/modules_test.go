package session_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestPendingModule: definitions for a module that is not loaded are accepted and wait
// for it. All changes of a probe work while it waits. The probes are armed when the module
// is loaded, gone when it is unloaded, and continue to count when it is loaded again. The module's symbols
// without its name do not wait.
func TestPendingModule(t *testing.T) {
	img := builtinWith(t)
	read, err := img.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	text := guest.Range{Start: read.Addr, End: read.Addr + guest.GVA(read.Size)}
	k := &probetest.Kernel{Image: img, Module: "mod", Absent: true, Freed: text}
	b := newBareWith(t, img, func() guest.View { return k }, session.Options{Hold: func() (func() error, error) { return func() error { return nil }, nil }})
	module := func(there bool) {
		t.Helper()
		k.Absent, k.Freed = !there, guest.Range{}
		if err := b.Poke(read.Addr, img.Code(read.Addr, int(read.Size))); err != nil {
			t.Fatal(err)
		}
		if !there {
			k.Freed = text
		}
		if err := b.Engine().TargetChanged(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, pending bool, hits ...uint64) {
		t.Helper()
		for i, name := range []string{"m/in", "m/ret", "kprobes/p_mod_vfs_read_0"} {
			p, err := b.s.Get(name)
			armed, addr, symbol := !pending && p.Enabled, read.Addr, "vfs_read"
			if pending {
				addr, symbol = 0, "mod:vfs_read"
			}
			if err != nil || p.Site.Pending != pending || p.Gone || p.Armed != armed && i < 2 || p.Addr&^4 != addr || p.Symbol != symbol || p.Stats.Hits != hits[i] {
				t.Errorf("%s: %+v, %v; want %d hits", what, p, err, hits[i])
			}
		}
	}
	ps := b.attach("p:m/in mod:vfs_read a=$arg1", "r:m/ret mod:vfs_read got=$retval", "p mod:vfs_read")
	if ps[0].Spec.Def != "p:m/in mod:vfs_read a=$arg1" || !ps[0].Site.Pending || ps[0].Armed {
		t.Errorf("%+v", ps[0])
	}
	for _, def := range []string{"p nomod:vfs_read count=$argn", "p vfs_reed", "p nomod:vfs_read count", "w:x @mod:vfs_read:8", "p mod:vfs_*"} {
		if _, err := b.apply(def); err == nil || session.ErrorOf(err).Column == nil {
			t.Errorf("%s: %v", def, err)
		}
	}
	check("at first", true, 0, 0, 0)
	if _, err := b.s.SetEnabled(false, "m/in", "p_mod_vfs_read_0"); err != nil {
		t.Error(err)
	}
	if _, err := b.s.SetEnabled(true, "m/in"); err != nil {
		t.Error(err)
	}
	if is, err := b.s.SetFilter("a == 7", "m/in"); err != nil || !is[0].Site.Pending || is[0].Spec.Filter != "a == 7" {
		t.Error(is, err)
	}
	hit := func(arg uint64) {
		t.Helper()
		if _, err := b.Hit(0, "vfs_read", 0, func(r *probe.Regs) { r.RDI = arg }); err != nil {
			t.Fatal(err)
		}
	}
	hit(7)
	check("before it comes", true, 0, 0, 0)

	sub := b.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	module(true)
	hit(7)
	hit(8)
	check("loaded", false, 2, 2, 0)
	if _, rec, _ := b.next(sub); rec.Addr != read.Addr+4 {
		t.Errorf("a record of %v, want %v", rec.Addr, read.Addr+4)
	}
	module(false)
	hit(7)
	check("gone", true, 2, 2, 0)
	module(true)
	hit(7)
	check("back", false, 3, 3, 0)
	module(false)
	if err := b.Reload(); err != nil {
		t.Fatal(err)
	}
	check("reset", true, 3, 3, 0)
	module(true)
	hit(7)
	check("back after a reset", false, 4, 4, 0)

	if _, err := b.s.Detach("m/ret"); err != nil {
		t.Error(err)
	}
	module(false)
	b.attach("-:m/in", "-:kprobes/p_mod_vfs_read_0")
	if n := len(b.s.Probes()); n != 0 {
		t.Errorf("%d probes", n)
	}
	alone := b.attach("p:alone mod:nosuch")
	module(true)
	if p, err := b.s.Get(alone[0].Name); err != nil || p.Site.Pending || !p.Gone || p.Armed {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestScriptModules: the functions of modules that a script names.
func TestScriptModules(t *testing.T) {
	img := builtinWith(t)
	k := &ofModules{Kernel: &probetest.Kernel{Image: img, Module: "mod", Absent: true}}
	b := newBareWith(t, img, func() guest.View { return k }, session.Options{})
	refused := func(text, want string) {
		t.Helper()
		if _, err := b.s.CompileScript(text, session.ScriptOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	places := func(text string, want ...string) {
		t.Helper()
		sc, err := b.s.CompileScript(text, session.ScriptOptions{})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			return
		}
		var got []string
		for _, p := range sc.Object.Programs[:sc.Probes] {
			got = append(got, p.AttachTo)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: at %q, want %q", text, got, want)
		}
	}
	refused("kprobe:mod:vfs_read { }", "ERROR: specified module mod in probe kprobe:mod:vfs_read is not loaded.\n")
	places("config = { missing_probes = ignore } kprobe:mod:vfs_read { }", "mod:vfs_read")
	k.Absent = false
	places("kprobe:mod:vfs_read { }", "mod:vfs_read")
	refused("kprobe:mod:nosuch { }", "ERROR: No matches for kprobe mod:nosuch\n")
	places("kprobe:vmlinux:vfs_read { }", "vfs_read")
	places("kprobe:vmlinux:vfs_rea* { }", "vfs_read")
	places("kprobe:vm*:vfs_rea* { }", "vfs_read")
	read, err := img.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	k.own = read.Addr // no longer the kernel's
	refused("kprobe:vmlinux:vfs_read { }", "ERROR: No matches for kprobe vmlinux:vfs_read\nkprobe:vmlinux:vfs_read { }\n~~~~~~~~~~~~~~~~~~~~~~~\nHINT: vfs_read is a function of the module mod")
	refused("kprobe:vmlinux:vfs_rea* { }", "ERROR: No matches for kprobe vmlinux:vfs_rea*\n")
	places("kprobe:vfs_read { }", "vfs_read")

	bare := newBare(t) // the built-in guest has no modules
	if _, err := bare.s.CompileScript("kprobe:mod:vfs_read { }", session.ScriptOptions{}); err == nil || !strings.Contains(err.Error(), "ERROR: specified module mod in probe kprobe:mod:vfs_read is not loaded.\nkprobe:mod:vfs_read { }\n~~~~~~~~~~~~~~~~~~~\nHINT: the guest's kernel has no modules") {
		t.Error(err)
	}
	if _, err := bare.s.CompileScript("kprobe:vmlinux:vfs_read { }", session.ScriptOptions{}); err != nil {
		t.Error(err)
	}
}

// ofModules is a kernel one of whose functions is its module's.
type ofModules struct {
	*probetest.Kernel
	own guest.GVA
}

// Module is the part of a Linux kernel's view that says where an address is.
func (k *ofModules) Module(addr guest.GVA) string {
	if k.own != 0 && addr == k.own {
		return k.Kernel.Module
	}
	return ""
}
