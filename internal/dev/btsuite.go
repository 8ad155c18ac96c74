package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/dev/btsuite"
	"github.com/guestprobe/guestprobe/probe/remote"
)

func btsuiteSpec() command.Spec {
	var rules, kernel, object, programs, differences, socket, program, match string
	var only []string
	var slow int
	return command.Spec{
		Use:   "btsuite CHECKOUT",
		Short: "Run bpftrace's own tests on the compiler of scripts",
		Long: `Run the tests of a checkout of bpftrace: scripts of its parser's and checker's unit
tests are compiled, and must be accepted or rejected as in bpftrace; runtime and self
tests of BEGIN, END and intervals run in the interpreter, and their output is compared.
Runtime tests that need a guest are only compiled, and counted separately, unless --guest
names the socket of a daemon: they then run in its Linux guest, by the guestprobe command.
That guest has upstream's test programs, and executes each line that is typed at its console.
scripts/bpftrace-suite.sh prepares the files for this command.`,
		Example: `  gpdev btsuite ~/src/bpftrace --rules scripts/bpftrace-suite.rules --differences build/differences`,
		Args:    command.ArgsBetween(1, 1, "name the directory of the checkout: CHECKOUT"),
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&rules, "rules", "", "`file` of rules that exclude tests, each with its reason")
			f.StringVar(&kernel, "btf", "", "`file` of BTF of a Linux kernel, for the types of runtime tests")
			f.StringVar(&object, "types", "", "`file`: tests/data/data_source.c of the checkout, compiled with debug information")
			f.StringVar(&programs, "programs", "", "`folder` of the checkout's tests/testprogs, compiled with debug information: files of the guest")
			f.StringVar(&socket, "guest", "", "`socket` of the daemon whose guest runs the tests that need one")
			f.StringVar(&program, "guestprobe", "guestprobe", "with --guest: `path` of the guestprobe command")
			f.IntVar(&slow, "slow", 1, "with --guest: multiply upstream's time limits by this `number`")
			f.StringSliceVar(&only, "only", nil, "`kinds` of tests to run: parser, checker, runtime, self (default all)")
			f.StringVar(&match, "match", "", "run only the runtime tests whose names match this `regexp`")
			f.StringVar(&differences, "differences", "", "`file` for the name, the script and the message of each difference")
		},
		Run: func(ctx context.Context, r *command.Run) (err error) {
			o := btsuite.Options{Object: object, Programs: programs}
			for _, k := range only {
				if !slices.Contains(btsuite.Kinds, btsuite.Kind(k)) {
					return fmt.Errorf("--only %s: want kinds of %v", k, btsuite.Kinds)
				}
				o.Only = append(o.Only, btsuite.Kind(k))
			}
			if match != "" {
				if o.Match, err = regexp.Compile(match); err != nil {
					return err
				}
			}
			if socket != "" {
				o.Guest = &btsuite.LinuxGuest{Client: remote.New(socket), Program: program, Socket: socket, Patience: time.Duration(slow) * time.Second}
				o.Guest.Copies = btsuite.SeparateDebug(programs)
				if err := o.Guest.Open(ctx); err != nil {
					return err
				}
				defer o.Guest.Close()
			}
			if rules != "" {
				text, err := os.ReadFile(rules)
				if err != nil {
					return err
				}
				if o.Rules, err = btsuite.ParseRules(string(text)); err != nil {
					return fmt.Errorf("%s: %w", rules, err)
				}
			}
			if kernel != "" {
				if o.BTF, err = os.ReadFile(kernel); err != nil {
					return err
				}
			}
			tallies, text, err := runSuite(r.Args[0], o, func(x btsuite.Result) {
				if o.Guest != nil && x.Kind == btsuite.Runtime && outcomeNames[x.Outcome] != "" && x.Outcome != btsuite.Excluded {
					r.Note("%s: %s", x.Name, outcomeNames[x.Outcome])
				}
			})
			if err != nil {
				return err
			}
			if differences != "" {
				if err := os.WriteFile(differences, []byte(text), 0o644); err != nil {
					return err
				}
			}
			return r.Show(tallies, func() error { return printTallies(r, tallies) })
		},
	}
}

// outcomeNames are the headings for differences.
var outcomeNames = map[btsuite.Outcome]string{
	btsuite.Refused: "refused here", btsuite.Accepted: "accepted here", btsuite.Wrong: "another output", btsuite.Excluded: "excluded", btsuite.Unread: "not read",
}

// runSuite runs the tests, and returns the counts and a text with the differences.
func runSuite(checkout string, o btsuite.Options, show func(btsuite.Result)) ([]*btsuite.Tally, string, error) {
	var tallies []*btsuite.Tally
	by := map[btsuite.Kind]*btsuite.Tally{}
	for _, k := range btsuite.Kinds {
		by[k] = &btsuite.Tally{Kind: k}
		tallies = append(tallies, by[k])
	}
	var text strings.Builder
	err := btsuite.Run(os.DirFS(checkout), o, func(x btsuite.Result) {
		by[x.Kind].Add(x)
		show(x)
		what := outcomeNames[x.Outcome]
		if x.Words {
			what = "refused in other words"
		}
		if what != "" {
			fmt.Fprintf(&text, "== %s %s: %s\n%s\n-- %s\n\n", x.Kind, x.Name, what, strings.TrimSpace(x.Script), strings.TrimSpace(x.Said))
		}
	})
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: is %s a checkout of bpftrace?", err, checkout)
	}
	return tallies, text.String(), err
}

func printTallies(r *command.Run, tallies []*btsuite.Tally) error {
	n := strconv.Itoa
	var rows [][]string
	for _, t := range tallies {
		rows = append(rows, []string{string(t.Kind), n(t.Cases), n(t.Agree), n(t.Words), n(t.Refused), n(t.Accepted), n(t.Wrong), n(t.Guest), n(t.Excluded), n(t.Unread), fmt.Sprintf("%.1f%%", t.Percent())})
	}
	return r.Table([]string{"KIND", "CASES", "AGREE", "OTHER-WORDS", "REFUSED", "ACCEPTED", "WRONG", "NEED-GUEST", "EXCLUDED", "NOT-READ", "AGREEMENT"}, rows)
}
