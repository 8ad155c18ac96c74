package btsuite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// TestInvocations checks the calls read from a C++ file.
func TestInvocations(t *testing.T) {
	got := invocations(`
void test(const std::string &input) { other("begin { }"); }
TEST(Name, first)
{
  // test("in a comment");
  test("begin { print(\"a\\n\"); "
       "}", NoMatcher({ 1, "x" }), Error{ R"(
stdin:1:2: ERROR: wrong
)" });
  std::string prog = "end { }";
  bpftrace.add_param("one");
  test_error(prog, "no");
  test(probe + " { $x = ctx; }");
}
TEST_F(Name, second) { test(*bpftrace, R"PROG(k:f { "\x41" })PROG", false); }
`)
	if len(got) != 4 {
		t.Fatalf("%d calls: %+v", len(got), got)
	}
	first := got[0]
	if first.test != "first" || first.line != 6 || len(first.args) != 3 || first.args[0].text != "begin { print(\"a\\n\"); }" || first.args[1].isText ||
		!strings.HasPrefix(first.args[2].code, "Error{") || first.args[2].text != "\nstdin:1:2: ERROR: wrong\n" {
		t.Errorf("first: %+v", first)
	}
	if second := got[1]; second.name != "test_error" || second.args[0].text != "end { }" || len(second.params) != 1 || second.params[0] != "one" {
		t.Errorf("second: %+v", second)
	}
	if third := got[2]; third.args[0].isText {
		t.Errorf("third: %+v", third)
	}
	if last := got[3]; last.test != "second" || len(last.params) != 0 || last.args[1].text != `k:f { "\x41" }` || last.args[2].code != "false" {
		t.Errorf("last: %+v", last)
	}
}

// TestRuntimeCases checks the cases read from a file of runtime tests.
func TestRuntimeCases(t *testing.T) {
	cs := runtimeCases("suite", `# a comment
NAME one
PROG begin { print(1);
     print(2); }
EXPECT 1
       2
EXPECT_REGEX_NONE ^3

NAME two
RUN {{BPFTRACE}} -q -f json --unsafe -e 'begin { print($1); }' 7 'a b'
EXPECT 7
ARCH x86_64|s390x

NAME other machine
PROG begin { }
ARCH s390x|be
`)
	if len(cs) != 2 || cs[0].id != "suite.one" || cs[0].fields["PROG"] != "begin { print(1);\nprint(2); }" || cs[0].expects[0].text != "1\n2" || cs[0].expects[1].mode != "regex_none" {
		t.Fatalf("%+v", cs)
	}
	l, ok := cs[1].command()
	if !ok || l.text != "begin { print($1); }" || !l.json || !l.quiet || !l.unsafe || len(l.params) != 2 || l.params[1] != "a b" {
		t.Errorf("%v %+v", ok, l)
	}
	for _, line := range []string{`{{BPFTRACE}} -l | grep x`, `{{BPFTRACE}} - < f`, `{{BPFTRACE}} -e "$(echo x)"`, `echo x; y`} {
		if words, ok := shellWords(line); ok {
			t.Errorf("%s is read as %q", line, words)
		}
	}
}

