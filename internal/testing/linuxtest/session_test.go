package linuxtest

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// newSession makes a session on the guest, whose kernel is k.
func (g *Guest) newSession(k *linux.Kernel) *session.Session {
	s := session.New(g, session.Options{
		Log: slog.New(slog.NewTextHandler(testWriter{g.t}, nil)),
		Types: func() event.Types {
			info, err := k.Info(func() guest.View { return g.Image() })
			if err != nil {
				return nil
			}
			return info
		},
		Kernel: sync.OnceValue(func() *bpf.Kernel {
			known := &bpf.Kernel{Version: bpf.KernelVersion(k.Version), Symbol: func(name string) (uint64, bool) {
				s, err := g.Image().Lookup(name)
				return uint64(s.Addr), err == nil
			}}
			if types, err := k.Types(); err == nil {
				known.Types = append(known.Types, types.Spec)
			}
			return known
		}),
		Clock: func(now func() int64) (session.Clock, error) {
			c, err := g.Clock(now)
			return session.Clock(c), err
		},
		Tasks: func() *linux.Tasks { return g.Image().(*linux.View).TaskReader() },
	})
	g.t.Cleanup(func() { _ = s.Close() })
	return s
}

// testWriter writes to a test's log.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// shell is a guest with a session. Its shell prints "ready", runs its command after a line of input, and prints "end".
type shell struct {
	*Guest
	s *session.Session
}

// onShells runs f on each Linux guest. The guest's shell runs this command.
func onShells(t *testing.T, command string, f func(t *testing.T, dir string, g shell)) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var k *linux.Kernel
			g := boot(t, dir, "echo ready;read x;"+command+";echo end;read x", func(c *machine.Config) { k = c.Linux.Kernel })
			x := shell{g, g.newSession(k)}
			if err := g.Resume(); err != nil {
				t.Fatal(err)
			}
			g.await("ready")
			f(t, dir, x)
		})
	}
}

// attach attaches definitions.
func (g shell) attach(specs ...session.Spec) {
	g.t.Helper()
	if _, err := g.s.Attach(specs, nil); err != nil {
		g.t.Fatal(err)
	}
}

// next returns the next event of a subscription.
func (g shell) next(sub *session.Subscription) (event.Event, *event.Record) {
	g.t.Helper()
	ev, err := sub.Next(patience.Context(g.t))
	if err != nil {
		g.t.Fatal(err)
	}
	rec, err := ev.Decode()
	if err != nil {
		g.t.Fatal(err)
	}
	return ev, rec
}

