package linuxtest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/session"
)

// recorded are events that cat causes, and what a script prints for them: the same text as the kernel's own tracing.
var recorded = []struct{ event, print string }{
	{"sched:sched_process_exec", `printf("sched_process_exec: filename=%s pid=%d old_pid=%d\n", str(args.filename), args.pid, args.old_pid);`},
	{"sched:sched_switch", `printf("sched_switch: prev_comm=%s prev_pid=%d prev_prio=%d ==> next_comm=%s next_pid=%d next_prio=%d\n", args.prev_comm, args.prev_pid, args.prev_prio, args.next_comm, args.next_pid, args.next_prio);`},
	{"sched:sched_process_exit", `printf("sched_process_exit: comm=%s pid=%d prio=%d\n", args.comm, args.pid, args.prio);`},
	{"raw_syscalls:sys_enter", `printf("sys_enter: NR %ld (%lx, %lx, %lx, %lx, %lx, %lx)\n", args.id, args.args[0], args.args[1], args.args[2], args.args[3], args.args[4], args.args[5]);`},
	{"raw_syscalls:sys_exit", `printf("sys_exit: NR %ld = %ld\n", args.id, args.ret);`},
	{"syscalls:sys_enter_openat", `printf("sys_openat(dfd: %lx, filename: %lx, flags: %lx, mode: %lx)\n", (uint64)args.dfd, (uint64)args.filename, (uint64)args.flags, (uint64)args.mode);`},
	{"syscalls:sys_exit_openat", `printf("sys_openat -> 0x%lx\n", args.ret);`},
}

const switched = "sched_switch: "

// TestEvents: the fields of events' records equal those in the kernel's own tracing of the same hits, in the same order.
func TestEvents(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { events(t, dir) })
	}
}

// newCallText is how Linux 7 prints the entry of openat: numbers in decimal, with their meaning. callText is how older kernels do. Linux 7 has one more
// field in the event of a process's end.
var (
	prevState   = regexp.MustCompile(` prev_state=\S+`) // letters of flags
	groupDead   = regexp.MustCompile(` group_dead=(true|false)$`)
	newCallText = regexp.MustCompile(`^sys_openat\(dfd: (\d+), filename: (\d+) "`)
	callText    = regexp.MustCompile(`^sys_openat\(dfd: ([0-9a-f]+), filename: ([0-9a-f]+), `)
)

// plainCall reduces a record's text to the parts that both forms have.
func plainCall(l string) string {
	l = groupDead.ReplaceAllString(l, "")
	m, base := newCallText.FindStringSubmatch(l), 10
	if m == nil {
		m, base = callText.FindStringSubmatch(l), 16
	}
	if m == nil {
		return l
	}
	dfd, err := strconv.ParseUint(m[1], base, 64)
	name, err2 := strconv.ParseUint(m[2], base, 64)
	if err != nil || err2 != nil {
		return l
	}
	return fmt.Sprintf("sys_openat(%#x, %#x)", dfd, name)
}

func events(t *testing.T, dir string) {
	var k *linux.Kernel
	g := boot(t, dir, "sh /commands.sh", func(c *machine.Config) { k = c.Linux.Kernel })
	s := g.newSession(k)
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("READY")
	g.Command("mount -t tracefs none " + tracing + " 2>/dev/null; test -e " + tracing + "/set_event; ln -s /bin/busybox /tmp/cat")
	var text, command strings.Builder
	fmt.Fprintf(&command, "cd %s; echo >trace; ", tracing)
	for _, r := range recorded {
		fmt.Fprintf(&text, "tracepoint:%s /comm == \"cat\"/ { %s }\n", r.event, r.print)
		dir := strings.Replace(r.event, ":", "/", 1)
		fmt.Fprintf(&command, `echo 'COMM == "cat"' >events/%[1]s/filter; echo 1 >events/%[1]s/enable; `, dir)
	}
	command.WriteString("for i in 1 2 3; do /tmp/cat /proc/version >/dev/null; done; echo 0 >events/enable; grep ' cat-' trace")
	sc, err := s.StartScript(text.String(), session.ScriptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g.awaitOn(s)
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	done := make(chan error)
	go func() {
		_, err := sc.Run(ctx, &out)
		done <- err
	}()
	lines := g.Command(command.String())
	for _, p := range s.Describe(s.Probes()) {
		t.Logf("%s %s on %v: hits %d, handled %d, filtered %d, missed %d, optimized %v %s", p.Tracepoint, p.Program.Section, p.TracepointOn, p.Stats.Hits, p.Stats.Handled, p.Stats.Filtered, p.Stats.Missed, p.Site.Optimized, p.Site.Unoptimized.Reason)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var want []string
	head := regexp.MustCompile(`^ *\S+ +\[\d+\] \S+ +[\d.]+: `)
	for _, l := range lines {
		if !head.MatchString(l) {
			t.Fatalf("the guest says %q", l)
		}
		want = append(want, prevState.ReplaceAllString(head.ReplaceAllString(l, ""), ""))
	}
	got := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	if slices.ContainsFunc(want, newCallText.MatchString) {
		for _, all := range [][]string{got, want} {
			for i, l := range all {
				all[i] = plainCall(l)
			}
		}
	}
	t.Logf("%d records, for example %q", len(got), got[:min(8, len(got))])
	// Since 6.13 a task may be scheduled out between the functions at a tracepoint of system calls, and so between our record and the kernel's.
	for _, all := range [][]string{got, want} {
		slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(strings.Count(a, switched), strings.Count(b, switched)) })
	}
	if !slices.Equal(got, want) {
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("%d records, the kernel has %d; number %d: %q, the kernel %q", len(got), len(want), i, got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
			}
		}
	}
	if len(want) < 50 || !strings.HasPrefix(want[len(want)-1], switched) {
		t.Errorf("%d records only", len(want))
	}
	g.checkRecordable()
}

// checkRecordable: of all events of the kernel's own text, only those whose function has a static branch cannot have records here.
func (g *Guest) checkRecordable() {
	g.t.Helper()
	v := g.Image().(*linux.View).Tracing()
	all, err := v.Events()
	if err != nil {
		g.t.Fatal(err)
	}
	listed, err := v.EventsWithFields()
	if err != nil || len(listed) != len(all) {
		g.t.Errorf("%d events with fields of %d, %v", len(listed), len(all), err)
	}
	for i := 0; i < len(listed); i += 50 {
		x := &listed[i]
		if e, err := v.Event(x.System, x.Name); err != nil || !reflect.DeepEqual(&e, x) {
			g.t.Errorf("%v: %+v, %v, listed as %+v", x, e, err, x)
		}
	}
	n, refused := 0, []string(nil)
	for _, e := range all {
		if e.Record == 0 {
			continue
		}
		n++
		if _, err := v.RecordCode(e, e.Record, e.Record, e.Record); err != nil {
			refused = append(refused, err.Error())
			if !strings.HasSuffix(err.Error(), "(jump_label)") {
				g.t.Error(err)
			}
		}
	}
	g.t.Logf("%d of %d events have no records: %s", len(refused), n, strings.Join(refused, "; "))
	if n < 300 || len(refused) > 10 {
		g.t.Errorf("%d of %d events have no records", len(refused), n)
	}
}
