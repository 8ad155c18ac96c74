package sessiontest

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/scripttest"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/session"
)

// hosts are options for a script that runs in the guest if possible, and for one on the host.
var hosts = []session.ScriptOptions{{}, {OnHost: true}}

// user calls a function of user code with an argument.
func (v *env) user(name string, arg uint64) uint64 {
	v.Helper()
	sym, err := v.g.Symbol(name)
	if err != nil {
		v.Fatal(err)
	}
	return v.call("enter_user", uint64(sym.Addr), arg, 0, 0)
}

// shared reports whether programs can run in the guest.
func (v *env) shared() bool {
	_, ok := v.g.(program.Shared)
	return ok
}

// testScriptOrder runs clauses at one place in the order of the source, in the guest and on the host.
func testScriptOrder(v *env) {
	for _, c := range []struct{ name, script, want string }{
		{"entry", `kprobe:FN { print(1); } kprobe:FN { print(2); } kprobe:FN { print(3); }`, "1 2 3"},
		{"return", `kretprobe:FN { print(1); } kretprobe:FN { print(2); } kretprobe:FN { print(3); }`, "1 2 3"},
		{"both", `kretprobe:FN { print("r1"); } kprobe:FN { print("e1"); } kretprobe:FN { print("r2"); } kprobe:FN { print("e2"); }`, "e1 e2 r1 r2"},
		{"offset 0", `kprobe:FN { print(1); } kprobe:FN+0 { print(2); } kprobe:FN { print(3); }`, "1 2 3"},
		{"wildcard", `kprobe:kprobe_targe[t] { print(1); } kprobe:FN { print(2); } kprobe:*robe_target { print(3); }`, "1 2 3"},
		{"several places", `kprobe:FN, kprobe:f_boost /arg0 == 7/ { print(1); } kprobe:f_boost, kprobe:FN /arg0 == 7/ { print(2); }`, "1 2"},
		{"one clause twice", `kprobe:FN, kprobe:FN { @n++; print(@n + 0); } kprobe:FN { print("last"); } END { clear(@n); }`, "1 2 last"},
		{"state", `kprobe:FN { @x = 1; } kprobe:FN /@x == 1/ { @x = 2; } kprobe:FN /@x == 2/ { print("saw"); } END { clear(@x); }`, "saw"},
		{"BEGIN and END", `BEGIN { print("b1"); } kprobe:FN { print("k"); } END { print("e1"); } BEGIN { print("b2"); } END { print("e2"); }`, "b1 b2 k e1 e2"},
		{"fentry", `fentry:FN { print(1); } k:FN { print(2); } fexit:FN { print(3); } kr:FN { print(4); }`, "1 2 3 4"},
	} {
		for _, o := range hosts {
			x := Start(v, v.s, strings.ReplaceAll(c.script, "FN", target), o)
			probes := x.Probes()
			v.call(target, 7)
			out, warnings, _ := x.End()
			if got := strings.Join(strings.Fields(out), " "); got != c.want || len(warnings) > 0 {
				v.Errorf("%s, on the host %v: %q, want %q, warnings %q", c.name, o.OnHost, got, c.want, warnings)
			}
			if want := x.Object().Programs(); len(probes) == 0 || len(probes) != len(want) {
				v.Errorf("%s: %d probes of %d programs", c.name, len(probes), len(want))
			} else {
				for i, p := range probes {
					if p.Program.Name != want[i].Name {
						v.Errorf("%s: probes are not in the order of the source: %+v", c.name, probes)
						break
					}
				}
			}
		}
	}
	for _, of := range []string{"uprobe:u_hot", "uretprobe:u_hot"} {
		for _, o := range hosts {
			x := Start(v, v.s, strings.ReplaceAll(`AT { printf("1 "); } AT { printf("2 "); } AT { printf("3 "); exit(); }`, "AT", of), o)
			v.user("u_hot", 41)
			x.Wait()
			if out, _, _ := x.End(); !strings.HasPrefix(out, "1 2 3 ") {
				v.Errorf("%s, on the host %v: %q", of, o.OnHost, out)
			}
		}
	}
}

// testIntervalOrder runs clauses of one period in the order of the source, each time.
func testIntervalOrder(v *env) {
	const at = "interval:ms:5"
	x := Start(v, v.s, strings.ReplaceAll(`AT { print(1); } AT { print(2); } AT { print(3); if (++@n == 20) { exit(); } } END { clear(@n); }`, "AT", at), session.ScriptOptions{})
	x.Wait()
	out, _, _ := x.End()
	if got, want := strings.Join(strings.Fields(out), ""), strings.Repeat("123", 20); !strings.HasPrefix(got, want) {
		v.Errorf("%s: %q", at, got)
	}
}

