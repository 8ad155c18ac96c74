package http

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveLinux starts a daemon with the Linux guest in dir, which runs command. changes are applied last
// to the daemon's options.
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

// console waits for a line of the guest's output, and returns all lines up to it.
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

// TestLinuxSourceRoutes: the routes for disassembly and variables, and an event stream, use a Linux kernel's debug information.
// At a line of kernel_clone a local variable has the value of the function's argument. A variable of an inlined function is the file
// that the guest opens. The stacks of hits have line numbers. The debug information is the file in GUESTPROBE_DEBUG of
// scripts/linux/guests.sh. It must contain kernel/fork.c, fs/open.c and arch/x86/entry/common.c.
func TestLinuxSourceRoutes(t *testing.T) {
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
