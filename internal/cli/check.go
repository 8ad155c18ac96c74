package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/scriptfiles"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/internal/show/testreport"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Formats of check in addition to table, json and markdown.
const (
	formatTAP   = "tap"
	formatJUnit = "junit"
)

// maxChecks and maxJobs bound the work of one check. Each job runs a guest.
const (
	maxChecks = 10000
	maxJobs   = 64
)

// errCheckTime ends a test when its --timeout expires.
var errCheckTime = errors.New("the time is over")

// checker is one run of check.
type checker struct {
	*command.Run
	req     api.RunScript // for all scripts
	guest   []string      // flags for guestprobed
	probes  []string      // definitions of traced probes
	files   []string
	keep    string // a folder, or ""
	timeout time.Duration
	jobs    int
	verbose bool

	reports []*reportFile
}

// reportFile is a file that results are written to.
type reportFile struct {
	format, path string
	out          *files.Whole // nil: not requested
}

func (a *app) check() command.Spec {
	junit, tap, markdown := &reportFile{format: formatJUnit}, &reportFile{format: formatTAP}, &reportFile{format: formatMarkdown}
	k := &checker{reports: []*reportFile{junit, tap, markdown}}
	var guest func() ([]string, error)
	return command.Spec{
		Use:   "check [flags] SCRIPT...",
		Short: "Test guests with scripts, each with a guest of its own",
		Long: `Run each SCRIPT, a file in the language of 'guestprobe run', as a test: start a guestprobed of its own
on a temporary socket, boot the guest under the script from its first instruction on, and stop.

A test passes if its script calls exit(), or its guest ends with code 0: a script that never calls
exit() tests only that the guest ends well.

A test fails if

  the script calls exit(N) with another N, or an assert() in it does not hold
  the guest crashes, its kernel panics, or it ends with another code
  --timeout expires
  a run of the script is cut short, by its instruction budget or by a forbidden operation
  something is missed or lost, and the script has config = { strict = 1 }
  the script does not compile, or the guest does not start; this is an error

For each failed test, the last lines of its output and of the guest's console go to standard error.
--keep keeps more, in a folder for each failed test: output.txt, console.txt, daemon.log; guest.gps,
the guest at that time, for 'guestprobe --core'; and trace.ndjson with the events of --probe, for
'guestprobe convert' and 'report'.

--format json, tap, junit and markdown print the results in these formats; --junit, --tap and
--markdown also write them to files. docs/start/ci.md has jobs for GitHub and GitLab, docs/scripts.md
describes the reports.

Exit status: 0 if all tests passed; otherwise the status of the first test that did not: N if its
script called exit(N), 124 if it took too long, 2 if it does not compile, 1 for any other failure.`,
		Example: `  guestprobe check tests/*.bt
  guestprobe check --kernel /boot/vmlinuz --append 'console=ttyS0 panic=-1' --timeout 5m --keep failed tests/boot.bt
  guestprobe check --jobs 4 --junit report.xml --markdown summary.md tests/*.bt`,
		Args:    command.ArgsBetween(1, maxChecks, "say which scripts: SCRIPT..."),
		Formats: []string{formatTAP, formatJUnit, formatMarkdown},
		Files:   append([]string{"junit", "tap", "markdown", "keep", "file"}, daemon.GuestFiles...),
		Flags: func(f *pflag.FlagSet) {
			f.DurationVar(&k.timeout, "timeout", time.Minute, "end a test after that time, the start of its guest included")
			f.IntVarP(&k.jobs, "jobs", "j", 1, "run `N` tests at a time")
			f.StringArrayVar(&k.req.Args, "arg", nil, "an `ARGUMENT` of all scripts: the first is $1; may be repeated")
			f.BoolVar(&k.req.Unsafe, "unsafe", false, "scripts may change what the guest does: override, return of a number, setreg, poke")
			f.BoolVar(&k.req.OnHost, "on-host", false, "run at an exit, although the programs could run in the guest")
			f.BoolVar(&k.req.Emulate, "emulate", false, "watchpoints protect pages: every access to these costs an exit")
			fileFlag(f, &k.files)
			f.StringArrayVar(&k.probes, "probe", nil, "with --keep: trace the probe of this `DEFINITION`, too; may be repeated")
			f.StringVar(&k.keep, "keep", "", "keep the files of failed tests in this `folder`")
			f.StringVar(&junit.path, "junit", "", "write the results to this `file`, as JUnit's XML")
			f.StringVar(&tap.path, "tap", "", "write them to this `file`, by the Test Anything Protocol")
			f.StringVar(&markdown.path, "markdown", "", "write a summary to this `file`, in GitHub's Markdown")
			f.BoolVarP(&k.verbose, "verbose", "v", false, "show the daemons' logs")
			guest = daemon.GuestFlags(f)
		},
		ThisMachine: true,
		Run: func(ctx context.Context, r *command.Run) (err error) {
			if a.socket != "" || a.core != "" || a.vm.Name != "" || a.fleet.URL != "" || a.fleet.all {
				return command.Usagef("check starts daemons of its own: --socket, --core, --vm, --fleet and --all are for others")
			}
			k.Run = r
			if k.guest, err = guest(); err != nil {
				return err
			}
			return k.run(ctx)
		},
	}
}