// TestRules: a rule needs a reason.
func TestRules(t *testing.T) {
	rules, err := ParseRules("# none\nall \\busdt:\n\tno such\n\tprobes\nself ^basic\n  why\n")
	if err != nil || len(rules) != 2 || rules[0].Reason != "no such probes" {
		t.Fatalf("%v %+v", err, rules)
	}
	for _, c := range []struct {
		r    Result
		want []bool
	}{
		{Result{Kind: Parser, Name: "x", Script: "usdt:a { }"}, []bool{true, false}},
		{Result{Kind: Self, Name: "basic.noop"}, []bool{false, true}},
		{Result{Kind: Parser, Name: "basic.noop"}, []bool{false, false}},
	} {
		for i, r := range rules {
			if r.excludes(c.r) != c.want[i] {
				t.Errorf("%+v by %v: %v", c.r, r.Pattern, !c.want[i])
			}
		}
	}
	for _, wrong := range []string{"all x", "\treason", "all (\n\tx", "all\n\tx"} {
		if _, err := ParseRules(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

// TestRun runs a small checkout in which each outcome occurs.
func TestRun(t *testing.T) {
	checkout := fstest.MapFS{}
	put := func(name, text string) { checkout["tests/"+name] = &fstest.MapFile{Data: []byte(text)} }
	for _, f := range unitFiles {
		put(f.name+".cpp", "")
	}
	put("mocks.cpp", `static symbols::ModulesFuncsMap make_mock_functions() { result.emplace("vmlinux", std::make_shared<symbols::FunctionSet>(std::set<std::string>({ "f", "g" }))); }`)
	put("parser.cpp", `TEST(P, one) { test("kprobe:f { fake }", M()); test_parse_failure("kprobe:f {", "x"); test(a + "b"); }`)
	put("type_checker.cpp", `TEST(T, one) { test("kprobe:f { print(pid); }"); test("kprobe:nothere { }"); test("kprobe:f { print(1); }", Error{ "wrong" }); test("kprobe:f { fake }", Error{ "Unknown identifier" }); }`)
	put("runtime/one", "NAME prints\nPROG begin { print(1); } interval:ms:5 { print(2); exit(); }\nEXPECT 1\nEXPECT 2\n\nNAME differs\nPROG begin { print(1); }\nEXPECT 3\n\nNAME lists\nRUN {{BPFTRACE}} -l\nEXPECT x\n\n"+
		"NAME refused\nPROG begin { fake }\nEXPECT x\n\nNAME fails\nPROG begin { fake }\nEXPECT stdin:1:9-13: ERROR: Unknown identifier: 'fake'\nWILL_FAIL\n\nNAME guest\nPROG kprobe:/bin/x:f { }\nEXPECT x\n")
	put("self/a.bt", "test:yes\n{ if (1 != 1) { return 1; } }\ntest:no\n{ return 2; }\n")
	rules, err := ParseRules("runtime ^one.refused\n\tit is\n")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Outcome{}
	if err := Run(checkout, Options{Rules: rules}, func(r Result) { got[r.Name] = r.Outcome }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Outcome{
		"parser.one:1": Unread, "type_checker.one:1": Agree,
		"one.prints": Agree, "one.differs": Wrong, "one.lists": Unread, "one.refused": Excluded, "one.fails": Agree, "one.guest": Refused,
		"a.yes": Agree, "a.no": Wrong,
	} {
		if got[name] != want {
			t.Errorf("%s: %d, want %d", name, got[name], want)
		}
	}
}

// TestPrograms: parameters, types and lines of upstream's test programs are known if the programs are there.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "external_debug"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"app", "external_debug/bare.debug"} { // the built-in guest has debug information
		if err := os.WriteFile(filepath.Join(dir, name), builtin.ELF(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		command     string
		known, bare Outcome // with the programs, and without them
	}{
		{"PROG uprobe:./testprogs/app:vfs_read { print(args.count); }", Guest, Refused},
		{"PROG uprobe:./testprogs/app:vfs_read { print(args.none); }", Refused, Refused},
		{"PROG uprobe:./testprogs/app:vfs_read { print(sizeof(struct file)); }", Guest, Refused},
		{"PROG uprobe:./testprogs/app@fs.c:71 { exit(); }", Guest, Refused},
		{"PROG uprobe:./testprogs/app@fs.c:61 { exit(); }", Refused, Refused},
		{"PROG uprobe:./testprogs/none:f { print(args.count); }", Refused, Refused},
		{"RUN {{BPFTRACE}} -e 'uprobe:./testprogs/bare:vfs_read { print(args.count); }' --debuginfo=./external_debug", Guest, Refused},
		{"PROG uprobe:./testprogs/app:vfs_read { print(arg0); }", Guest, Guest},
	} {
		for _, known := range []bool{true, false} {
			k, want := &target{programs: &programs{opened: map[string]*debuginfo.Info{}}}, c.bare
			if known {
				k.programs.dir, want = dir, c.known
			}
			all := runtimeCases("suite", "NAME x\n"+c.command+"\nEXPECT x\n")
			if got := all[0].run(k, func(string) string { return "" }); got.Outcome != want {
				t.Errorf("%s: known %v: %d (%s), want %d", c.command, known, got.Outcome, got.Said, want)
			}
		}
	}
}

// TestTally checks the counts and the percentage that agrees.
func TestTally(t *testing.T) {
	var tally Tally
	for _, o := range []Outcome{Agree, Agree, Agree, Refused, Excluded, Unread, Guest} {
		tally.Add(Result{Outcome: o, Words: o == Agree})
	}
	if tally.Cases != 7 || tally.Agree != 3 || tally.Words != 3 || tally.Refused != 1 || tally.Excluded != 1 || tally.Unread != 1 || tally.Guest != 1 || tally.Percent() != 75 {
		t.Errorf("%+v, %f", tally, tally.Percent())
	}
}

// TestSameJSON: the order of members does not matter, and text that is not JSON equals nothing.
func TestSameJSON(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":[2]}`, `{"b":[2], "a":1}`, true},
		{"1\n2", "1 2", true},
		{"", "", false},
		{"not", "not", false},
		{`{"a":1}`, `{"a":1} rest`, false},
		{"18446744073709551615", "18446744073709551614", false},
	} {
		if got := sameJSON(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %v", c.a, c.b, got)
		}
	}
}

// TestTracepointParameters: those of a tracepoint are those of its stub in the kernel's types.
func TestTracepointParameters(t *testing.T) {
	stub := &btf.FuncProto{}
	for _, u := range []*target{mockTarget("", nil, nil), kernelTarget(types.New(&btf.Spec{}, nil), nil)} {
		u.proto = func(name string) *btf.FuncProto {
			if name == "__probestub_event" {
				return stub
			}
			return nil
		}
		if f, _ := u.Func(bpf.AtTracepoint + "event"); f != stub {
			t.Errorf("%v", f)
		}
	}
}

func TestSettings(t *testing.T) {
	for _, tt := range []struct{ text, env, want string }{
		{"begin { }", "", "begin { }"},
		{"begin { }", "PATH=/bin", "begin { }"},
		{"begin { }", "BPFTRACE_MAX_STRLEN=5 BPFTRACE_STR_TRUNC_TRAILER=_x", `config = { max_strlen=5; str_trunc_trailer="_x"; } begin { }`},
		{"config = { a = 1 } begin { }", "BPFTRACE_STACK_MODE=perf", "config = { a = 1; stack_mode=perf; } begin { }"},
		{"config = { a = 1; }\nbegin { }", "BPFTRACE_STACK_MODE=perf", "config = { a = 1; stack_mode=perf; }\nbegin { }"},
		{"config = { } begin { }", "BPFTRACE_STACK_MODE=perf", "config = { stack_mode=perf; } begin { }"},
	} {
		if got := withSettings(tt.text, tt.env); got != tt.want {
			t.Errorf("%q with %q: %q, want %q", tt.text, tt.env, got, tt.want)
		}
	}
}

// TestGuestCommands: a list and its filter, the program that -c starts, several programs before the script.
func TestGuestCommands(t *testing.T) {
	cases := runtimeCases("x", "NAME a\nRUN {{BPFTRACE}} -lv 'kprobe:x*' | grep -e '^kprobe'\nEXPECT y\n\nNAME b\nRUN {{BPFTRACE}} -e 'begin { }' -c \"./testprogs/syscall read\"\nBEFORE one\nBEFORE two 2\nEXPECT z")
	if len(cases) != 2 {
		t.Fatalf("%d cases", len(cases))
	}
	if l, ok := cases[0].command(); !ok || !l.list || !l.verbose || l.file != "kprobe:x*" || l.filter != "^kprobe" {
		t.Errorf("a list: %+v, %v", l, ok)
	}
	if l, ok := cases[1].command(); !ok || l.text != "begin { }" || l.child != "./testprogs/syscall read" {
		t.Errorf("with a program: %+v, %v", l, ok)
	}
	if b := cases[1].befores; len(b) != 2 || b[0] != "one" || b[1] != "two 2" {
		t.Errorf("before: %q", b)
	}
	if got, want := inBackground("x", "echo 'a b'"), `setsid sh -c 'echo '\''a b'\''' >/dev/null 2>&1 </dev/null & x=$!`; got != want {
		t.Errorf("in the background: %s, want %s", got, want)
	}
}

// TestNoGuestRules: such a rule excludes a runtime test without a guest only, and other kinds always.
func TestNoGuestRules(t *testing.T) {
	rules, err := ParseRules("no-guest x\n\treason\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		kind  Kind
		guest bool
		want  string
	}{{Runtime, false, "reason"}, {Runtime, true, ""}, {Parser, true, "reason"}} {
		if got := exclusion(rules, Result{Kind: tt.kind, Script: "x"}, tt.guest); got != tt.want {
			t.Errorf("%s, guest %v: %q", tt.kind, tt.guest, got)
		}
	}
}

// TestRepeats: a character that is repeated more than 1000 times is counted exactly.
func TestRepeats(t *testing.T) {
	c := runtimeCase{expects: []expect{{"regex", `^/X{5555}$`}}}
	for n, want := range map[int]bool{5554: false, 5555: true, 5556: false} {
		if m := c.missing("/"+strings.Repeat("X", n), nil); (m == "") != want {
			t.Errorf("%d: missing %q", n, m)
		}
	}
}
