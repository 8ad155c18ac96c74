package http

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// unsafely runs a script that may change what the guest does while f runs, and returns what it
// prints and warns of.
func (h *harness) unsafely(text string, f func(start api.Start)) (out string, warnings []string) {
	h.Helper()
	s, start := h.script(api.RunScript{Script: text, Unsafe: true})
	f(start)
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		h.Fatal(err)
	}
	out, warnings, _ = h.rest(s)
	return out, warnings
}

// calls calls a function of the guest.
func (h *harness) calls(fn string, args ...api.Hex) int64 {
	h.Helper()
	r, err := h.c.Call(h.ctx, api.Call{Symbol: fn, Args: args})
	if err != nil {
		h.Fatal(err)
	}
	return r.Value
}

// TestScriptSetReg: the guest goes on with the registers that a script has set, whatever
// becomes of the probed instruction, and the script sees those of the hit.
func TestScriptSetReg(t *testing.T) {
	h := serveMachine(t, 1)
	failed, missing := h.calls("vfs_read", 999, 0, 0, 0), h.calls("vfs_read", 3, 0, 0, 0)
	if failed == missing {
		t.Fatalf("vfs_read returns %d for a file and for none", failed)
	}
	room, err := h.s.guest.Image().Lookup("jprobe_args") // which nothing else uses
	if err != nil {
		t.Fatal(err)
	}
	plans := map[string]bool{}
	for _, c := range []struct {
		script string
		fn     string
		args   []api.Hex
		want   int64
	}{
		// Emulated, and as a jump; a register of the context stays what it was.
		{`kprobe:bench_target /arg0 == 7/ { setreg("di", arg0 + arg1); setreg("si", 100); @[arg0, reg("si")] = count(); }`, "bench_target", []api.Hex{7, 5}, 112},
		{`kprobe:bench_target /arg0 == 7/ { setreg("di", -1); setreg("di", 40); @ = count(); }`, "bench_target", []api.Hex{7, 2}, 42},
		{`kretprobe:bench_target /arg0 == 7/ { setreg("ax", retval * 2); @[retval] = count(); }`, "bench_target", []api.Hex{7, 5}, 24},
		{`kprobe:bench_target+4 /arg0 == 7/ { setreg("ax", 9); @ = count(); }`, "bench_target", []api.Hex{7, 5}, 9},
		// endbr64, sub, cmp, ja, movslq, mov, lea, ... of vfs_read(fd, buf, count, pos).
		{`kprobe:vfs_read /arg0 == 3 && arg2 == 0/ { setreg("di", 999); @ = count(); }`, "vfs_read", []api.Hex{3, 0, 0, 0}, failed},
		{`kprobe:vfs_read+4 /arg0 == 3 && arg2 == 0/ { setreg("di", 999); @ = count(); }`, "vfs_read", []api.Hex{3, 0, 0, 0}, failed},
		{`kprobe:vfs_read+7 /arg0 == 0 && arg2 == 0/ { setreg("di", 999); @ = count(); }`, "vfs_read", []api.Hex{3, 0, 0, 0}, failed},
		// Above by the flags that ja reads, which is what they are about.
		{`kprobe:vfs_read+10 /arg0 == 0 && arg2 == 0/ { setreg("flags", 0); @ = count(); }`, "vfs_read", []api.Hex{3, 0, 0, 0}, failed},
		// mov 0x10(%rdi),%rsi, of a file's size: of the next file in the table.
		{`kprobe:vfs_read+36 /reg("cx") == 20 && reg("dx") == 200/ { setreg("di", reg("di") + 24); @ = count(); }`, "vfs_read", []api.Hex{3, api.Hex(room.Addr), 200, 20}, 12},
		// Other flags stay: a guest without interrupts would not answer.
		{`kprobe:bench_target /arg0 == 7/ { setreg("flags", 0xffffffffffffffff); override(1); @ = count(); }`, "bench_target", []api.Hex{7, 5}, 1},
		{`uprobe:user_hot { setreg("ax", 5); @ = count(); }`, "bench_target", []api.Hex{7, 5}, 12},
	} {
		for _, optimized := range []bool{false, true} {
			if err := h.s.guest.Engine().SetOptimization(optimized); err != nil {
				t.Fatal(err)
			}
			plain := h.calls(c.fn, c.args...)
			out, warnings := h.unsafely(c.script, func(start api.Start) {
				ps, err := h.c.Probes(h.ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := h.s.guest.Engine().Optimize(); err != nil {
					t.Fatal(err)
				}
				if ps, err = h.c.Probes(h.ctx); err != nil {
					t.Fatal(err)
				}
				plans[fmt.Sprint(ps[0].Plan, " ", ps[0].Optimized)] = true
				if ps[0].Runs != api.RunsOnHost || !strings.Contains(ps[0].OnHost, "only the engine may") {
					t.Errorf("%s runs %s: %s", c.script, ps[0].Runs, ps[0].OnHost)
				}
				for range 2 {
					if got := h.calls(c.fn, c.args...); got != c.want {
						t.Errorf("%s: %v%v returns %d, want %d", c.script, ps[0].Plan, c.args, got, c.want)
					}
				}
			})
			if !strings.HasPrefix(c.script, "uprobe") && !strings.HasSuffix(out, ": 2\n") || len(warnings) > 0 {
				t.Errorf("%s prints %q, %q", c.script, out, warnings)
			}
			if got := h.calls(c.fn, c.args...); got != plain {
				t.Errorf("%s: behind the end %d, want %d", c.script, got, plain)
			}
		}
	}
	for _, want := range []string{"emulate true", "emulate false", "boost false"} {
		if !plans[want] {
			t.Errorf("no probe is served by %q, but by %v", want, plans)
		}
	}
}

// TestScriptPoke: memory of the guest has what a script has written, and nothing else has
// changed; what cannot be written is told with its count.
func TestScriptPoke(t *testing.T) {
	h := serveMachine(t, 1)
	out, warnings := h.unsafely(`struct pair { uint32 a; uint16 b; };
kprobe:bench_target /arg0 == 7/ {
	$p = kaddr("jprobe_args");
	poke($p, (uint64)0x1122334455667788); poke($p + 2, (uint16)0xaabb); poke($p + 8, "text"); poke($p + 16, (uint8)arg1);
	$s = *(struct pair *)$p; poke($p + 24, $s);
	poke($p + 32, buf($p + 8, 2)); poke($p + 40, str($p + 8)); poke($p + 48, (uint8[4])0x04030201); poke($p + 52, arg1 == 5);
	printf("%lx %s %d %lx %rx %s %lx\n", *(uint64 *)$p, str($p + 8), *(uint64 *)($p + 16), *(uint64 *)($p + 24), buf($p + 32, 3), str($p + 40), *(uint64 *)($p + 48));
}
END { $p = kaddr("jprobe_args"); printf("%s", str($p + 8)); }`, func(api.Start) { h.calls("bench_target", 7, 5) })
	if want := "11223344aabb7788 text 5 11223344aabb7788 \\x74\\x65\\x00 text 104030201\ntext\n\n"; out != want || len(warnings) > 0 {
		t.Errorf("prints %q, want %q; %q", out, want, warnings)
	}
	out, warnings = h.unsafely(`kprobe:bench_target /arg0 == 7/ {
	poke(0xffff900000000000, "x");
	poke(kaddr("bench_target"), (uint8)0x90);
	poke(kaddr("bench_target") - 15, buf(kaddr("names"), 16));
	poke(0x200000, (uint8)0x90); // where it is, too
	poke(kaddr("vfs_write"), (uint8)0x90);
	@ = count(); }
kretprobe:bench_target { @r = stats(retval); }`, func(api.Start) {
		for range 3 {
			if got := h.calls("bench_target", 7, 5); got != 12 {
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
	h.noScript()
}
