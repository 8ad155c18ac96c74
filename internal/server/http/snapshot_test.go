package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// save saves the guest by the API.
func (h *harness) save() (*snapshot.Snapshot, []byte) {
	h.Helper()
	var b bytes.Buffer
	if err := h.c.Save(h.ctx, &b); err != nil {
		h.Fatal(err)
	}
	s, err := snapshot.Read(bytes.NewReader(b.Bytes()), 1<<30)
	if err != nil {
		h.Fatal(err)
	}
	return s, b.Bytes()
}

// dumps are the contents of all maps, by name.
func (h *harness) dumps() map[string]any {
	h.Helper()
	ms, err := h.c.Maps(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	out := map[string]any{}
	for _, m := range ms {
		d, err := h.c.Map(h.ctx, m.Name)
		if err != nil {
			h.Fatal(err)
		}
		out[m.Name] = d.Values
	}
	return out
}

// TestSnapshotRoutePrograms saves a guest whose programs run in it, again and again while it runs, and then paused: another
// daemon has its programs and what was in their maps. Programs that were detached do not come back.
func TestSnapshotRoutePrograms(t *testing.T) {
	h := serveMachine(t, 2)
	list, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "count.o")})
	ps := list.Probes
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "privileges.o")}); err != nil {
		t.Fatal(err)
	}
	all, err := h.c.Probes(h.ctx)
	if err != nil || len(all) <= len(ps)+1 {
		t.Fatal(all, err)
	}
	gone := all[len(all)-1]
	if _, err := h.c.Detach(h.ctx, gone.Name); err != nil {
		t.Fatal(err)
	}
	h.await(ps[0].Name, "runs in the guest", func(p api.Probe) bool { return p.Program.InGuest > 100 })
	for range 50 {
		h.save()
	}
	if _, err := h.c.Pause(h.ctx); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for err = h.c.Save(h.ctx, &b); err != nil; err = h.c.Save(h.ctx, &b) { // it may be paused inside a program
		if e := (*api.Error)(nil); !errors.As(err, &e) || e.Errno != "EBUSY" {
			t.Fatal(err)
		}
		for _, f := range []func(context.Context) (api.Guest, error){h.c.Resume, h.c.Pause} {
			if _, err := f(h.ctx); err != nil {
				t.Fatal(err)
			}
		}
		b.Reset()
	}
	snap, err := snapshot.Read(&b, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	want := h.dumps()

	n := serveMachine(t, 2)
	if err := n.s.attachSnapshot(n.ctx, snap); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, n.dumps()); diff != "" {
		t.Errorf("maps (-saved +restored):\n%s", diff)
	}
	got, err := n.c.Probes(n.ctx)
	if err != nil || len(got) != len(all)-1 {
		t.Errorf("%d probes, want %d: %v", len(got), len(all)-1, err)
	}
	if _, err := n.c.Probe(n.ctx, gone.Name); !errors.Is(err, api.ErrProbeNotFound) {
		t.Errorf("%s is there again: %v", gone.Name, err)
	}
	if _, err := n.c.Resume(n.ctx); err != nil {
		t.Fatal(err)
	}
	n.await(ps[0].Name, "runs in the guest", func(p api.Probe) bool { return p.Program.InGuest > 100 })
	if g, err := n.c.Guest(n.ctx); err != nil || g.State != "running" || g.Checks != 0 {
		t.Errorf("%+v, %v", g, err)
	}
}

