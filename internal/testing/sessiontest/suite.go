// Package sessiontest is the suite of probe/session: sessions attach, change,
// read and detach on a guest with the conformance suite's image, in plain Go or
// under KVM.
package sessiontest

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Guest is a guest of the suite's image (probetest.Image) with at least two vCPUs.
type Guest interface {
	probetest.Harness
	session.Guest
}

// Boot starts a guest for one case, and returns the options of a session on it,
// including Hold. The suite closes the guest.
type Boot func(t *testing.T) (Guest, session.Options)

// testCase is one case of the suite, which has a guest and a session of its own.
type testCase struct {
	name string
	run  func(v *env)
}

// Run runs each case on a guest that boot starts. After each case nothing is
// attached, and the guest's text is the image's. left, if not nil, returns how
// many objects a session without probes still keeps.
func Run(t *testing.T, boot Boot, left func(*session.Session) int) {
	for _, part := range [][]testCase{attachCases, scriptCases} {
		for _, c := range part {
			t.Run(c.name, func(t *testing.T) { c.run(newEnv(t, boot, left, nil)) })
		}
	}
}

// env is the environment of a case.
type env struct {
	*testing.T
	g    Guest
	s    *session.Session
	boot Boot
	left func(*session.Session) int
	held int // calls of Options.Hold
}

// newEnv boots a guest with a session, both of which end with the test.
func newEnv(t *testing.T, boot Boot, left func(*session.Session) int, change func(*session.Options)) *env {
	t.Helper()
	g, o := boot(t)
	v := &env{T: t, g: g, boot: boot, left: left}
	if hold := o.Hold; hold != nil {
		o.Hold = func() (func() error, error) { v.held++; return hold() }
	}
	if change != nil {
		change(&o)
	}
	v.s = session.New(g, o)
	t.Cleanup(func() {
		if err := v.s.Close(); err != nil {
			t.Error(err)
		}
		v.checkText()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// newEnvWith boots a second guest, whose session has other options.
func (v *env) newEnvWith(change func(*session.Options)) *env {
	v.Helper()
	return newEnv(v.T, v.boot, v.left, change)
}

// checkText compares all text with the image.
func (v *env) checkText() {
	v.Helper()
	for _, s := range probetest.Image().Segments {
		if !s.X {
			continue
		}
		got := make([]byte, len(s.Data))
		if err := v.g.Read(s.VAddr, got); err != nil || string(got) != string(s.Data) {
			v.Errorf("the text at %v is not the image's: %v", s.VAddr, err)
		}
	}
}

// objects is the folder of the programs that cases attach, relative to a package two levels below the top.
const objects = "../../probe/bpf/testdata/obj/"

// target is a function that returns a third of its argument.
const target = "kprobe_target"

// call calls a function of the guest.
func (v *env) call(name string, args ...uint64) uint64 {
	v.Helper()
	sym, err := v.g.Symbol(name)
	if err != nil {
		v.Fatal(err)
	}
	got, err := v.g.Call(0, sym.Addr, args...)
	if err != nil {
		v.Fatal(err)
	}
	return got
}

// attach attaches definitions.
func (v *env) attach(specs ...session.Spec) session.Attached {
	v.Helper()
	a, err := v.s.Attach(specs, nil)
	if err != nil {
		v.Fatal(err)
	}
	return a
}

// names returns the names of the probes.
func (v *env) names() string {
	var out []string
	for _, p := range v.s.Probes() {
		out = append(out, p.Name())
	}
	return strings.Join(out, " ")
}

// checkRefused wants an error with a code.
func (v *env) checkRefused(err error, code session.Code) *session.Error {
	v.Helper()
	var e *session.Error
	if !errors.As(err, &e) {
		e = session.ErrorOf(err)
	}
	if e.Code != code {
		v.Errorf("%v: want code %s", err, code)
	}
	return e
}
