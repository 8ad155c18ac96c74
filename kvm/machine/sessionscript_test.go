package machine

import (
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe/session"
)

// onGuest is a guest under KVM with a session.
type onGuest struct {
	*testing.T
	m *Machine
	s *session.Session
}

// onBuiltin returns a built-in guest that runs its load forever. Its kernel code runs stages on any host.
func onBuiltin(t *testing.T, vcpus int) *onGuest {
	t.Helper()
	m, s := sessionOf(t, Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: "rounds=0", EmulatedStages: true}, session.Options{})
	return &onGuest{t, m, s}
}

// onIdle is onBuiltin for a guest with one vCPU that does nothing but what it is called for.
func onIdle(t *testing.T) *onGuest {
	t.Helper()
	m, s := sessionOf(t, Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "idle", EmulatedStages: true}, session.Options{})
	return &onGuest{t, m, s}
}

// calls calls a function of the guest.
func (x *onGuest) calls(fn string, args ...uint64) int64 {
	x.Helper()
	got, err := x.m.Call(patience.Context(x), address(x, x.m, fn), args...)
	if err != nil {
		x.Fatal(err)
	}
	return int64(got)
}

// await waits until is returns true for a probe.
func (x *onGuest) await(name, what string, is func(session.Info) bool) session.Info {
	x.Helper()
	return awaitProbe(x.T, x.m, x.s, name, what, is)
}

// warmUp attaches a definition until its probe runs in the guest, so that the host knows how user code finds the number of its vCPU.
func (x *onGuest) warmUp() {
	x.Helper()
	if _, err := x.s.Attach([]session.Spec{{Def: "p:first user_hot a=%di"}}, nil); err != nil {
		x.Fatal(err)
	}
	x.await("first", "in the guest", func(i session.Info) bool { return i.Site.InGuest && i.Stats.InGuest > 0 })
	if _, err := x.s.Detach("first"); err != nil {
		x.Fatal(err)
	}
}

// runUnsafe runs a script that may change what the guest does while f runs, and returns its text and its warnings.
func (x *onGuest) runUnsafe(text string, f func(*sessiontest.Script)) (out string, warnings []string) {
	x.Helper()
	sc := sessiontest.Start(x, x.s, text, session.ScriptOptions{Unsafe: true})
	f(sc)
	out, warnings, _ = sc.End()
	return out, warnings
}

// checkNothingLeft checks that nothing is attached, and that the code is the image's.
func (x *onGuest) checkNothingLeft() {
	x.Helper()
	if ps, ms := x.s.Probes(), x.s.Maps(); len(ps)+len(ms) > 0 {
		x.Errorf("left: %v, %+v", ps, ms)
	}
	checkText(x.T, x.m)
}