// run runs the tests and reports them.
func (k *checker) run(ctx context.Context) (err error) {
	switch {
	case k.timeout <= 0:
		return command.Usagef("--timeout %v: not above 0", k.timeout)
	case k.jobs < 1 || k.jobs > maxJobs:
		return command.Usagef("--jobs %d: not in 1 to %d", k.jobs, maxJobs)
	case len(k.probes) > 0 && k.keep == "":
		return command.Usagef("--probe: its trace is for --keep")
	}
	k.req.Format = api.ScriptText
	tests, err := k.tests(ctx)
	if err != nil {
		return err
	}
	// Create the files first: an error must not come after hours of tests.
	for i, f := range k.reports {
		if f.path == "" {
			continue
		}
		if f.out, err = files.CreateWhole(ctx, f.path); err != nil {
			return fmt.Errorf("--%s: %w", f.format, err)
		}
		defer func() { err = errors.Join(err, f.out.Close()) }()
		for _, other := range k.reports[:i] {
			if other.out != nil && f.out.Same(other.out) {
				return command.Usagef("--%s %s: it is the file of --%s, too", f.format, f.path, other.format)
			}
		}
	}
	result := testreport.Run{Name: "guestprobe", Began: time.Now()}
	result.Host, _ = os.Hostname() // for display only
	jobs := make(chan struct{}, k.jobs)
	var all sync.WaitGroup
	for _, t := range tests {
		jobs <- struct{}{}
		all.Go(func() {
			defer func() { <-jobs }()
			t.run(ctx)
		})
	}
	all.Wait()
	result.Took = time.Since(result.Began)
	status := command.Status(0)
	for _, t := range tests {
		result.Cases = append(result.Cases, t.Case)
		if status == 0 {
			status = t.status
		}
	}
	if err := k.report(&result); err != nil {
		return err
	}
	if status != 0 {
		return status
	}
	return nil
}

// tests reads the scripts, and gives each test a unique name.
func (k *checker) tests(ctx context.Context) (tests []*check, err error) {
	taken := map[string]bool{}
	for _, path := range k.Args {
		if path == "-" {
			return nil, command.Usagef("check runs scripts that are in files")
		}
		t := &check{checker: k, req: k.req, Case: testreport.Case{Name: strings.TrimSuffix(filepath.Base(path), ".bt"), File: path}}
		t.req.Name = path
		if t.req.Script, err = readScript(ctx, k.Run, path); err != nil {
			return nil, err
		}
		if t.req.Files, err = scriptfiles.Read(path, t.req.Script); err != nil {
			return nil, err
		}
		for name, n := t.Name, 2; taken[t.Name]; n++ {
			t.Name = fmt.Sprintf("%s-%d", name, n)
		}
		taken[t.Name] = true
		tests = append(tests, t)
	}
	return tests, nil
}

// report prints the results and writes the report files.
func (k *checker) report(run *testreport.Run) error {
	forms := map[string]func(io.Writer) error{formatJUnit: run.JUnit, formatTAP: run.TAP, formatMarkdown: run.Markdown}
	for _, f := range k.reports {
		if f.out == nil {
			continue
		}
		if err := cmp.Or(forms[f.format](f.out), f.out.Commit()); err != nil {
			return fmt.Errorf("--%s: %w", f.format, err)
		}
	}
	if form := forms[k.Format]; form != nil {
		return form(k.Stdout)
	}
	return k.Show(checkResult(run), func() error {
		var rows [][]string
		for _, c := range run.Cases {
			rows = append(rows, []string{c.Name, string(c.Outcome), testreport.Seconds(c.Took), c.ShortWhy()})
		}
		if err := k.Table([]string{"TEST", "RESULT", "TIME", "WHY"}, rows); err != nil {
			return err
		}
		k.Note("%s", run.Summary())
		return nil
	})
}

// checked is the output of --format json.
type checked struct {
	Passed  int           `json:"passed"`
	Failed  int           `json:"failed"`
	Errors  int           `json:"errors"`
	Skipped int           `json:"skipped"`
	Seconds float64       `json:"seconds"`
	Tests   []checkedCase `json:"tests"`
}

type checkedCase struct {
	testreport.Case
	Seconds float64 `json:"seconds"`
}

func checkResult(run *testreport.Run) checked {
	out := checked{
		Passed: run.Count(testreport.Passed), Failed: run.Count(testreport.Failed), Errors: run.Count(testreport.Errored), Skipped: run.Count(testreport.Skipped),
		Seconds: run.Took.Seconds(),
	}
	for _, c := range run.Cases {
		out.Tests = append(out.Tests, checkedCase{c, c.Took.Seconds()})
	}
	return out
}
