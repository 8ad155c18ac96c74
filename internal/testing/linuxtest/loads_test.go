package linuxtest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// loadsScripts read what the marked calls pass, in all the ways that there are.
var loadsScripts = []string{
	`kprobe:do_sys_openat2 /(int32)arg0 == -77/ { printf("%s|%s|%r\n", str(arg1), str(arg1, 8), buf(arg1, 16)); }`,
	`kprobe:do_sys_openat2 /(int32)arg0 == -77/ { printf("%lx %x %lx\n", *(uint64 *)arg1, *(uint8 *)(arg1 + 3), *(uint64 *)(arg1 + 4093)); }`,
	`kprobe:do_sys_openat2 /(int32)arg0 == -77/ { @at[tid] = arg1; @on[tid] = 1; }
kretprobe:do_sys_openat2 /@on[tid]/ { printf("%s %d %s %lx\n", comm, retval, str(@at[tid], 32), *(uint64 *)@at[tid]); delete(@at, tid); delete(@on, tid); }`,
	`kprobe:do_sys_openat2 /(int32)arg0 == -77/ { printf("%d %d %d %d %s\n", uid, gid, cgroup, curtask->cred->uid.val, str(curtask->mm->exe_file->f_path.dentry->d_name.name)); }`,
}

// TestLoads: programs that run in a Linux guest read what handlers on the host read, at addresses of all kinds, and the guest notices
// nothing: its log, its text and the counts of its tasks stay as they were.
func TestLoads(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { testLoads(t, dir) })
	}
}

// loads is a guest with a session in which the program of the test runs.
type loads struct {
	tracers
	s *session.Session
}

// bootLoads boots a guest with a session, in which the program of the test waits.
func bootLoads(t *testing.T, dir string, vcpus int, more ...func(c *machine.Config)) *loads {
	t.Helper()
	var k *linux.Kernel
	g := boot(t, dir, "sh /commands.sh", func(c *machine.Config) {
		k, c.VCPUs, c.Memory = c.Linux.Kernel, vcpus, 512<<20
		carryInside(t, c)
		for _, f := range more {
			f(c)
		}
	})
	l := &loads{tracers{Guest: g}, g.newSession(k)}
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("READY")
	g.Command(fmt.Sprintf("/%s >/tmp/%[1]s.log 2>&1 & until [ -p %s ]; do sleep 0.1; done", inside, insideOut))
	return l
}

func testLoads(t *testing.T, dir string) {
	l := bootLoads(t, dir, 2)
	g := l.Guest
	cases := strings.Fields(l.ask("loads")) // makes the memory
	t.Logf("%d cases: %v", len(cases), cases)
	if said := g.vcpus(); !strings.Contains(said, "\ntask 1 init\n") || !strings.Contains(said, "__schedule+") {
		t.Errorf("no stacks of tasks:\n%s", said)
	}
	before := g.Text()
	for _, text := range loadsScripts {
		l.checkAlike(text, cases, func(onHost bool) []string { return l.script(text, onHost, "loads") })
	}
	def := "do_sys_openat2 dfd=$arg1:s32 s=+0($arg2):string u=+u0($arg2):ustring x=+0($arg2):x64 y=+u3($arg2):u32 far=+0(+0($arg2)):x8"
	l.checkAlike(def, cases, func(onHost bool) []string { return l.events("p "+def, onHost) })
	l.checkRace()
	l.checkCalls()
	l.checkInterrupts()
	g.checkSameText(g.Text(), before)
	for _, line := range g.Command("dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|unable to handle|scheduling while' || true") {
		t.Errorf("the guest's log: %s", line)
	}
}

// checkAlike fails the test unless what is read is the same on the host and in the guest.
func (l *loads) checkAlike(what string, cases []string, read func(onHost bool) []string) {
	l.t.Helper()
	want, got := read(true), read(false)
	if len(want) != len(cases) || len(got) != len(cases) {
		l.t.Errorf("%s: %d lines on the host, %d in the guest, of %d calls\n%s", what, len(want), len(got), len(cases), strings.Join(got, "\n"))
		return
	}
	for i, name := range cases {
		if got[i] != want[i] {
			l.t.Errorf("%s: %s\non the host:  %s\nin the guest: %s", what, name, want[i], got[i])
		}
	}
}

