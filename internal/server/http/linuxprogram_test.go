package http

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveLinux starts a daemon with the Linux guest in dir, which runs command. changes have the
// last word on the daemon's options.
func serveLinux(t *testing.T, dir, command string, changes ...func(*options)) *harness {
	t.Helper()
	o := defaultOptions()
	o.kernel, o.initrd, o.memory, o.vcpus = filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd"), 256<<20, 1
	o.cmdline = "console=ttyS0 quiet panic=-1 -- " + command
	for _, change := range changes {
		change(&o)
	}
	if debug := filepath.Join(dir, "debug"); exists(debug) {
		o.debug = debug
	}
	h := newHarness(t)
	p, err := loadProgram(&o)
	if err != nil {
		t.Fatal(err)
	}
	g, err := newMachineGuest(&o, p, h.logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h.serve(g, o)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// console waits for a line of the guest, and returns it with those before.
func (h *harness) console(line string) []string {
	h.Helper()
	sub, history := h.s.guest.Console(1 << 12)
	defer sub.Close()
	var all []string
	for _, l := range history {
		if all = append(all, l.Text); l.Text == line {
			return all
		}
	}
	for {
		select {
		case l, ok := <-sub.C():
			if all = append(all, l.Text); ok && l.Text == line {
				return all
			} else if ok {
				continue
			}
		case <-h.ctx.Done():
		}
		h.Fatalf("no line %q:\n%s\n%s", line, strings.Join(all, "\n"), h.log.String())
	}
}

// What the guest does: it makes and removes 30 files, and asks for 31 that are not there.
// A kernel passes no more than 32 words to its first process.
const fileWork = "echo ready;read x;cd /tmp;for i in $(seq 30);do echo >gp$i;rm gp$i;cat gp$i;done 2>/dev/null;unlink gpnone;cat gpnone;echo end;read x"

// TestLinuxPrograms: programs of all kinds of sections count what a Linux guest does, by
// its kernel's types.
func TestLinuxPrograms(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, fileWork)
			h.console("ready")
			ps, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "linux.o")})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range ps {
				t.Logf("%s runs %s: %s", p.Name, p.Runs, p.OnHost)
			}
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			h.console("end")
			d, err := h.c.Map(h.ctx, "counts")
			if err != nil {
				t.Fatal(err)
			}
			for what, want := range []string{"30", "31", "30", "31", "30", "30"} {
				if got := string(d.Values[what].Data[0]); got != want {
					t.Errorf("count %d is %s, want %s", what, got, want)
				}
			}
			for _, p := range ps {
				now, _ := h.c.Probe(h.ctx, p.Name)
				t.Logf("%s: %+v %+v", p.Name, now.Stats, now.Program)
			}
		})
	}
}

// entryOf returns where in its file the entry of the first program in an initrd is.
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

// TestLinuxUserCode: a definition with a place in a file reads what is on a process's
// stack, and a filter tells processes of the same program from others.
func TestLinuxUserCode(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, "echo ready;read x;for i in 1 2 3;do /bin/cat /etc/passwd;/bin/true;done >/dev/null;echo end;read x")
			h.console("ready")
			entry := entryOf(t, filepath.Join(dir, "initrd"))
			def := fmt.Sprintf("p:start /bin/cat:%#x argc=+0(%%sp):s64 name=+0(+8(%%sp)):string", entry)
			list, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: def, Filter: `comm == "cat"`})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", list)
			s := h.stream(h.ctx, api.StreamEvents{})
			next[api.Start](h, s, api.RecordStart)
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			pids := map[int32]bool{}
			for range 3 {
				hit := next[api.Hit](h, s, api.RecordHit)
				want := fmt.Sprintf(`(/bin/busybox:%#x+0x0/0x2) argc=2 name="/bin/cat"`, entry)
				if hit.Text != want {
					t.Errorf("got  %s\nwant %s", hit.Text, want)
				}
				if hit.Task != nil {
					pids[hit.Task.PID] = true
				}
			}
			h.console("end")
			p, err := h.c.Probe(h.ctx, "start")
			if err != nil {
				t.Fatal(err)
			}
			if p.Stats.Handled != 3 || p.Stats.Filtered != 3 || p.Stats.Missed != 0 || len(pids) != 3 {
				t.Errorf("%+v, tasks %v", p.Stats, pids)
			}
			if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p /bin/cat:main"}); err == nil || !strings.Contains(err.Error(), "stripped") {
				t.Errorf("a name that a stripped program does not have: %v", err)
			}
		})
	}
}

