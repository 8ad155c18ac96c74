package command

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// testProgram has a command of each form. They print their arguments.
func testProgram() Program {
	var timeout time.Duration
	var count uint64
	echo := func(_ context.Context, r *Run) error {
		return r.Show(r.Args, func() error { return r.Print("%q %v %d\n", r.Args, timeout, count) })
	}
	fail := func(err error) func(context.Context, *Run) error {
		return func(context.Context, *Run) error { return err }
	}
	flags := func(f *pflag.FlagSet) {
		f.DurationVar(&timeout, "timeout", time.Second, "a `duration`")
		f.Uint64VarP(&count, "count", "c", 0, "a `number`")
	}
	column := 2
	return Program{
		Spec: Spec{Use: "prog", Short: "Be tested", Sub: []Spec{
			{Use: "echo ARG...", Short: "Echo", Args: ArgsBetween(1, 3, "say what"), Flags: flags, Run: echo, Formats: []string{"markdown"}},
			{Use: "numbers ARG...", Short: "Echo", Args: ArgsBetween(0, -1, ""), Negative: true, Flags: flags, Run: echo},
			{Use: "plain", Short: "Echo", Plain: true, Run: echo},
			{Use: "switch", Short: "Echo", Args: OneArgOf("on", "off"), Run: echo},
			{Use: "group", Short: "Hold others", Sub: []Spec{{Use: "inner", Short: "Echo", Run: echo}}},
			{Use: "broken", Short: "Fail", Run: fail(errors.New("no \x1b luck"))},
			{Use: "refused", Short: "Fail", Run: fail(&api.Error{Code: "bad", Message: "refused", Column: &column, Command: "p x"})},
		}},
		Judge: func(err error) Verdict {
			var wire *api.Error
			if errors.As(err, &wire) {
				return Verdict{Status: 7}
			}
			return Verdict{Status: ExitFailed, Hint: "Try again."}
		},
	}
}