// script runs a script while the guest does what is asked for, and returns the lines of its output.
func (l *loads) script(text string, onHost bool, request string) []string {
	l.t.Helper()
	x := sessiontest.Start(l.t, l.s, text, session.ScriptOptions{OnHost: onHost})
	if err := l.Engine().Optimize(); err != nil {
		l.t.Fatal(err)
	}
	for _, i := range x.Probes() {
		if i.Site.InGuest == onHost {
			l.t.Errorf("%s: on the host %v, in the guest %v: %s", i.Name, onHost, i.Site.InGuest, i.OnHost)
		}
	}
	if request != "" {
		if answer := l.ask(request); strings.HasPrefix(answer, "error") {
			l.t.Error(answer)
		}
	} else {
		l.Command("sleep 2")
	}
	for _, i := range x.Probes() {
		if s := i.Stats; s.Missed != 0 {
			l.t.Errorf("%s: %+v", i.Name, s)
		}
	}
	out, _, _ := x.End()
	return strings.Split(strings.TrimRight(out, "\n"), "\n")
}

// events returns the events of a definition while the calls are made.
func (l *loads) events(def string, onHost bool) (lines []string) {
	l.t.Helper()
	sub := l.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	as, err := l.s.Attach([]session.Spec{{Def: def, Filter: "dfd == -77", OnHost: onHost}}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.Engine().Optimize(); err != nil {
		l.t.Fatal(err)
	}
	if i := l.s.Describe(as.Probes)[0]; i.Site.InGuest == onHost {
		l.t.Errorf("%s: on the host %v, in the guest %v: %s", def, onHost, i.Site.InGuest, i.OnHost)
	}
	n := len(strings.Fields(l.ask("loads")))
	x := shell{l.Guest, l.s}
	for range n {
		ev, rec := x.next(sub)
		lines = append(lines, string(ev.Source.Layout.AppendArgs(nil, rec)))
	}
	if _, err := l.s.DetachIf(func(*session.Probe) bool { return true }); err != nil {
		l.t.Fatal(err)
	}
	return lines
}

// checkRace: a page that another processor maps and unmaps meanwhile is read as a whole, or not at all, and no call is missed.
func (l *loads) checkRace() {
	const calls = 2000
	out := l.script(`kprobe:do_sys_openat2 /(int32)arg0 == -77/ { @[str(arg1)] = count(); @left[curtask->pagefault_disabled] = count(); }
END { printf("%d %d %d\n", (int64)@["/none/race"], (int64)@[""], (int64)@left[0] + (int64)@left[1]); clear(@); clear(@left); }`, false, fmt.Sprintf("race %d", calls))
	var there, missing, sum int
	if _, err := fmt.Sscan(strings.Join(out, " "), &there, &missing, &sum); err != nil || there+missing != calls || sum != calls {
		l.t.Errorf("%q, want a sum of %d: %v", out, calls, err)
	}
	l.t.Logf("the page was there %d times, and %d times not", there, missing)
}

// checkCalls: a program reads a bad address in a function of the kernel's that the host calls from inside a hit: there the breakpoint that
// has the kernel resume faults is hit in the middle of a handler.
func (l *loads) checkCalls() {
	at, err := l.Image().Lookup("gcd")
	if err != nil {
		l.t.Fatal(err)
	}
	const calls = 3
	x := sessiontest.Start(l.t, l.s, "kprobe:__queue_work { @[*(uint64 *)0xdead000000000100, *(uint64 *)8] = count(); }", session.ScriptOptions{})
	if err := l.Engine().Optimize(); err != nil {
		l.t.Fatal(err)
	}
	if i := x.Probes()[0]; !i.Site.InGuest {
		l.t.Errorf("on the host: %s", i.OnHost)
	}
	for range calls {
		if got, err := l.Call(patience.Context(l.t), at.Addr, 91, 35); err != nil || got != 7 {
			l.t.Errorf("gcd(91, 35) is %d, %v", got, err)
		}
	}
	if s := x.Probes()[0].Stats; s.InGuest < calls || s.Missed != 0 {
		l.t.Errorf("%+v", s)
	}
	if out, _, _ := x.End(); !strings.Contains(out, "@[0, 0]: ") {
		l.t.Errorf("%q", out)
	}
}

// checkInterrupts: programs read bad addresses in handlers of interrupts, and of idle tasks.
func (l *loads) checkInterrupts() {
	out := l.script(`kprobe:update_process_times { @[*(uint64 *)arg0, *(uint64 *)0xdead000000000100, str(0), cpu] = count(); @comm[str(curtask->comm) == comm] = count(); }
END { print(@comm); clear(@comm); clear(@); }`, false, "")
	if len(out) != 1 || !strings.HasPrefix(out[0], "@comm[1]: ") && !strings.HasPrefix(out[0], "@comm[true]: ") {
		l.t.Errorf("%q", out)
	}
}
