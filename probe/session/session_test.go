package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/session"
)

// fake is the suite's guest in plain Go with a Session on it.
type fake struct {
	*testing.T
	*probetest.Fake
	img *guest.Image
	s   *session.Session
}

func (f *fake) Target() probe.Target { return f.Fake }
func (f *fake) Image() guest.View    { return f.img }

func newFake(t *testing.T, o session.Options) *fake {
	t.Helper()
	g, err := probetest.NewFake(probetest.FakeOptions{CPUs: 2, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{T: t, Fake: g, img: probetest.Image()}
	f.s = session.New(f, o)
	t.Cleanup(func() {
		if err := errors.Join(f.s.Close(), g.Close()); err != nil {
			t.Error(err)
		}
	})
	return f
}

// call calls a function of the guest.
func (f *fake) call(name string, args ...uint64) uint64 {
	f.Helper()
	sym, err := f.img.Lookup(name)
	if err != nil {
		f.Fatal(err)
	}
	got, err := f.Call(0, sym.Addr, args...)
	if err != nil {
		f.Fatal(err)
	}
	return got
}

// attach attaches definitions.
func (f *fake) attach(specs ...session.Spec) session.Attached {
	f.Helper()
	a, err := f.s.Attach(specs, nil)
	if err != nil {
		f.Fatal(err)
	}
	return a
}

// names returns the names of the probes.
func (f *fake) names() string {
	var out []string
	for _, p := range f.s.Probes() {
		out = append(out, p.Name())
	}
	return strings.Join(out, " ")
}

// refused wants an error with a code.
func (f *fake) refused(err error, code session.Code) *session.Error {
	f.Helper()
	var e *session.Error
	if !errors.As(err, &e) {
		e = session.ErrorOf(err)
	}
	if e.Code != code {
		f.Errorf("%v: want code %s", err, code)
	}
	return e
}

const target = "kprobe_target"

// TestAttach follows two definitions from their attach to their last counts: the events of one, and the filter of the other.
func TestAttach(t *testing.T) {
	f := newFake(t, session.Options{})
	sub := f.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	a := f.attach(session.Spec{Def: "p:all " + target + " n=%di:u64"}, session.Spec{Def: "p:some " + target + " n=%di:u64", Filter: "n > 100"})
	for _, n := range []uint64{7, 700} {
		f.call(target, n)
	}
	var got []string
	for range 3 {
		ev, err := sub.Next(patience.Of(t))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := ev.Decode()
		if err != nil {
			t.Fatal(err)
		}
		if at := f.s.TimeOf(ev); at <= 0 || at > f.s.Now() {
			t.Errorf("an event at %d, and now it is %d", at, f.s.Now())
		}
		got = append(got, fmt.Sprintf("%s %s", session.ProbeOf(ev).Name(), rec.Values[0].AppendText(nil)))
	}
	if want := "kprobes/all 7, kprobes/some 700, kprobes/all 700"; strings.Join(got, ", ") != want {
		t.Errorf("events %q, want %q", got, want)
	}
	is := f.s.Describe(a.Probes)
	if s := is[1].Stats; s.Hits != 2 || s.Filtered != 1 || s.Handled != 1 || s.Events != 1 || len(s.CPUs) != 2 || s.CPUs[0].Hits != 2 {
		t.Errorf("%+v", s)
	}
	if is[0].Kind != 'k' || !is[0].Enabled || !is[0].Armed || is[0].Symbol != target || is[1].Spec.Filter != "n > 100" {
		t.Errorf("%+v", is)
	}
	gone, err := f.s.Detach("some")
	if err != nil || len(gone) != 1 || gone[0].Stats.Hits != 2 || gone[0].Armed {
		t.Errorf("%+v, %v", gone, err)
	}
	if f.call(target, 1); f.s.Describe(a.Probes)[1].Stats.Hits != 2 || f.names() != "kprobes/all" {
		t.Errorf("hits after the end, or %s", f.names())
	}
	_, err = f.s.Detach("some")
	f.refused(err, session.CodeProbeNotFound)
	if !errors.Is(err, session.ErrProbeNotFound) {
		t.Error(err)
	}
}

// TestAllOrNone: where one of several definitions is refused nothing of the others is left, and each refusal says which it is.
func TestAllOrNone(t *testing.T) {
	f := newFake(t, session.Options{})
	f.attach(session.Spec{Def: "p:old " + target})
	for _, tc := range []struct {
		spec session.Spec
		code session.Code
	}{
		{session.Spec{Def: "p:b nowhere"}, session.Code(probe.CodeSymbolNotFound)},
		{session.Spec{Def: "p:b " + target + " n=%nope"}, session.CodeBadDefinition},
		{session.Spec{Def: "p:b " + target, Filter: "nope > 1"}, session.CodeBadDefinition},
		{session.Spec{Def: "p:b " + target, Emulate: true}, session.CodeUnavailable},
		{session.Spec{Def: "p:b " + target, Args: session.MaxArgs + 1}, session.CodeBadValue},
		{session.Spec{Def: "r:a " + target}, session.CodeNameTaken},
		{session.Spec{Def: "p:b " + target, Stop: session.StopAll}, session.CodeUnavailable},
		{session.Spec{Def: "-:nope"}, session.CodeProbeNotFound},
	} {
		_, err := f.s.Attach([]session.Spec{{Def: "p:a " + target}, {Def: "-:old"}, tc.spec}, nil)
		if e := f.refused(err, tc.code); e.Index == nil || *e.Index != 2 {
			t.Errorf("%+v: %v is of definition %v", tc.spec, err, e.Index)
		}
		if f.names() != "kprobes/old" {
			t.Fatalf("%+v: %s", tc.spec, f.names())
		}
	}
	if n, err := f.s.Check(session.Spec{Def: "p:a kprobe_targ*"}); n == 0 || err != nil || f.names() != "kprobes/old" {
		t.Errorf("%d, %v, %s", n, err, f.names())
	}
	// The names are free.
	a := f.attach(session.Spec{Def: "-:old"}, session.Spec{Def: "p:a " + target}, session.Spec{Def: "p:b " + target})
	if len(a.Detached) != 1 || a.Detached[0].Name != "kprobes/old" || f.names() != "kprobes/a kprobes/b" {
		t.Errorf("%+v, %s", a, f.names())
	}
}

// TestChange enables, disables and filters probes that are there.
func TestChange(t *testing.T) {
	held := 0
	f := newFake(t, session.Options{Hold: func() (func() error, error) { held++; return func() error { return nil }, nil }})
	p := f.attach(session.Spec{Def: "p:a " + target + " n=%di:u64"}).Probes
	for _, step := range []struct {
		change              func() ([]session.Info, error)
		hits, out, disabled uint64
	}{
		{func() ([]session.Info, error) { return f.s.SetEnabled(false) }, 0, 0, 1},
		{func() ([]session.Info, error) { return f.s.SetEnabled(true, "kprobes/a") }, 1, 0, 0},
		{func() ([]session.Info, error) { return f.s.SetFilter("n == 3", "a") }, 2, 1, 0},
		{func() ([]session.Info, error) { return f.s.SetFilter("0", "1") }, 3, 1, 0},
	} {
		is, err := step.change()
		if err != nil || len(is) != 1 || is[0].Enabled != (step.disabled == 0) {
			t.Fatalf("%+v, %v", is, err)
		}
		f.call(target, 9)
		if s := f.s.Describe(p)[0].Stats; s.Hits != step.hits || s.Filtered != step.out {
			t.Errorf("%d hits, %d filtered, want %+v", s.Hits, s.Filtered, step)
		}
	}
	_, err := f.s.SetFilter("nope", "a")
	f.refused(err, session.CodeBadDefinition)
	if held != 2 || f.s.SpecOf(p[0]).Filter != "" {
		t.Errorf("held %d times; %+v", held, f.s.SpecOf(p[0]))
	}
	none := newFake(t, session.Options{})
	none.attach(session.Spec{Def: "p:a " + target + " n=%di"})
	_, err = none.s.SetFilter("n == 3")
	none.refused(err, session.CodeUnavailable)
}

// TestOwner: two owners have the same definition; what is not to stay ends with its owner.
func TestOwner(t *testing.T) {
	f := newFake(t, session.Options{})
	one, two := &session.Owner{}, &session.Owner{}
	for _, o := range []*session.Owner{one, two} {
		if _, err := f.s.Attach([]session.Spec{{Def: "p:a " + target}}, o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.s.Attach([]session.Spec{{Def: "p:b " + target, Stay: true}}, &session.Owner{}); err != nil {
		t.Fatal(err)
	}
	f.call(target, 1)
	gone, err := f.s.EndOwner(one)
	if err != nil || len(gone) != 1 || len(one.Finals()) != 1 || one.Finals()[0].Stats.Hits != 1 || len(two.Finals()) != 0 {
		t.Errorf("%+v, %v", gone, err)
	}
	if f.names() != "kprobes/a kprobes/b" {
		t.Error(f.names())
	}
}

// TestReturnsAndOverride: a return probe has the result that an override gives.
func TestReturnsAndOverride(t *testing.T) {
	f := newFake(t, session.Options{})
	sub := f.s.Subscribe(nil, event.Queue{}, session.ReturnEvents)
	defer sub.Close()
	once := int64(1)
	_, err := f.s.Attach([]session.Spec{{Def: "p:o " + target, Override: &session.Override{Value: 55}}}, nil)
	f.refused(err, session.CodeUnavailable)
	plain := f.call(target, 3)
	f.attach(session.Spec{Def: "r:back " + target + " got=$retval:u64"}, session.Spec{Def: "p:o " + target, Unsafe: true, Override: &session.Override{Value: 55, Times: &once}})
	if got := f.call(target, 3); got != 55 {
		t.Errorf("returned %d", got)
	}
	if got := f.call(target, 3); got != plain {
		t.Errorf("returned %d the second time", got)
	}
	i, err := f.s.Get("o")
	if err != nil || i.Injected != 1 || i.Override.Seed == 0 || i.OnHost == "" {
		t.Errorf("%+v, %v", i, err)
	}
	f.s.Sync()
	ev, ok, _ := sub.TryNext()
	if !ok {
		t.Fatal("no event")
	}
	rec, err := ev.Decode()
	if err != nil || rec.Moment != event.AtReturn || rec.Duration < 0 {
		t.Errorf("%+v, %v", rec, err)
	}
}

// TestObject loads the programs of an object file, reads its map, and has both go with the last probe.
func TestObject(t *testing.T) {
	f := newFake(t, session.Options{})
	file, err := os.ReadFile("../bpf/testdata/obj/count.o")
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.s.AttachObject(session.ObjectSpec{File: file, At: "nowhere"})
	f.refused(err, session.Code(probe.CodeSymbolNotFound))
	_, err = f.s.AttachObject(session.ObjectSpec{File: file[:100], At: target})
	f.refused(err, session.CodeBadObject)
	if _, err := f.s.AttachObject(session.ObjectSpec{File: file, At: target}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.call(target, 1)
	}
	ms := f.s.Maps()
	if len(ms) == 0 || len(ms[0].Probes) != 1 {
		t.Fatalf("%+v", ms)
	}
	seen := uint64(0)
	if err := f.s.ReadMap(ms[0].Name, func(_ session.MapInfo, m *bpf.Map) error {
		m.Each(func(_ []byte, vals [][]byte) bool {
			for _, v := range vals {
				if len(v) >= 8 {
					seen += binary.LittleEndian.Uint64(v)
				}
			}
			return true
		})
		return nil
	}); err != nil || seen < 3 {
		t.Errorf("the map %s has %d, %v", ms[0].Name, seen, err)
	}
	gone, err := f.s.Detach()
	if err != nil || len(gone) != 1 || gone[0].Program == nil || gone[0].Program.Runs != 3 {
		t.Errorf("%+v, %v", gone, err)
	}
	f.refused(f.s.ReadMap(ms[0].Name, nil), session.CodeMapNotFound)
}

// TestScript compiles, loads and ends a script: its records, and its map.
func TestScript(t *testing.T) {
	f := newFake(t, session.Options{})
	_, err := f.s.CompileScript("kprobe:"+target+" { nonsense(); }", session.ScriptOptions{})
	f.refused(err, session.CodeBadScript)
	sc, err := f.s.CompileScript("kprobe:"+target+` /arg0 > 2/ { printf("%d\n", arg0); @sum = sum(arg0); } END { printf("over\n"); }`, session.ScriptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.s.LoadScript(sc, session.ScriptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.call(target, 100) // not begun
	if err := s.Begin(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{1, 3, 5} {
		f.call(target, n)
	}
	if err := s.Disable(); err != nil {
		t.Fatal(err)
	}
	s.RunAll(sc.End, func(name string, err error) { t.Error(name, err) })
	f.s.Poll()
	var out strings.Builder
	printer := s.NewPrinter(false, func(text string) { out.WriteString(text) }, func(text string) { t.Error(text) })
	<-s.Ready()
	s.Each(func(r session.ScriptRecord, next []byte) {
		if err := printer.Record(r.Data, next); err != nil {
			t.Error(err)
		}
	})
	printer.PrintMaps()
	if got, want := strings.Join(strings.Fields(out.String()), " "), "3 5 over @sum: 8"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if _, err := s.Close(); err != nil || len(f.s.Probes())+len(f.s.Maps()) > 0 {
		t.Errorf("left: %s, %v", f.names(), err)
	}
}

// TestStartScript: a script from its text to its output.
func TestStartScript(t *testing.T) {
	f := newFake(t, session.Options{})
	_, err := f.s.StartScript("profile:hz:99 { @++; }", session.ScriptOptions{})
	f.refused(err, session.CodeUnavailable)
	_, err = f.s.StartScript("kprobe:"+target+"+1 { @++; }", session.ScriptOptions{})
	if e := f.refused(err, session.CodeBadScript); !errors.Is(err, syscall.EILSEQ) || !errors.As(err, new(*script.Error)) || !strings.Contains(e.Text, ":1:") {
		t.Errorf("%v", err)
	}
	s, err := f.s.StartScript("BEGIN { @n = 40; } kprobe:"+target+` { @n += arg0; printf("%d\n", arg0); } END { printf("over\n"); }`, session.ScriptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const calls = 2000 // more than are taken at once
	for range calls {
		f.call(target, 1)
	}
	var out strings.Builder
	if err := s.Stop(&out); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(strings.Fields(out.String()), " "), strings.Repeat("1 ", calls)+fmt.Sprintf("over @n: %d", 40+calls); got != want {
		t.Errorf("printed %d bytes, %q", len(got), got[max(0, len(got)-40):])
	}
	if f.names() != "" || len(f.s.Maps()) > 0 {
		t.Errorf("left: %s", f.names())
	}
}

// TestRunScript: a script prints until it exits by itself, its context ends, or its probes go, at once or after its intervals.
func TestRunScript(t *testing.T) {
	f := newFake(t, session.Options{})
	run := func(ctx context.Context, text string, meanwhile func()) (string, int64) {
		t.Helper()
		s, err := f.s.StartScript(text, session.ScriptOptions{})
		if err != nil {
			t.Fatal(err)
		}
		meanwhile()
		var out strings.Builder
		status, err := s.Run(ctx, &out)
		if err != nil || f.names() != "" || len(f.s.Maps()) > 0 {
			t.Errorf("left: %s, %v", f.names(), err)
		}
		return strings.Join(strings.Fields(out.String()), " "), status
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		text      string
		ctx       context.Context
		meanwhile func()
		want      string
		status    int64
	}{
		{"kprobe:" + target + ` { @ = count(); printf("%d\n", arg0); exit(3); }`, patience.Of(t), func() { f.call(target, 7) }, "7 @: 1", 3},
		{`BEGIN { @n = 0; } interval:ms:1 { @n++; printf("%d\n", @n); if (@n == 3) { clear(@n); exit(); } }`, patience.Of(t), func() {}, "1 2 3", 0},
		{"kprobe:" + target + " { @ = count(); }", ended, func() { f.call(target, 7) }, "@: 1", 0},
		{"kprobe:" + target + " { @ = count(); } END { print(5); }", patience.Of(t), func() {
			f.call(target, 7)
			if _, err := f.s.DetachIf(func(*session.Probe) bool { return true }); err != nil {
				t.Error(err)
			}
		}, "5 @: 1", 0},
	} {
		if got, status := run(c.ctx, c.text, c.meanwhile); got != c.want || status != c.status {
			t.Errorf("%s: printed %q with status %d, want %q and %d", c.text, got, status, c.want, c.status)
		}
	}
}

// TestClosed: after Close nothing is attached, found or changed, and subscriptions end.
func TestClosed(t *testing.T) {
	f := newFake(t, session.Options{})
	f.attach(session.Spec{Def: "p:a " + target})
	sub := f.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	f.call(target, 1)
	if err := f.s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Next(patience.Of(t)); err != nil {
		t.Errorf("the last event: %v", err)
	}
	if _, err := sub.Next(patience.Of(t)); err == nil {
		t.Error("an event after the end")
	}
	_, attach := f.s.Attach([]session.Spec{{Def: "p:b " + target}}, nil)
	_, find := f.s.Find("a")
	_, filter := f.s.SetFilter("1 == 1")
	for _, err := range []error{attach, find, filter, f.s.ReadMap("x", nil), f.s.Exclusive(nil), f.s.Reset(nil, nil)} {
		if !errors.Is(err, session.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if !f.s.Closed() {
		t.Error("not closed")
	}
}

// TestNothingWaitsForAChange: lookups, listings and counts go on while a change is under way.
func TestNothingWaitsForAChange(t *testing.T) {
	f := newFake(t, session.Options{})
	a := f.attach(session.Spec{Def: "p:a " + target})
	begun, end := make(chan struct{}), make(chan struct{})
	var change sync.WaitGroup
	change.Go(func() {
		if err := f.s.Exclusive(func() error { close(begun); <-end; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-begun
	f.call(target, 1)
	if i, err := f.s.Get("a"); err != nil || i.Stats.Hits != 1 {
		t.Errorf("%+v, %v", i, err)
	}
	for i := range f.s.Infos(f.s.Probes()) {
		if i.Probe != a.Probes[0] || !f.s.Has(i.Probe) {
			t.Errorf("%+v", i)
		}
	}
	f.s.Maps()
	close(end)
	change.Wait()
	if _, err := f.s.DetachIf(func(*session.Probe) bool { return true }); err != nil {
		t.Error(err)
	}
}