// TestSessionSetReg: the guest continues with the registers that a script has set, however
// the probed instruction is executed. The script still sees the registers of the hit.
func TestSessionSetReg(t *testing.T) {
	x := onBuiltin(t, 1)
	failed, missing := x.calls("vfs_read", 999, 0, 0, 0), x.calls("vfs_read", 3, 0, 0, 0)
	if failed == missing {
		t.Fatalf("vfs_read returns %d for a file and for none", failed)
	}
	room, err := x.m.Image().Lookup("jprobe_args") // which nothing else uses
	if err != nil {
		t.Fatal(err)
	}
	plans := map[string]bool{}
	for _, c := range []struct {
		script string
		fn     string
		args   []uint64
		want   int64
	}{
		// Emulated, and as a jump; registers in the context do not change.
		{`kprobe:bench_target /arg0 == 7/ { setreg("di", arg0 + arg1); setreg("si", 100); @[arg0, reg("si")] = count(); }`, "bench_target", []uint64{7, 5}, 112},
		{`kprobe:bench_target /arg0 == 7/ { setreg("di", -1); setreg("di", 40); @ = count(); }`, "bench_target", []uint64{7, 2}, 42},
		{`kretprobe:bench_target /arg0 == 7/ { setreg("ax", retval * 2); @[retval] = count(); }`, "bench_target", []uint64{7, 5}, 24},
		{`kprobe:bench_target+4 /arg0 == 7/ { setreg("ax", 9); @ = count(); }`, "bench_target", []uint64{7, 5}, 9},
		// endbr64, sub, cmp, ja, movslq, mov, lea, ... of vfs_read(fd, buf, count, pos).
		{`kprobe:vfs_read /arg0 == 3 && arg2 == 0/ { setreg("di", 999); @ = count(); }`, "vfs_read", []uint64{3, 0, 0, 0}, failed},
		{`kprobe:vfs_read+4 /arg0 == 3 && arg2 == 0/ { setreg("di", 999); @ = count(); }`, "vfs_read", []uint64{3, 0, 0, 0}, failed},
		{`kprobe:vfs_read+7 /arg0 == 0 && arg2 == 0/ { setreg("di", 999); @ = count(); }`, "vfs_read", []uint64{3, 0, 0, 0}, failed},
		// "Above" depends on the flags that ja reads, and the script sets these.
		{`kprobe:vfs_read+10 /arg0 == 0 && arg2 == 0/ { setreg("flags", 0); @ = count(); }`, "vfs_read", []uint64{3, 0, 0, 0}, failed},
		// mov 0x10(%rdi),%rsi reads a file's size: here of the next file in the table.
		{`kprobe:vfs_read+36 /reg("cx") == 20 && reg("dx") == 200/ { setreg("di", reg("di") + 24); @ = count(); }`, "vfs_read", []uint64{3, uint64(room.Addr), 200, 20}, 12},
		// Other flags do not change: a guest without interrupts would not answer.
		{`kprobe:bench_target /arg0 == 7/ { setreg("flags", 0xffffffffffffffff); override(1); @ = count(); }`, "bench_target", []uint64{7, 5}, 1},
		{`uprobe:user_hot { setreg("ax", 5); @ = count(); }`, "bench_target", []uint64{7, 5}, 12},
	} {
		for _, optimized := range []bool{false, true} {
			if err := x.m.Engine().SetOptimization(optimized); err != nil {
				t.Fatal(err)
			}
			plain := x.calls(c.fn, c.args...)
			out, warnings := x.runUnsafe(c.script, func(sc *sessiontest.Script) {
				if err := x.m.Engine().Optimize(); err != nil {
					t.Fatal(err)
				}
				p := sc.Probes()[0]
				plans[fmt.Sprint(p.Plan, " ", p.Site.Optimized)] = true
				if p.Site.InGuest || !strings.Contains(p.OnHost, "only the engine may") {
					t.Errorf("%s runs on the host: %q", c.script, p.OnHost)
				}
				for range 2 {
					if got := x.calls(c.fn, c.args...); got != c.want {
						t.Errorf("%s: %v%v returns %d, want %d", c.script, p.Plan, c.args, got, c.want)
					}
				}
			})
			if !strings.HasPrefix(c.script, "uprobe") && !strings.HasSuffix(out, ": 2\n") || len(warnings) > 0 {
				t.Errorf("%s prints %q, %q", c.script, out, warnings)
			}
			if got := x.calls(c.fn, c.args...); got != plain {
				t.Errorf("%s: after the end %d, want %d", c.script, got, plain)
			}
		}
	}
	for _, want := range []string{"emulate true", "emulate false", "boost false"} {
		if !plans[want] {
			t.Errorf("no probe is served by %q, but by %v", want, plans)
		}
	}
}