// TestLinuxReads: definitions read what is at a Linux guest's kernel addresses: on its
// heap and on its stacks, which with 5-level paging are addresses of 57 bits.
func TestLinuxReads(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, "echo ready;read x;for i in 1 2 3;do cat /etc/passwd;done >/dev/null;echo end;read x")
			h.console("ready")
			h.attach("p:heap vfs_open name=path->dentry->d_name.name:string", "p:stack kernel_clone signal=args->exit_signal")
			s := h.stream(h.ctx, api.StreamEvents{})
			next[api.Start](h, s, api.RecordStart)
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			opened, forked := 0, 0
			for opened < 3 || forked < 3 {
				hit := next[api.Hit](h, s, api.RecordHit)
				switch text := hit.Args[0].Text; {
				case strings.Contains(hit.Text, "(fault)"):
					t.Fatal(hit.Text)
				case text == `"passwd"`:
					opened++
				case text == "17": // SIGCHLD
					forked++
				}
			}
			h.console("end")
		})
	}
}

// TestLinuxVariables: at a line of kernel_clone a local variable has what the function was
// called with, as the kernel's types say; a variable of a function that is inlined has what
// the guest opens; and stacks have their lines. The kernel's debug information is what
// GUESTPROBE_DEBUG of scripts/linux/guests.sh names: at least of kernel/fork.c, fs/open.c and
// arch/x86/entry/common.c.
func TestLinuxVariables(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			if !exists(filepath.Join(dir, "debug")) {
				t.Log("no debug information is there")
				return
			}
			h := serveLinux(t, dir, "echo ready;read x;for i in 1 2 3;do cat /etc/passwd;done >/dev/null;echo end;read x")
			h.console("ready")
			d, err := h.c.Disas(h.ctx, "kernel_clone", true)
			if err != nil {
				t.Fatal(err)
			}
			line := ""
			for _, i := range d.Insts {
				if l, err := h.c.Variables(h.ctx, i.Source); err == nil && len(l.Places) == 1 && strings.HasPrefix(i.Source, "kernel/fork.c:") &&
					slices.ContainsFunc(l.Places[0].Variables, func(v api.Variable) bool { return v.Name == "clone_flags" && v.Where != "" }) {
					line = i.Source
					break
				}
			}
			specs := []api.ProbeSpec{
				{Def: "p:entry kernel_clone flags=args->flags signal=args->exit_signal"},
				{Def: "p:line " + line + " flags=clone_flags signal=args->exit_signal threads=nr_threads", Stack: true},
				{Def: "p:open inline:do_sys_open filename:string", Filter: `filename == "/etc/passwd"`},
			}
			s := h.stream(h.ctx, api.StreamEvents{Probes: specs})
			next[api.Start](h, s, api.RecordStart)
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			var entry string
			opens, lines := 0, 0
			for lines < 3 || opens < 3 {
				hit := next[api.Hit](h, s, api.RecordHit)
				text := hit.Text[strings.Index(hit.Text, ") ")+2:]
				switch hit.Probe {
				case "kprobes/open":
					opens++
				case "kprobes/entry":
					if entry = text; !strings.HasSuffix(text, " signal=17") { // SIGCHLD
						t.Errorf("entry %s", text)
					}
				case "kprobes/line":
					lines++
					rest, ok := strings.CutPrefix(text, entry+" threads=")
					if n, err := strconv.Atoi(rest); !ok || err != nil || n < 10 || n > 1000 {
						t.Errorf("at the entry %s, at %s %s", entry, line, text)
					}
					if len(hit.Stack) < 3 || !strings.HasPrefix(hit.Stack[0].Source, "kernel/fork.c:") || !slices.ContainsFunc(hit.Stack, func(f api.Frame) bool {
						return strings.HasPrefix(f.Symbol, "do_syscall_64+") && strings.HasPrefix(f.Source, "arch/x86/entry/common.c:")
					}) {
						t.Errorf("stack %+v", hit.Stack)
					}
				}
			}
		})
	}
}
