package btsuite

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Kind is a kind of upstream's tests.
type Kind string

// The kinds, in the order of the output.
const (
	Parser  Kind = "parser"
	Checker Kind = "checker"
	Runtime Kind = "runtime"
	Self    Kind = "self"
)

// Kinds are all kinds.
var Kinds = []Kind{Parser, Checker, Runtime, Self}

// Outcome is the comparison of our result with upstream's.
type Outcome uint8

// Outcomes.
const (
	Agree    Outcome = iota
	Refused          // upstream accepts the script, guestprobe does not
	Accepted         // the reverse
	Wrong            // the output differs
	Guest            // it compiles; running it needs a guest
	Excluded         // by a Rule
	Unread           // the test does not only run a script
)

// Result is the outcome of one test.
type Result struct {
	Kind    Kind
	Name    string
	Script  string
	Outcome Outcome
	Words   bool   // both reject it, with different messages
	Said    string // the difference, or the reason
}

// Tally counts the outcomes of a kind.
type Tally struct {
	Kind     Kind `json:"kind"`
	Cases    int  `json:"cases"`
	Agree    int  `json:"agree"`
	Words    int  `json:"words"`
	Refused  int  `json:"refused"`
	Accepted int  `json:"accepted"`
	Wrong    int  `json:"wrong"`
	Guest    int  `json:"guest"`
	Excluded int  `json:"excluded"`
	Unread   int  `json:"unread"`
}

// Add counts a result.
func (t *Tally) Add(r Result) {
	t.Cases++
	*[]*int{&t.Agree, &t.Refused, &t.Accepted, &t.Wrong, &t.Guest, &t.Excluded, &t.Unread}[r.Outcome]++
	if r.Words {
		t.Words++
	}
}

// Percent returns the percentage of compared tests that agree.
func (t *Tally) Percent() float64 {
	return 100 * float64(t.Agree) / max(1, float64(t.Agree+t.Refused+t.Accepted+t.Wrong))
}

// Options are the inputs of a run in addition to the checkout.
type Options struct {
	Rules []Rule
	BTF   []byte // types of a Linux kernel for runtime tests, or nil
	// Object is the path of upstream's data_source.c, compiled with debug
	// information; "" skips the tests that need it.
	Object string
	// Programs is the folder of upstream's test programs, compiled with debug
	// information, which are files of the guest; "": they are not known.
	Programs string
	// Guest runs the runtime tests that need a guest; nil: they are only compiled.
	Guest *LinuxGuest
	// Only are the kinds of tests to run; nil: all.
	Only []Kind
	// Match matches the names of tests to run; nil: all.
	Match *regexp.Regexp
}

// Run runs all tests of a checkout, and passes each result to show.
func Run(checkout fs.FS, o Options, show func(Result)) error {
	mocks, err := fs.ReadFile(checkout, "tests/mocks.cpp")
	if err != nil {
		return err
	}
	unit := mockTarget(string(mocks), nil, nil)
	if o.Object != "" {
		info, err := debuginfo.Open(o.Object, "")
		if err != nil {
			return err
		}
		unit.known, unit.proto = info, info.Func
	}
	var kernel *target
	switch {
	case o.BTF != nil:
		spec, err := types.Read(o.BTF, nil)
		if err != nil {
			return err
		}
		kernel = kernelTarget(types.New(spec, nil), spec)
	default:
		kernel = kernelTarget(types.New(&btf.Spec{}, nil), nil)
	}
	kernel.programs = &programs{dir: o.Programs, opened: map[string]*debuginfo.Info{}}
	kernel.guest = o.Guest
	kernel.rules = o.Rules
	all := func(r Result) {
		if reason := exclusion(o.Rules, r, o.Guest != nil); reason != "" {
			r.Outcome, r.Said, r.Words = Excluded, reason, false
		}
		show(r)
	}
	wanted := func(k Kind) bool { return len(o.Only) == 0 || slices.Contains(o.Only, k) }
	if wanted(Parser) || wanted(Checker) {
		err = runUnits(checkout, unit, all)
	}
	if wanted(Runtime) {
		err = errors.Join(err, runRuntime(checkout, kernel, o, all))
	}
	if wanted(Self) {
		err = errors.Join(err, runSelfs(checkout, kernel, all))
	}
	return err
}

// runUnits runs the cases of unit tests.
func runUnits(checkout fs.FS, t *target, show func(Result)) error {
	for _, f := range unitFiles {
		text, err := fs.ReadFile(checkout, "tests/"+f.name+".cpp")
		if err != nil {
			return err
		}
		for _, i := range invocations(string(text)) {
			c, ok := f.read(i)
			if !ok {
				show(Result{Kind: f.kind, Name: c.id, Script: c.text, Outcome: Unread, Said: "the script is put together by C++"})
				continue
			}
			show(runGuarded(Result{Kind: f.kind, Name: c.id, Script: c.text}, func() Result { return c.run(f, t) }))
		}
	}
	return nil
}

// runGuarded turns a panic into a difference.
func runGuarded(r Result, run func() Result) (out Result) {
	defer func() {
		if p := recover(); p != nil {
			out = r
			out.Outcome, out.Said = Wrong, fmt.Sprintf("panic: %v", p)
		}
	}()
	return run()
}

// runRuntime runs the runtime tests.
func runRuntime(checkout fs.FS, t *target, o Options, show func(Result)) error {
	read := func(name string) string {
		b, err := fs.ReadFile(checkout, path.Join("tests", name))
		if err != nil {
			return ""
		}
		return string(b)
	}
	files, err := fs.ReadDir(checkout, "tests/runtime")
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.IsDir() || strings.HasPrefix(f.Name(), ".") {
			continue
		}
		for _, c := range runtimeCases(f.Name(), read("runtime/"+f.Name())) {
			if o.Match != nil && !o.Match.MatchString(c.id) {
				continue
			}
			show(runGuarded(Result{Kind: Runtime, Name: c.id, Script: c.fields["PROG"] + c.fields["RUN"]}, func() Result { return c.run(t, read) }))
		}
	}
	return nil
}

// runSelfs runs the self tests.
func runSelfs(checkout fs.FS, t *target, show func(Result)) error {
	files, err := fs.Glob(checkout, "tests/self/*.bt")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := fs.ReadFile(checkout, f)
		if err != nil {
			return err
		}
		names, scripts := selfCases(string(text))
		for i, s := range scripts {
			name := strings.TrimSuffix(path.Base(f), ".bt") + "." + names[i]
			show(runGuarded(Result{Kind: Self, Name: name, Script: s}, func() Result { return runSelf(name, s, t) }))
		}
	}
	return nil
}

var _ script.Target = &target{}