// TestSnapshotRouteMoment saves a guest that runs, whose system calls a script counts: in each snapshot the script's map
// has as many as the guest has counted itself, but for one that each vCPU may be in the middle of.
func TestSnapshotRouteMoment(t *testing.T) {
	const vcpus = 2
	h := serveMachine(t, vcpus)
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	sym, err := img.Lookup("syscalls")
	if err != nil {
		t.Fatal(err)
	}
	at := guest.GPA(sym.Addr - 0xffffffff80000000) // as its linker script has it
	counted := func(s *snapshot.Snapshot) (n int64) {
		for _, r := range s.Memory {
			for cpu := range guest.GPA(vcpus) {
				if off := at + 8*cpu - r.At; off < guest.GPA(len(r.Bytes)) {
					n += int64(binary.LittleEndian.Uint64(r.Bytes[off:]))
				}
			}
		}
		return n
	}
	if _, err := h.c.Pause(h.ctx); err != nil {
		t.Fatal(err)
	}
	before, _ := h.save()
	scripts := []string{
		"BEGIN { for ($i : 0..4000) { @[$i] = count(); } } interval:hz:1 { @n++; }", // so that it takes a while to read all maps
		"kprobe:do_syscall { @ = count(); }",
	}
	for i, text := range scripts {
		if _, err := h.c.DetachScript(h.ctx, api.RunScript{Script: text, Detach: fmt.Sprint("script", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.c.Resume(h.ctx); err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for i := range 50 {
		s, _ := h.save()
		var on saved.Attachments
		if err := json.Unmarshal(s.Attached, &on); err != nil {
			t.Fatal(err)
		}
		got := int64(0)
		for _, m := range on.Scripts[1].Maps {
			for _, e := range m.Entries {
				for _, v := range e[1:] {
					got += int64(binary.LittleEndian.Uint64(v))
				}
			}
		}
		want := counted(s) - counted(before)
		if got < want-vcpus || got > want+vcpus {
			t.Errorf("snapshot %d: the script has %d, the guest %d", i, got, want)
		}
		last = want
	}
	if last < 10 {
		t.Errorf("the guest has called %d times", last)
	}
}

// TestResetToSnapshot resets a busy guest with programs in it again and again to where it was; a daemon that does not have
// the snapshot says so, and takes it.
func TestResetToSnapshot(t *testing.T) {
	h := serveMachine(t, 2)
	list, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "count.o")})
	ps := list.Probes
	if err != nil {
		t.Fatal(err)
	}
	snap, file := h.save()
	for i := range 20 {
		g, err := h.c.Reset(h.ctx, api.ResetGuest{To: snap.Config.ID})
		if err != nil || g.State != "running" {
			t.Fatalf("reset %d: %+v, %v", i, g, err)
		}
		before := h.await(ps[0].Name, "is there", func(api.Probe) bool { return true }).Program.Runs
		h.await(ps[0].Name, "goes on", func(p api.Probe) bool { return p.Program.Runs > before+10 })
	}
	if g, err := h.c.Guest(h.ctx); err != nil || g.Checks != 0 {
		t.Errorf("%+v, %v", g, err)
	}

	n := serveMachine(t, 2)
	_, err = n.c.Reset(n.ctx, api.ResetGuest{To: snap.Config.ID})
	if e := (*api.Error)(nil); !errors.As(err, &e) || e.Code != api.CodeNoSnapshot {
		t.Errorf("a snapshot that is not there: %v", err)
	}
	for what, b := range map[string][]byte{"nothing": nil, "half": file[:len(file)/2], "else": []byte("else, and longer than a magic")} {
		_, err := n.c.GiveSnapshot(n.ctx, bytes.NewReader(b))
		if e := (*api.Error)(nil); !errors.As(err, &e) || e.Code != api.CodeBadFile {
			t.Errorf("%s: %v", what, err)
		}
	}
	info, err := n.c.GiveSnapshot(n.ctx, bytes.NewReader(file))
	if want := (api.Snapshot{ID: snap.Config.ID, VCPUs: 2, Memory: snap.Config.Memory, Bytes: snap.Len()}); err != nil || info != want {
		t.Errorf("%+v, %v, want %+v", info, err, want)
	}
	g, err := n.c.Reset(n.ctx, api.ResetGuest{To: snap.Config.ID, Paused: true})
	if err != nil || g.State != "paused" {
		t.Errorf("%+v, %v", g, err)
	}
	for i, c := range g.CPUs {
		if rip := fmt.Sprintf("%#x", uint64(c.RIP)); rip != fmt.Sprintf("%#x", snap.CPUs[i].Regs.RIP) {
			t.Errorf("vcpu %d at %s, saved at %#x", i, rip, snap.CPUs[i].Regs.RIP)
		}
	}
}

// TestSnapshotOfNoMachine: a guest that cannot be saved is refused.
func TestSnapshotOfNoMachine(t *testing.T) {
	h := serveFake(t, nil)
	var e *api.Error
	if err := h.c.Save(h.ctx, new(bytes.Buffer)); !errors.As(err, &e) || e.Code != api.CodeUnavailable {
		t.Errorf("save: %v", err)
	}
	if _, err := h.c.GiveSnapshot(h.ctx, new(bytes.Buffer)); !errors.As(err, &e) || e.Code != api.CodeUnavailable {
		t.Errorf("give: %v", err)
	}
	if _, err := h.c.Reset(h.ctx, api.ResetGuest{To: "x"}); !errors.As(err, &e) || e.Code != api.CodeUnavailable {
		t.Errorf("reset: %v", err)
	}
}

// TestRestoreOpens: a snapshot may be somebody else's, and so may the guest in it. What that guest reads and writes of the host's is not
// what the snapshot says.
func TestRestoreOpens(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	initrd := file("initrd", "secret")
	restore := func(l snapshot.Linux, args ...string) (options, error) {
		t.Helper()
		s := snapshot.Snapshot{Config: snapshot.Config{ID: "X", Image: "/kernel", VCPUs: 1, Memory: 1 << 20, Linux: &l}, CPUs: make([]snapshot.CPU, 1)}
		var b bytes.Buffer
		if _, err := s.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		o := defaultOptions()
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.flags(f)
		if err := f.Parse(append([]string{"--restore", file("a.gps", b.String())}, args...)); err != nil {
			t.Fatal(err)
		}
		_, err := readSnapshot("--restore", &o)
		return o, err
	}
	says := func(err error, want string) {
		t.Helper()
		if err == nil || strings.TrimPrefix(err.Error(), "--restore "+filepath.Join(dir, "a.gps")+": ") != want {
			t.Errorf("%v, want: %s", err, want)
		}
	}

	disks := snapshot.Linux{Disks: []snapshot.Disk{{Path: "/home/you/x"}, {Path: "/y", ReadOnly: true}}}
	_, err := restore(disks)
	says(err, `the snapshot's guest needs its 2 disks: if these are the right files, add --disk "/home/you/x" --disk "/y,ro"`)
	_, err = restore(disks, "--kernel", "k", "--disk", "/y")
	says(err, `the snapshot's guest needs its 2 disks: if these are the right files, add --disk "/home/you/x" --disk "/y,ro"`)
	o, err := restore(disks, "--kernel", "k", "--disk", "a", "--disk", "b,ro")
	if want := []device.Disk{{Path: "a"}, {Path: "b", ReadOnly: true}}; err != nil || !slices.Equal(o.disks, want) {
		t.Errorf("%v, disks %v", err, o.disks)
	}
	_, err = restore(snapshot.Linux{}, "--kernel", "k", "--disk", "a")
	says(err, "its guest had no disk; leave --disk out")

	if o, err = restore(snapshot.Linux{Initrd: initrd}); err != nil || o.initrd != "" {
		t.Errorf("%v, an initial RAM disk that may be any: %q", err, o.initrd)
	}
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	if o, err = restore(snapshot.Linux{Initrd: initrd, InitrdSHA256: sum("secret")}); err != nil {
		t.Fatal(err)
	}
	if b, err := o.readInitrd(); err != nil || string(b) != "secret" {
		t.Errorf("%q, %v", b, err)
	}
	if o, err = restore(snapshot.Linux{Initrd: initrd, InitrdSHA256: sum("guess")}); err != nil {
		t.Fatal(err)
	}
	_, err = o.readInitrd()
	says(err, initrd+" is not the initial RAM disk that its guest had, with SHA-256 "+sum("guess")[:16]+"…: say which one by --initrd")
	if o, err = restore(snapshot.Linux{Initrd: "/gone", InitrdSHA256: sum("guess")}, "--kernel", "k", "--initrd", initrd); err != nil {
		t.Fatal(err)
	}
	if b, err := o.readInitrd(); err != nil || string(b) != "secret" {
		t.Errorf("%q, %v", b, err)
	}
}