// TestLinuxPrograms: programs of all kinds of sections count what happens in a Linux guest, with
// its kernel's types. The guest creates and removes 30 files, and tries to open or remove 31 that do not exist.
func TestLinuxPrograms(t *testing.T) {
	// A kernel passes no more than 32 words to its first process.
	onShells(t, "cd /tmp;for i in $(seq 30);do echo >gp$i;rm gp$i;cat gp$i;done 2>/dev/null;unlink gpnone;cat gpnone", func(t *testing.T, _ string, g shell) {
		file, err := os.ReadFile("../../../probe/bpf/testdata/obj/linux.o")
		if err != nil {
			t.Fatal(err)
		}
		a, err := g.s.AttachObject(session.ObjectSpec{File: file})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range g.s.Describe(a.Probes) {
			t.Logf("%s runs in the guest: %v (%s)", i.Name, i.Site.InGuest, i.OnHost)
		}
		g.Type("\n")
		g.await("end")
		var got []string
		if err := g.s.ReadMap("counts", func(_ session.MapInfo, m *bpf.Map) error {
			m.Walk(func(_ []byte, vals [][]byte) bool {
				sum := uint64(0)
				for _, v := range vals {
					sum += binary.LittleEndian.Uint64(v)
				}
				got = append(got, fmt.Sprint(sum))
				return true
			})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want := "30 31 30 31 30 30"; !strings.HasPrefix(strings.Join(got, " ")+" ", want+" ") {
			t.Errorf("counts %v, want %s", got, want)
		}
		for _, i := range g.s.Describe(a.Probes) {
			t.Logf("%s: %+v %+v", i.Name, i.Stats, i.Program)
		}
	})
}

// entryOf returns the file offset of the entry point of the first program in an initrd.
func entryOf(t *testing.T, initrd string) uint64 {
	t.Helper()
	f, err := os.Open(initrd)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	x, err := elf.NewFile(bytes.NewReader(b[max(0, bytes.Index(b, []byte(elf.ELFMAG))):]))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range x.Progs {
		if off := x.Entry - p.Vaddr; p.Type == elf.PT_LOAD && off < p.Filesz {
			return p.Off + off
		}
	}
	t.Fatal("no entry")
	return 0
}

// TestLinuxUserCode: a definition with a place in a file reads a process's
// stack, and a filter distinguishes processes of the same program.
func TestLinuxUserCode(t *testing.T) {
	onShells(t, "for i in 1 2 3;do /bin/cat /etc/passwd;/bin/true;done >/dev/null", func(t *testing.T, dir string, g shell) {
		entry := entryOf(t, filepath.Join(dir, "initrd"))
		sub := g.s.Subscribe(nil, event.Queue{}, session.AllEvents)
		defer sub.Close()
		g.attach(session.Spec{Def: fmt.Sprintf("p:start /bin/cat:%#x argc=+0(%%sp):s64 name=+0(+8(%%sp)):string", entry), Filter: `comm == "cat"`})
		g.Type("\n")
		pids := map[int32]bool{}
		for range 3 {
			ev, rec := g.next(sub)
			want := fmt.Sprintf(`(/bin/busybox:%#x+0x0/0x2) argc=2 name="/bin/cat"`, entry)
			if got := string(ev.Source.Layout.AppendArgs(nil, rec)); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if rec.HasTask {
				pids[rec.PID] = true
			}
		}
		g.await("end")
		i, err := g.s.Get("start")
		if err != nil {
			t.Fatal(err)
		}
		if s := i.Stats; s.Handled != 3 || s.Filtered != 3 || s.Missed != 0 || len(pids) != 3 {
			t.Errorf("%+v, tasks %v", s, pids)
		}
		if _, err := g.s.Attach([]session.Spec{{Def: "p /bin/cat:main"}}, nil); err == nil || !strings.Contains(err.Error(), "stripped") {
			t.Errorf("a name that a stripped program does not have: %v", err)
		}
	})
}

// TestLinuxReads: definitions read a Linux guest's kernel memory: its heap and its stacks,
// whose addresses have 57 bits with 5-level paging.
func TestLinuxReads(t *testing.T) {
	onShells(t, "for i in 1 2 3;do cat /etc/passwd;done >/dev/null", func(t *testing.T, _ string, g shell) {
		sub := g.s.Subscribe(nil, event.Queue{}, session.AllEvents)
		defer sub.Close()
		g.attach(session.Spec{Def: "p:heap vfs_open name=path->dentry->d_name.name:string"}, session.Spec{Def: "p:stack kernel_clone signal=args->exit_signal"})
		g.Type("\n")
		opened, forked := 0, 0
		for opened < 3 || forked < 3 {
			ev, rec := g.next(sub)
			if text := string(ev.Source.Layout.AppendArgs(nil, rec)); strings.Contains(text, "(fault)") {
				t.Fatal(text)
			}
			switch string(rec.Values[0].AppendText(nil)) {
			case `"passwd"`:
				opened++
			case "17": // SIGCHLD
				forked++
			}
		}
		g.await("end")
	})
}

// TestLinuxScriptTypes: a script reads parameters, members, bit fields and the current task of a
// Linux guest with its kernel's types. The guest's programs read two bytes of a file each.
func TestLinuxScriptTypes(t *testing.T) {
	onShells(t, "for i in 1 2 3;do /bin/dd if=/etc/passwd of=/dev/null bs=1 count=2;done 2>/dev/null", func(t *testing.T, _ string, g shell) {
		sc := sessiontest.Start(t, g.s, `
BEGIN { print((sizeof(struct list_head), offsetof(struct list_head, prev), PIDTYPE_TGID, (uint64)PIDTYPE_TGID, (enum pid_type)0)); }
kprobe:vfs_read /comm == "dd" && args.count == 1/ { printf("%s %d\n", str(args.file->f_path.dentry->d_name.name), args.count); @pos[*args.pos] = count(); }
kretprobe:vfs_read /comm == "dd" && args.count == 1/ { @got[retval, args.file->f_path.dentry->d_name.len] = count(); }
kprobe:vfs_open { @self[curtask->comm == comm && curtask->pid == tid && curtask->tgid == pid && curtask->group_leader == curtask] = count(); }
kprobe:vfs_open /str(args.path->dentry->d_name.name) == "busybox"/ { @exec[curtask->in_execve] = count(); }
kprobe:kernel_clone { @clone[args.args->exit_signal, curtask->real_parent->pid] = count(); }
END { $t = *(struct list_head *)0; print($t); }`, session.ScriptOptions{})
		for _, i := range sc.Probes() {
			t.Logf("%s runs in the guest: %v (%s)", i.Name, i.Site.InGuest, i.OnHost)
		}
		programs := linux.Programs{View: g.Image().(*linux.View)}
		for name, want := range map[string]string{"busybox": "/bin/busybox", "sh": "/bin/busybox", "libnone": ""} {
			if at := programs.FindFile(name); at != want && name != "sh" || name == "sh" && at != want && at != "" {
				t.Errorf("the file %s is %q, want %q", name, at, want)
			}
		}
		g.Type("\n")
		g.await("end")
		out, warnings, _ := sc.End()
		want := regexp.MustCompile(`^\(16, 8, PIDTYPE_TGID, 1, PIDTYPE_PID\)
passwd 1
passwd 1
passwd 1
passwd 1
passwd 1
passwd 1
\{ \.next = 0x0, \.prev = 0x0 \}


@clone\[17, \d+\]: 3
@exec\[[01]\]: 3
@got\[1, 6\]: 6
@pos\[0\]: 3
@pos\[1\]: 3
@self\[true\]: \d+
$`)
		if !want.MatchString(out) || len(warnings) != 1 || !strings.Contains(warnings[0], "WARNING: Bad address") {
			t.Errorf("printed\n%s\nwarnings %q", out, warnings)
		}
	})
}

// TestLinuxOverride: opening one file of a Linux guest fails twice with the requested
// error, and the program that opens it reports this error. Nothing else fails. The guest
// reads two files, the first one five times.
func TestLinuxOverride(t *testing.T) {
	onShells(t, "for f in etc/passwd dev/null etc/passwd etc/passwd etc/passwd etc/passwd;do cat /$f >/dev/null;echo opened $f $?;done", func(t *testing.T, _ string, g shell) {
		times := int64(2)
		g.attach(session.Spec{
			Def: "p:fail do_sys_openat2 file=+0($arg2):ustring", Filter: `file == "/etc/passwd"`, Unsafe: true,
			Override: &session.Override{Value: -2, After: 1, Times: &times},
		})
		g.Type("\n")
		var got []string
		for l := ""; l != "end"; {
			if l = g.line("the end"); strings.HasPrefix(l, "opened ") || strings.Contains(l, "No such file") {
				got = append(got, l[strings.LastIndexByte(l, ':')+1:])
			}
		}
		const none = " No such file or directory"
		want := []string{"opened etc/passwd 0", "opened dev/null 0", none, "opened etc/passwd 1", none, "opened etc/passwd 1", "opened etc/passwd 0", "opened etc/passwd 0"}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("the guest says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if i, err := g.s.Get("fail"); err != nil || i.Injected != 2 || i.Stats.Handled != 5 {
			t.Errorf("injected %d of %d hits, want 2 of 5 (%v)", i.Injected, i.Stats.Handled, err)
		}
	})
}