// testScriptOverride: functions return the value that a script sets, without
// running, if the script may do that.
func testScriptOverride(v *env) {
	call := func(arg uint64) uint64 { return v.call(target, arg, 1) }
	for _, text := range []string{
		`kprobe:FN /arg0 == 7/ { override(arg1 + 41); @after++; }`,
		`kprobe:FN { @after += 1; if (arg0 == 7) { return(42); } @after -= 1; }`,
	} {
		text = strings.ReplaceAll(text, "FN", target)
		_, err := v.s.CompileScript(text, session.ScriptOptions{})
		if e := v.checkRefused(err, session.CodeBadScript); !strings.Contains(e.Text, "is an unsafe function being used in safe mode") {
			v.Fatalf("%s: %v", text, err)
		}
		x := Start(v, v.s, text, session.ScriptOptions{Unsafe: true})
		if p := x.Probes()[0]; p.OnHost == "" || v.shared() && !strings.Contains(p.OnHost, "only the engine may") {
			v.Errorf("it runs on the host because %q", p.OnHost)
		}
		for range 3 {
			if a, b := call(7), call(9); a != 42 || b != 3 {
				v.Errorf("%s: returns %d and %d, want 42 and 3", text, a, b)
			}
		}
		if out, warnings, _ := x.End(); out != "\n\n@after: 3\n" || len(warnings) > 0 {
			v.Errorf("%s prints %q, %q", text, out, warnings)
		}
		if a := call(7); a != 2 {
			v.Errorf("after the end it returns %d, want 2", a)
		}
	}
	for _, text := range []string{`kretprobe:FN { override(1); }`, `kprobe:FN+2 { override(1); }`, `BEGIN { override(1); }`, `kprobe:FN { return("a"); }`} {
		if _, err := v.s.StartScript(strings.ReplaceAll(text, "FN", target), session.ScriptOptions{Unsafe: true}); err == nil {
			v.Errorf("%s is not refused", text)
		}
	}
}

// testRandomScripts runs random scripts in the guest, if it has memory for that,
// and on the host. Both must give the output that an evaluation without a
// compiler predicts.
func testRandomScripts(v *env) {
	shared := v.shared()
	n, there := uint64(24), 0
	if testing.Short() {
		n = 4
	}
	for seed := range n {
		for _, o := range hosts {
			sc := scripttest.New(seed, scripttest.Options{Place: "kprobe:" + target, Args: 2, Nested: seed%2 == 1})
			x := Start(v, v.s, sc.Text, o)
			inGuest := x.Probes()[0].OnHost == ""
			if inGuest && (o.OnHost || !shared) {
				v.Errorf("script %d runs in the guest", seed)
			}
			r := rand.New(rand.NewPCG(seed, 1))
			for range 3 {
				args := []uint64{r.Uint64() >> r.IntN(64), uint64(r.Int64N(20) - 5)}
				sc.Hit(args...)
				v.call(target, args...)
			}
			exits := 3 - x.Probes()[0].Stats.InGuest
			out, warnings, _ := x.End()
			if want := sc.Output(); out != want {
				v.Fatalf("script %d, in the guest %v\n%sprints\n%s\nwant\n%s\n%s", seed, inGuest, sc.Text, out, want, warnings)
			}
			if inGuest && exits == 0 {
				there++
			}
		}
	}
	if shared && there < int(n)*3/4 {
		v.Errorf("only %d of %d scripts ran in the guest without an exit", there, n)
	}
}

// testPatternLeavesOut: patterns of all kinds skip places that cannot be probed,
// and report how many and why.
func testPatternLeavesOut(v *env) {
	said := regexp.MustCompile(`WARNING: \S+: \d+ functions? that match(es)? cannot be probed and (are|is) left out: .* \(\d+\)`)
	for _, at := range []string{"kprobe:*", "kretprobe:*", "uprobe:*", "uretprobe:*", "fentry:*", "fexit:*"} {
		x := Start(v, v.s, at+" /0/ { @++; }", session.ScriptOptions{})
		if len(x.Probes()) == 0 {
			v.Errorf("%s: no probes", at)
		}
		_, warnings, _ := x.End()
		if !strings.HasPrefix(at, "u") && !said.MatchString(strings.Join(warnings, "\n")) {
			v.Errorf("%s: %q", at, warnings)
		}
	}
}