func TestProgram(t *testing.T) {
	for _, tc := range []struct {
		args        string
		status      int
		out, stderr string
	}{
		{"echo a b", 0, `["a" "b"] 1s 0` + "\n", ""},
		{"echo a --timeout 5s -c 3", 0, `["a"] 5s 3` + "\n", ""},
		{"echo --format json a", 0, "[\n  \"a\"\n]\n", ""},
		{"echo", 2, "", "prog: say what\nRun 'prog echo --help' for usage.\n"},
		{"echo a b c d", 2, "", "prog: unexpected argument \"d\"\nRun 'prog echo --help' for usage.\n"},
		{"echo a --format xml", 2, "", "prog: --format \"xml\": not table or json or markdown\nRun 'prog echo --help' for usage.\n"},
		{"echo a --color red", 2, "", "prog: --color \"red\": not auto, always or never\nRun 'prog echo --help' for usage.\n"},
		{"echo a --timeout soon", 2, "", "prog: --timeout \"soon\": not a duration, as 500ms, 5s or 2m\nRun 'prog echo --help' for usage.\n"},
		{"echo a -c -1", 2, "", "prog: --count \"-1\": not a number from 0 on\nRun 'prog echo --help' for usage.\n"},
		{"echo a --count", 2, "", "prog: flag needs an argument: --count\nRun 'prog echo --help' for usage.\n"},
		{"echo a --nope", 2, "", "prog: unknown flag: --nope\nRun 'prog echo --help' for usage.\n"},
		{"echo -1", 2, "", "prog: unknown shorthand flag: '1' in -1; put -- before an argument that begins with -\nRun 'prog echo --help' for usage.\n"},
		{"ecko a -x", 2, "", "prog: no command \"ecko\": did you mean echo?\nRun 'prog --help' for usage.\n"},
		{"zzzzz", 2, "", "prog: no command \"zzzzz\"\nRun 'prog --help' for usage.\n"},
		{"group iner", 2, "", "prog: group has no command \"iner\": did you mean inner?\nRun 'prog group --help' for usage.\n"},
		{"help group nope", 2, "", "prog: group has no command \"nope\"\nRun 'prog help --help' for usage.\n"},
		{"numbers f -1 2", 0, `["f" "-1" "2"] 1s 0` + "\n", ""},
		{"numbers f -0x10 --timeout 3s -2 -c 5", 0, `["f" "-0x10" "-2"] 3s 5` + "\n", ""},
		{"numbers --timeout 3s f", 0, `["f"] 3s 0` + "\n", ""},
		{"numbers f - -- -1 --count", 0, `["f" "-" "-1" "--count"] 1s 0` + "\n", ""},
		{"numbers f -1 --format json", 0, "[\n  \"f\",\n  \"-1\"\n]\n", ""},
		{"numbers f -1 --nope", 2, "", "prog: unknown flag: --nope\nRun 'prog numbers --help' for usage.\n"},
		{"plain", 0, "[] 1s 0\n", ""},
		{"plain --format json", 2, "", `{"error":{"code":"usage","message":"--format \"json\": this command has one form of output","detail":"Run 'prog plain --help' for usage."}}` + "\n"},
		{"switch on", 0, `["on"] 1s 0` + "\n", ""},
		{"switch up", 2, "", "prog: \"up\": not on or off\nRun 'prog switch --help' for usage.\n"},
		{"broken", 1, "", "prog: no \\x1b luck\nTry again.\n"},
		{"broken --format json", 1, "", `{"error":{"code":"failed","message":"no \u001b luck","detail":"Try again."}}` + "\n"},
		{"--format=json zzzzz", 2, "", `{"error":{"code":"usage","message":"no command \"zzzzz\"","detail":"Run 'prog --help' for usage."}}` + "\n"},
		{"echo --nope --format json", 2, "", `{"error":{"code":"usage","message":"unknown flag: --nope","detail":"Run 'prog echo --help' for usage."}}` + "\n"},
		{"refused", 7, "", "prog: refused [bad]\n  Command: p x\n             ^\n"},
		{"refused --format json", 7, "", `{"error":{"code":"bad","message":"refused","column":2,"command":"p x"}}` + "\n"},
	} {
		var out, errs bytes.Buffer
		env := Env{Args: strings.Fields(tc.args), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
		if got := testProgram().Run(t.Context(), env); got != tc.status || out.String() != tc.out || errs.String() != tc.stderr {
			t.Errorf("%s: status %d, out %q, err %q; want %d, %q, %q", tc.args, got, out.String(), errs.String(), tc.status, tc.out, tc.stderr)
		}
	}
	for _, args := range []string{"", "group", "help echo", "echo --help", "numbers f --help", "echo --help --format json", "--version"} {
		var out, errs bytes.Buffer
		env := Env{Args: strings.Fields(args), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
		if got := testProgram().Run(t.Context(), env); got != 0 || out.Len() == 0 || errs.Len() > 0 {
			t.Errorf("%q: status %d, out %q, err %q", args, got, out.String(), errs.String())
		}
	}
}

// TestHelp: usage and examples precede the description, subcommands are shown in their groups, and a flag for one page is not on other pages.
func TestHelp(t *testing.T) {
	p := Program{
		Spec: Spec{Use: "prog", Short: "Do it", Long: "It does it.", Example: "  prog a",
			Sub: []Spec{
				{Use: "b", Short: "Be", Group: "Second", Run: func(context.Context, *Run) error { return nil }},
				{Use: "a", Short: "An a", Long: "A is a.", Example: "  prog a --x", Group: "First", Run: func(context.Context, *Run) error { return nil }},
				{Use: "c", Short: "See", Group: "Second", Sub: []Spec{{Use: "d", Short: "Deep", Run: func(context.Context, *Run) error { return nil }}}},
				{Use: "hid", Short: "Hidden", AliasOf: "a", Run: func(context.Context, *Run) error { return nil }},
			}},
		Global: func(f *pflag.FlagSet) {
			f.Bool("x", false, "for all")
			f.Bool("y", false, "for some")
			ShowOnlyIn("c", f, "y")
		},
	}
	for args, want := range map[string][]string{
		"--help": {"Do it\n\nUsage:\n  prog COMMAND [flags]\n", "\nExamples:\n  prog a\n", "\nSecond:\n  b           Be\n  c           See\n", "\nFirst:\n  a           An a\n", "\nOther commands:\n",
			"\n\nIt does it.\n", "\nFlags:\n", "--x", "\nMore flags of all commands: 'prog c --help'.\n\n'prog COMMAND --help' describes a command.\n"},
		"a --help":   {"An a\n\nUsage:\n  prog a [flags]\n\nExamples:\n  prog a --x\n\nA is a.\n\nFlags:\n", "\nFlags of all commands:\n", "--x", "\nMore flags of all commands: 'prog c --help'.\n"},
		"c --help":   {"Usage:\n  prog c COMMAND [flags]\n\nCommands:\n  d  Deep\n", "--x", "for some"},
		"c d --help": {"for some"},
	} {
		var out, errs bytes.Buffer
		if got := p.Run(t.Context(), Env{Args: strings.Fields(args), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}); got != 0 || errs.Len() > 0 {
			t.Errorf("%s: status %d, %s", args, got, &errs)
		}
		text := out.String()
		for _, w := range want {
			i := strings.Index(text, w)
			if i < 0 {
				t.Errorf("%s: not in its order: %q in\n%s", args, w, &out)
				break
			}
			text = text[i:]
		}
		if strings.Contains(out.String(), "hid") || !strings.Contains(args, "c") && strings.Contains(out.String(), "--y") {
			t.Errorf("%s:\n%s", args, &out)
		}
	}
}
