package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/dev/btsuite"
)

func btsuiteSpec() command.Spec {
	var rules, kernel, object, programs, differences string
	return command.Spec{
		Use:   "btsuite CHECKOUT",
		Short: "Run bpftrace's own tests on the compiler of scripts",
		Long: `Run the tests of a checkout of bpftrace: scripts of its parser's and checker's unit
tests are compiled, and must be accepted or rejected as in bpftrace; runtime and self
tests of BEGIN, END and intervals run in the interpreter, and their output is compared.
Runtime tests that need a guest are only compiled, and counted separately.
scripts/bpftrace-suite.sh prepares the files for this command.`,
		Example: `  gpdev btsuite ~/src/bpftrace --rules scripts/bpftrace-suite.rules --differences build/differences`,
		Args:    command.ArgsBetween(1, 1, "name the directory of the checkout: CHECKOUT"),
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&rules, "rules", "", "`file` of rules that exclude tests, each with its reason")
			f.StringVar(&kernel, "btf", "", "`file` of BTF of a Linux kernel, for the types of runtime tests")
			f.StringVar(&object, "types", "", "`file`: tests/data/data_source.c of the checkout, compiled with debug information")
			f.StringVar(&programs, "programs", "", "`folder` of the checkout's tests/testprogs, compiled with debug information: files of the guest")
			f.StringVar(&differences, "differences", "", "`file` for the name, the script and the message of each difference")
		},
		Run: func(_ context.Context, r *command.Run) (err error) {
			o := btsuite.Options{Object: object, Programs: programs}
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
			tallies, text, err := runSuite(r.Args[0], o)
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
func runSuite(checkout string, o btsuite.Options) ([]*btsuite.Tally, string, error) {
	var tallies []*btsuite.Tally
	by := map[btsuite.Kind]*btsuite.Tally{}
	for _, k := range btsuite.Kinds {
		by[k] = &btsuite.Tally{Kind: k}
		tallies = append(tallies, by[k])
	}
	var text strings.Builder
	err := btsuite.Run(os.DirFS(checkout), o, func(x btsuite.Result) {
		by[x.Kind].Add(x)
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