// TestSessionPoke: a script's writes change the guest's memory, and nothing else. A write that
// fails gives a warning with its count.
func TestSessionPoke(t *testing.T) {
	x := onBuiltin(t, 1)
	out, warnings := x.runUnsafe(`struct pair { uint32 a; uint16 b; };
kprobe:bench_target /arg0 == 7/ {
	$p = kaddr("jprobe_args");
	poke($p, (uint64)0x1122334455667788); poke($p + 2, (uint16)0xaabb); poke($p + 8, "text"); poke($p + 16, (uint8)arg1);
	$s = *(struct pair *)$p; poke($p + 24, $s);
	poke($p + 32, buf($p + 8, 2)); poke($p + 40, str($p + 8)); poke($p + 48, (uint8[4])0x04030201); poke($p + 52, arg1 == 5);
	printf("%lx %s %d %lx %rx %s %lx\n", *(uint64 *)$p, str($p + 8), *(uint64 *)($p + 16), *(uint64 *)($p + 24), buf($p + 32, 3), str($p + 40), *(uint64 *)($p + 48));
}
END { $p = kaddr("jprobe_args"); printf("%s", str($p + 8)); }`, func(*sessiontest.Script) { x.calls("bench_target", 7, 5) })
	if want := "11223344aabb7788 text 5 11223344aabb7788 \\x74\\x65\\x00 text 104030201\ntext\n\n"; out != want || len(warnings) > 0 {
		t.Errorf("prints %q, want %q; %q", out, want, warnings)
	}
	out, warnings = x.runUnsafe(`kprobe:bench_target /arg0 == 7/ {
	poke(0xffff900000000000, "x");
	poke(kaddr("bench_target"), (uint8)0x90);
	poke(kaddr("bench_target") - 15, buf(kaddr("names"), 16));
	poke(0x200000, (uint8)0x90); // where it is, too
	poke(kaddr("vfs_write"), (uint8)0x90);
	@ = count(); }
kretprobe:bench_target { @r = stats(retval); }`, func(*sessiontest.Script) {
		for range 3 {
			if got := x.calls("bench_target", 7, 5); got != 12 {
				t.Errorf("returns %d", got)
			}
		}
	})
	if out != "\n\n@: 3\n@r: { .count = 3, .average = 12, .total = 36 }\n" {
		t.Errorf("prints %q", out)
	}
	for _, want := range []string{
		"stdin:2:2-31: WARNING: Bad address (3 times)\n", "stdin:3:2-42: WARNING: Operation not permitted (3 times)\n", "stdin:4:2-59: WARNING: Operation not permitted (3 times)\n",
		"stdin:5:2-29: WARNING: Operation not permitted (3 times)\n", "stdin:6:2-39: WARNING: Bad address (3 times)\n",
	} {
		if !slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(w, want) }) {
			t.Errorf("no %q among %q", want, warnings)
		}
	}
	x.checkNothingLeft()
}

// TestSessionTotals ends scripts while their long program runs in the guest all the time, on
// a busy host. The maps have complete runs, one for each handled hit, and
// nothing is added afterwards.
func TestSessionTotals(t *testing.T) {
	x := onBuiltin(t, 2)
	x.warmUp()
	stop := make(chan struct{})
	defer close(stop)
	for range runtime.NumCPU() {
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		sc := sessiontest.Start(t, x.s, `kprobe:user_hot { @first = count(); for ($i : 0..2000) { @n++; } @last = count(); }
interval:ms:2 { if (@first > 20) { exit(); } } END { print(@n == 2000 * @first); }`, session.ScriptOptions{})
		if p := sc.Probes()[0]; !p.Site.InGuest {
			t.Fatalf("it runs on the host: %s", p.OnHost)
		}
		sc.Wait()
		out, warnings, gone := sc.End()
		stats := gone[0].Stats
		handled := stats.Handled
		if want := fmt.Sprintf("true\n\n\n@first: %d\n@last: %[1]d\n@n: %d\n", handled, 2000*handled); out != want || handled == 0 || len(warnings) > 0 {
			t.Errorf("round %d: printed %q, want %q; warnings %q, %+v", round, out, want, warnings, stats)
		}
	}
}

