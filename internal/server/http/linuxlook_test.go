package http

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// sleeperWork has a task that sleeps, shows what the kernel says of its stack, and waits.
const sleeperWork = "sleep 1000& p=$!;sleep 1;echo sleeper $p;while read l;do echo \"stack $l\";done </proc/$p/stack;echo end;read x;for i in 1 2 3;do busybox wc -l /etc/passwd;done;echo done;read x"

// TestLinuxLook looks at a Linux guest: the stack of a task that sleeps is what its kernel says of
// it, the current task's name is the same by its type and by the list of tasks, and a symbol is where the page
// tables lead.
func TestLinuxLook(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, sleeperWork)
			pid := ""
			var want []string
			for _, line := range h.console("end") {
				if n, ok := strings.CutPrefix(line, "sleeper "); ok {
					pid = n
				}
				if m := regexp.MustCompile(`^stack \[<0>\] (\S+?)(/0x\w+)?( \[\w+\])?$`).FindStringSubmatch(line); m != nil {
					want = append(want, m[1])
				}
			}
			look := func(of remote.Where) []api.Backtrace {
				t.Helper()
				l, err := h.c.Backtraces(h.ctx, of)
				if err != nil {
					t.Fatal(err)
				}
				return l.Backtraces
			}
			// With probes on what the task is in, and on what it will return through.
			for _, probed := range []bool{false, true} {
				if probed {
					h.attach("p:a do_nanosleep", "r:b hrtimer_nanosleep", "p:c schedule", "r:d schedule")
				}
				bs := look(remote.Where{Task: pid})
				var got []string
				for _, f := range bs[0].Frames {
					name, _, _ := strings.Cut(f.Symbol, "/")
					if name != "" {
						got = append(got, name)
					}
				}
				// The kernel leaves out what its scheduler runs (in_sched_functions).
				for len(got) > 0 && len(want) > 0 && got[0] != want[0] {
					got = got[1:]
				}
				if len(want) < 3 || strings.Join(got, " ") != strings.Join(want, " ") || bs[0].CPU != nil || bs[0].Task == nil || bs[0].Task.Comm != "sleep" {
					t.Errorf("probed %v: the stack of task %s:\n%+v\nthe kernel has\n%v", probed, pid, bs, want)
				}
			}
			// Up to 5.10 CPU 0 comes to cpu_startup_entry by jumps from start_kernel, whose text is freed by then.
			for i, b := range look(remote.Where{}) {
				last := ""
				for _, f := range b.Frames {
					if f.Symbol != "" {
						last, _, _ = strings.Cut(f.Symbol, "+")
					}
				}
				if b.CPU == nil || *b.CPU != i || b.Task == nil || b.More || !regexp.MustCompile(`^(rest_init|secondary_startup_64(_no_verify)?|x86_64_start_kernel|entry_SYSCALL_64_after_hwframe|ret_from_fork(_asm)?|asm_\w+|common_startup_64|cpu_startup_entry)$`).MatchString(last) {
					t.Errorf("vcpu %d ends in %q: %+v", i, last, b)
				}
			}
			m, err := h.c.Memory(h.ctx, remote.Where{At: "init_task"}, remote.MemoryQuery{Type: "struct task_struct.comm"})
			if err != nil || m.Text != `"swapper/0"` || string(m.Value) != `"swapper/0"` {
				t.Errorf("%+v, %v", m, err)
			}
			if m, err = h.c.Memory(h.ctx, remote.Where{At: "init_task"}, remote.MemoryQuery{Type: "task_struct"}); err != nil || !strings.Contains(m.Text, "\n  .comm = \"swapper/0\"\n") {
				t.Errorf("%d bytes of text, %v", len(m.Text), err)
			}
			regs, err := h.c.Registers(h.ctx, "", true)
			if err != nil || len(regs.VCPUs) != h.s.opt.vcpus {
				t.Fatal(regs, err)
			}
			for _, r := range regs.VCPUs {
				w, err := h.c.PageWalk(h.ctx, remote.Where{At: "schedule", Space: fmt.Sprint(uint64(r.Control["cr3"]))})
				if err != nil || w.Mapping == nil || w.Mapping.NoExec || w.Mapping.User || w.Mapping.Region == "" {
					t.Errorf("%+v, %v", w, err)
				}
			}
			// The same memory by the direct mapping of all of it, with probes in it.
			w, err := h.c.PageWalk(h.ctx, remote.Where{At: "schedule"})
			if err != nil || w.Mapping == nil {
				t.Fatal(w, err)
			}
			own, err := h.c.Memory(h.ctx, remote.Where{At: "schedule"}, remote.MemoryQuery{Length: 16})
			if err != nil {
				t.Fatal(err)
			}
			base, err := h.c.Memory(h.ctx, remote.Where{At: "page_offset_base"}, remote.MemoryQuery{Type: "u64"})
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.ParseUint(strings.Trim(string(base.Value), `"`), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			direct := fmt.Sprintf("%#x", n+uint64(w.Mapping.Physical))
			alias, err := h.c.Memory(h.ctx, remote.Where{At: direct}, remote.MemoryQuery{Length: 16})
			live, err2 := h.c.Memory(h.ctx, remote.Where{At: direct}, remote.MemoryQuery{Length: 16, Live: true})
			if err != nil || err2 != nil || alias.Data != own.Data || live.Data == own.Data {
				t.Errorf("at %s: %s, live %s, %v %v; the symbol has %s", direct, alias.Data, live.Data, err, err2, own.Data)
			}

			// A vCPU is stopped in the kernel, stepped, and goes on.
			if _, err := h.c.DetachAll(h.ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:read vfs_read", Filter: `comm == "busybox" || comm == "wc"`, Stop: api.StopVCPU}, api.ProbeSpec{Def: "r:back vfs_read"}); err != nil {
				t.Fatal(err)
			}
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			stopped := func() string {
				for {
					changed := h.s.guest.Changed()
					g, err := h.c.Guest(h.ctx)
					if err != nil {
						t.Fatal(err)
					}
					for _, c := range g.CPUs {
						if c.State == "stopped" {
							return c.Symbol
						}
					}
					select {
					case <-changed:
					case <-h.ctx.Done():
						t.Fatalf("%+v", g)
					}
				}
			}
			at := stopped()
			if !strings.HasPrefix(at, "vfs_read+") {
				t.Errorf("stopped at %s", at)
			}
			b := look(remote.Where{})[0]
			if b.Task == nil || b.Frames[0].Symbol == "" || !strings.HasPrefix(b.Frames[1].Symbol, "ksys_read+") {
				t.Errorf("%+v", b)
			}
			for _, do := range []api.Step{{How: api.StepInto, Count: 200}, {How: api.StepNext, Count: 20}, {How: api.StepInto, Count: 100}} {
				got, err := h.c.Step(h.ctx, do)
				if err != nil || got.Steps != do.Count || !got.Reached || got.Symbol == "" {
					t.Errorf("%+v: %+v, %v", do, got, err)
				}
				t.Logf("%s %d: %s %s", do.How, do.Count, got.Symbol, got.Text)
			}
			for range 40 {
				got, err := h.c.Step(h.ctx, api.Step{How: api.StepFinish})
				if err != nil {
					t.Fatal(err)
				}
				if t.Logf("finish: %s", got.Symbol); strings.HasPrefix(got.Symbol, "ksys_read+") {
					break
				}
			}
			if _, err := h.c.DetachAll(h.ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := h.c.Resume(h.ctx); err != nil {
				t.Fatal(err)
			}
			h.console("done")
		})
	}
}
