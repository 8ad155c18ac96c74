package linuxtest

import (
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// What TestTracers switches by a program in the guest: BPF programs, and perf's events.

// insideProbe is one of them.
type insideProbe struct {
	f      *traced // nil: tracepoint
	off    int
	kind   string
	name   string
	before int
}

func (p *insideProbe) String() string {
	if p.f == nil {
		return p.name + " " + p.kind
	}
	return fmt.Sprintf("%s %s of %s+%d", p.name, p.kind, p.f.name, p.off)
}

// carryInside puts this test's own binary into the guest.
func carryInside(t *testing.T, c *machine.Config) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := elf.Open(self); err != nil {
		t.Fatal(err)
	} else if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Fatal("the guest has no libraries for the test's binary: build it with CGO_ENABLED=0")
	}
	if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, fstest.MapFS{inside: {Data: data, Mode: 0o755}}); err != nil {
		t.Fatal(err)
	}
}

// ask has the program in the guest do something, and returns what it answers.
func (g *tracers) ask(request string) string {
	g.t.Helper()
	return strings.Join(g.Command(fmt.Sprintf("echo '%s' >%s; read -r answer <%s; echo \"$answer\"", request, insideIn, insideOut)), "\n")
}

// insideTracepoint is hit once by each loop of the load.
const insideTracepoint = "syscalls/sys_enter_rmdir"

// surveyInside starts the program, and finds out what it may attach where, and what that counts, without ours.
func (g *tracers) surveyInside(loops int) {
	g.t.Helper()
	g.Command(fmt.Sprintf("/%s >/tmp/%[1]s.log 2>&1 & until [ -p %s ]; do sleep 0.1; done", inside, insideOut))
	kinds := []string{"fentry", "fexit", "multi", "multiret", "kretprobe", "kprobe", "breakpoint", "fmodret"}
	all := map[string]int{}
	none := g.Host().NoWatchReason(probe.AccessExec, false, false) // what an emulated processor has not for us it may not have for the guest
	for _, f := range g.functions {
		for _, kind := range kinds {
			p := &insideProbe{f: f, kind: kind, name: "survey"}
			if !slices.Contains(f.offs, 0) || kind == "fmodret" && !strings.HasPrefix(f.name, "security_") {
				continue // the kernel allows such at its hooks for security
			}
			if answer := g.ask(p.request()); answer != "ok" {
				g.t.Logf("%s: %s", p, answer)
				continue
			}
			before := g.read()["survey"]
			g.Command(fmt.Sprintf("%s %d", g.load, loops))
			got := g.read()["survey"] - before
			g.ask("del survey")
			if kind == "breakpoint" && got == 0 && none != "" {
				g.t.Logf("%s: no hits; on this host: %s", p, none)
				continue
			}
			if got != loops*f.calls[0] {
				g.t.Errorf("without ours: %d hits by the guest's own %s, want %d", got, p, loops*f.calls[0])
			}
			f.kinds = append(f.kinds, kind)
			all[kind]++
		}
	}
	g.t.Logf("functions by what may trace them: %v", all)
	for _, kind := range []string{"fentry", "fexit", "kretprobe", "kprobe"} {
		if all[kind] == 0 {
			g.t.Errorf("no %s at all", kind)
		}
	}
}

// request returns what adds p.
func (p *insideProbe) request() string {
	if p.f == nil {
		return fmt.Sprintf("add %s %s %s", p.name, p.kind, insideTracepoint)
	}
	switch p.kind {
	case "breakpoint":
		return fmt.Sprintf("add %s breakpoint %#x", p.name, uint64(p.f.addr)+uint64(p.off))
	case "kprobe":
		return fmt.Sprintf("add %s kprobe %s %d", p.name, p.f.shortName(), p.off)
	}
	return fmt.Sprintf("add %s %s %s", p.name, p.kind, p.f.shortName())
}

// read returns what each has counted.
func (g *tracers) read() map[string]int {
	g.t.Helper()
	all := map[string]int{}
	for _, w := range strings.Fields(g.ask("read")) {
		name, n, ok := strings.Cut(w, "=")
		if all[name], _ = strconv.Atoi(n); !ok {
			g.t.Fatalf("the program in the guest says %s", w)
		}
	}
	return all
}

// countInside calls each for all of them, with what they have counted.
func (g *tracers) countInside(each func(p *insideProbe, n int)) {
	g.t.Helper()
	if len(g.inside) == 0 {
		return
	}
	all := g.read()
	for _, p := range g.inside {
		n, ok := all[p.name]
		if !ok {
			g.t.Fatalf("%s is not there any more: %v", p, all)
		}
		each(p, n)
	}
}

// addInside attaches something of what may be attached without ours.
func (g *tracers) addInside() string {
	g.t.Helper()
	g.n++
	p := &insideProbe{kind: "tracepoint", name: fmt.Sprintf("i%d", g.n)}
	if g.module != "" || g.rand.IntN(12) > 0 {
		f, off := g.place()
		if len(f.kinds) == 0 {
			return "none for " + f.name
		}
		p.f, p.kind = f, f.kinds[g.rand.IntN(len(f.kinds))]
		if p.kind == "kprobe" || p.kind == "breakpoint" {
			p.off = off
		}
	}
	breakpoints := 0
	for _, q := range g.inside {
		if q.kind == "breakpoint" {
			breakpoints++
		}
	}
	if p.kind == "breakpoint" && breakpoints >= 3 {
		return "no more breakpoints"
	}
	if answer := g.ask(p.request()); answer != "ok" {
		g.t.Errorf("%s: %s", p, answer)
		return "refused"
	}
	g.inside = append(g.inside, p)
	return "add " + p.String()
}

// removeInside takes one away.
func (g *tracers) removeInside(i int) string {
	g.t.Helper()
	p := g.inside[i]
	if answer := g.ask("del " + p.name); answer != "ok" {
		g.t.Errorf("remove %s: %s", p, answer)
	}
	g.inside = slices.Delete(g.inside, i, i+1)
	return "remove " + p.String()
}

// hidden reports whether a breakpoint in the guest's debug registers is at an instruction that a jump displaces.
func (g *tracers) hidden(p *insideProbe) bool {
	if p.kind != "breakpoint" {
		return false
	}
	at := p.f.addr + guest.GVA(p.off)
	text := make([]byte, 1)
	for i := range guest.GVA(x86.JmpLen - 1) {
		if err := g.Peek(at-i-1, text); err != nil {
			g.t.Error(err)
		} else if text[0] == 0xe9 {
			return true
		}
	}
	return false
}