// gaveUp matches the warning about an element that was not updated, with its column, and its count if it is more than 1.
var gaveUp = regexp.MustCompile(`^stdin:1:(\d+)-\d+: WARNING: Element could not be updated: another run is about to, and has not ended(?: \((\d+) times\))?\n`)

// TestScriptTakes prints and clears maps repeatedly while programs in the guest
// add to them all the time. Every hit is printed once. So are the additions of programs on the
// host, except as many as a warning reports: if a run is interrupted while it
// changes an element, another run that needs this element gives up after a while (docs/programs.md).
func TestScriptTakes(t *testing.T) {
	x := onBuiltin(t, 2)
	x.warmUp()
	const counts = `kprobe:user_hot { @n = count(); @k[arg1 & 3] = count(); @s[arg1 & 7] = sum(1); @there = 1; } interval:ms:400 { if (@there) { exit(); } } `
	for name, c := range map[string]struct {
		script string
		every  time.Duration // between the times that all maps are printed and cleared; 0: the script does so itself
	}{
		"by an option":         {counts + `interval:ms:2 { @ticks = count(); @n = count(); }`, time.Millisecond},
		"print and then clear": {counts + `interval:ms:2 { @ticks = count(); @n = count(); print(@n); clear(@n); print(@k); clear(@k); print(@s); clear(@s); }`, 0},
		"print and then zero":  {counts + `interval:ms:2 { @ticks = count(); @n = count(); print(@n); zero(@n); print(@k); zero(@k); print(@s); zero(@s); }`, 0},
	} {
		sc := sessiontest.Start(t, x.s, c.script, session.ScriptOptions{})
		if p := sc.Probes()[0]; !p.Site.InGuest {
			t.Fatalf("it runs on the host: %s", p.OnHost)
		}
		sc.WaitTaking(c.every)
		out, warnings, gone := sc.End()
		sums, times := map[string]uint64{}, 0
		for _, line := range strings.Split(out, "\n") {
			key, value, _ := strings.Cut(line, ": ")
			key, _, _ = strings.Cut(key, "[")
			if n := uint64(0); key != "" {
				fmt.Sscan(value, &n)
				sums[key] += n
				times++
			}
		}
		lost := map[string]uint64{} // by map: the last warning of a place has its sum
		for _, w := range warnings {
			m := gaveUp.FindStringSubmatch(w)
			if m == nil {
				t.Errorf("%s: warning %q", name, w)
				continue
			}
			n := uint64(1)
			if m[2] != "" {
				fmt.Sscan(m[2], &n)
			}
			column := 0
			fmt.Sscan(m[1], &column)
			lost[c.script[column-1:column+1]] = n
		}
		handled := gone[0].Stats.Handled
		if handled == 0 || sums["@k"]+lost["@k"] != handled || sums["@s"]+lost["@s"] != handled || sums["@n"]+lost["@n"] != handled+sums["@ticks"] || sums["@ticks"] == 0 {
			t.Errorf("%s: %d lines with %v of %d hits, %v lost; warnings %q", name, times, sums, handled, lost, warnings)
		}
		t.Logf("%s: %d lines with %v of %d hits, %v lost", name, times, sums, handled, lost)
	}
}

// TestSessionWatchOrder: clauses at one access run in the order of the source.
func TestSessionWatchOrder(t *testing.T) {
	x := onBuiltin(t, 1)
	sc := sessiontest.Start(t, x.s, `watchpoint:bench_target:1:x { print(1); } watchpoint:bench_target:1:x { print(2); }`, session.ScriptOptions{Emulate: true})
	x.calls("bench_target", 7)
	out, warnings, _ := sc.End()
	if got := strings.Join(strings.Fields(out), " "); got != "1 2" || len(warnings) > 0 {
		t.Errorf("%q, warnings %q", got, warnings)
	}
	x.checkNothingLeft()
}
