package sessiontest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Script is a running script, with its output and its warnings in the form that a daemon's client gets them.
type Script struct {
	*session.Script
	t        testing.TB
	s        *session.Session
	printer  printer
	out      strings.Builder
	warnings []string
}

// printer is the part of script.Printer that a Script uses.
type printer interface {
	Record(data, next []byte) error
	PrintMaps()
	TakeMaps() error
	Problems(all bool) []string
}

// Start compiles, loads and starts a script. An error ends the test.
func Start(t testing.TB, s *session.Session, text string, o session.ScriptOptions) *Script {
	t.Helper()
	sc, err := s.CompileScript(text, o)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := s.LoadScript(sc, o)
	if err != nil {
		t.Fatal(err)
	}
	x := &Script{Script: loaded, t: t, s: s, warnings: sc.Warnings}
	x.printer = loaded.NewPrinter(false, func(text string) { x.out.WriteString(text) }, x.warn)
	x.run(sc.Begin)
	if err := loaded.Begin(); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *Script) warn(text string) { x.warnings = append(x.warnings, text) }

// run runs programs that have no place in the guest.
func (x *Script) run(names []string) {
	x.RunAll(names, func(name string, err error) { x.warn(x.fault(name, err, 1)) })
	x.s.Poll()
}

// fault returns the warning that runs of a program ended early.
func (x *Script) fault(name string, err error, times uint64) string {
	var f *bpf.Fault
	if !errors.As(err, &f) {
		return err.Error()
	}
	what := f.Code.String()
	if times > 1 {
		what += fmt.Sprintf(" (%d times)", times)
	}
	return x.CompiledScript().Source(name, f.PC, what)
}

// print prints the pending records.
func (x *Script) print() {
	for x.PendingRecords() > 0 {
		x.ForEach(func(r session.ScriptRecord, next []byte) {
			if err := x.printer.Record(r.Data, next); err != nil {
				x.t.Error(err)
			}
		})
	}
	if n := x.LostRecords(); n > 0 {
		x.t.Errorf("%d records are lost", n)
	}
}

// Wait runs the script's intervals and prints its output until the script calls exit.
func (x *Script) Wait() {
	x.t.Helper()
	x.WaitTaking(0)
}

// WaitTaking is Wait, but also prints and clears all maps at an interval; 0 means never.
func (x *Script) WaitTaking(every time.Duration) {
	x.t.Helper()
	var takes <-chan time.Time
	if every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		takes = t.C
	}
	ctx, next := patience.Context(x.t), x.FirstTicks()
	for {
		x.print()
		if _, exits := x.Exit(); exits {
			return
		}
		for _, text := range x.printer.Problems(false) {
			x.warn(text)
		}
		select {
		case <-x.Ready():
		case <-takes:
			x.s.Poll()
			x.print()
			if err := x.printer.TakeMaps(); err != nil {
				x.t.Error(err)
			}
		case <-time.After(x.Tick(next, func(name string, err error) { x.warn(x.fault(name, err, 1)) })):
		case <-ctx.Done():
			x.t.Fatal("the script does not exit")
		}
	}
}

// End ends the script. It returns the whole output, the warnings, and the final state of the probes.
func (x *Script) End() (out string, warnings []string, gone []session.Info) {
	x.t.Helper()
	gone, err := x.Quiesce(10*time.Second, nil)
	if err != nil {
		x.t.Error(err)
	}
	x.run(x.CompiledScript().End)
	x.print()
	x.printer.PrintMaps()
	for _, text := range x.printer.Problems(true) {
		x.warn(text)
	}
	for _, p := range x.Object().Programs() {
		if s := p.Stats(); s.Last != nil {
			x.warn(x.fault(p.Name, s.Last, s.Faults))
		}
	}
	if _, err := x.Close(); err != nil {
		x.t.Error(err)
	}
	return x.out.String(), x.warnings, gone
}

// Probes returns the script's probes by number.
func (x *Script) Probes() []session.Info {
	var own []*session.Probe
	for _, p := range x.s.Probes() {
		for q := range x.Owner().Probes() {
			if p == q {
				own = append(own, p)
			}
		}
	}
	return x.s.Describe(own)
}
