package sessiontest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

var attachCases = []testCase{
	{name: "attach", run: testAttach},
	{name: "all_or_none", run: testAllOrNone},
	{name: "change", run: testChange},
	{name: "owner", run: testOwner},
	{name: "returns_and_override", run: testReturnsAndOverride},
	{name: "object", run: testObject},
	{name: "closed", run: testClosed},
	{name: "nothing_waits_for_a_change", run: testNothingWaitsForAChange},
	{name: "together", run: testTogether},
}

// testAttach follows two definitions, one of them with a filter, from attach to their final counts, and checks their events.
func testAttach(v *env) {
	sub := v.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	a := v.attach(session.Spec{Def: "p:all " + target + " n=%di:u64"}, session.Spec{Def: "p:some " + target + " n=%di:u64", Filter: "n > 100"})
	for _, n := range []uint64{7, 700} {
		v.call(target, n)
	}
	var got []string
	for range 3 {
		ev, err := sub.Next(patience.Context(v))
		if err != nil {
			v.Fatal(err)
		}
		rec, err := ev.Decode()
		if err != nil {
			v.Fatal(err)
		}
		if at := v.s.TimeOf(ev); at <= 0 || at > v.s.Now() {
			v.Errorf("an event at %d, and now it is %d", at, v.s.Now())
		}
		got = append(got, fmt.Sprintf("%s %s", session.ProbeOf(ev).Name(), rec.Values[0].AppendText(nil)))
	}
	if want := "kprobes/all 7, kprobes/some 700, kprobes/all 700"; strings.Join(got, ", ") != want {
		v.Errorf("events %q, want %q", got, want)
	}
	is := v.s.Describe(a.Probes)
	if s := is[1].Stats; s.Hits != 2 || s.Filtered != 1 || s.Handled != 1 || s.Events != 1 || len(s.CPUs) != 2 || s.CPUs[0].Hits != 2 {
		v.Errorf("%+v", s)
	}
	if is[0].Kind != 'k' || !is[0].Enabled || !is[0].Armed || is[0].Symbol != target || is[1].Spec.Filter != "n > 100" {
		v.Errorf("%+v", is)
	}
	gone, err := v.s.Detach("some")
	if err != nil || len(gone) != 1 || gone[0].Stats.Hits != 2 || gone[0].Armed {
		v.Errorf("%+v, %v", gone, err)
	}
	if v.call(target, 1); v.s.Describe(a.Probes)[1].Stats.Hits != 2 || v.names() != "kprobes/all" {
		v.Errorf("hits after the end, or %s", v.names())
	}
	_, err = v.s.Detach("some")
	v.checkRefused(err, session.CodeProbeNotFound)
	if !errors.Is(err, session.ErrProbeNotFound) {
		v.Error(err)
	}
}

// testAllOrNone: if one of several definitions is rejected, none of the others
// stays attached, and each error names its definition.
func testAllOrNone(v *env) {
	v.attach(session.Spec{Def: "p:old " + target})
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
		_, err := v.s.Attach([]session.Spec{{Def: "p:a " + target}, {Def: "-:old"}, tc.spec}, nil)
		if e := v.checkRefused(err, tc.code); e.Index == nil || *e.Index != 2 {
			v.Errorf("%+v: %v is of definition %v", tc.spec, err, e.Index)
		}
		if v.names() != "kprobes/old" {
			v.Fatalf("%+v: %s", tc.spec, v.names())
		}
	}
	if n, err := v.s.Check(session.Spec{Def: "p:a kprobe_targ*"}); n == 0 || err != nil || v.names() != "kprobes/old" {
		v.Errorf("%d, %v, %s", n, err, v.names())
	}
	// The names are free.
	a := v.attach(session.Spec{Def: "-:old"}, session.Spec{Def: "p:a " + target}, session.Spec{Def: "p:b " + target})
	if len(a.Detached) != 1 || a.Detached[0].Name != "kprobes/old" || v.names() != "kprobes/a kprobes/b" {
		v.Errorf("%+v, %s", a, v.names())
	}
}

// testChange enables, disables and filters attached probes.
func testChange(v *env) {
	p := v.attach(session.Spec{Def: "p:a " + target + " n=%di:u64"}).Probes
	for _, step := range []struct {
		change              func() ([]session.Info, error)
		hits, out, disabled uint64
	}{
		{func() ([]session.Info, error) { return v.s.SetEnabled(false) }, 0, 0, 1},
		{func() ([]session.Info, error) { return v.s.SetEnabled(true, "kprobes/a") }, 1, 0, 0},
		{func() ([]session.Info, error) { return v.s.SetFilter("n == 3", "a") }, 2, 1, 0},
		{func() ([]session.Info, error) { return v.s.SetFilter("0", "1") }, 3, 1, 0},
	} {
		is, err := step.change()
		if err != nil || len(is) != 1 || is[0].Enabled != (step.disabled == 0) {
			v.Fatalf("%+v, %v", is, err)
		}
		v.call(target, 9)
		if s := v.s.Describe(p)[0].Stats; s.Hits != step.hits || s.Filtered != step.out {
			v.Errorf("%d hits, %d filtered, want %+v", s.Hits, s.Filtered, step)
		}
	}
	_, err := v.s.SetFilter("nope", "a")
	v.checkRefused(err, session.CodeBadDefinition)
	if v.held != 2 || v.s.SpecOf(p[0]).Filter != "" {
		v.Errorf("held %d times; %+v", v.held, v.s.SpecOf(p[0]))
	}
	none := v.newEnvWith(func(o *session.Options) { o.Hold = nil })
	none.attach(session.Spec{Def: "p:a " + target + " n=%di"})
	_, err = none.s.SetFilter("n == 3")
	none.checkRefused(err, session.CodeUnavailable)
}

// testOwner: two owners have the same definition; a probe without Stay ends with its owner.
func testOwner(v *env) {
	one, two := &session.Owner{}, &session.Owner{}
	for _, o := range []*session.Owner{one, two} {
		if _, err := v.s.Attach([]session.Spec{{Def: "p:a " + target}}, o); err != nil {
			v.Fatal(err)
		}
	}
	if _, err := v.s.Attach([]session.Spec{{Def: "p:b " + target, Stay: true}}, &session.Owner{}); err != nil {
		v.Fatal(err)
	}
	v.call(target, 1)
	gone, err := v.s.EndOwner(one)
	if err != nil || len(gone) != 1 || len(one.Finals()) != 1 || one.Finals()[0].Stats.Hits != 1 || len(two.Finals()) != 0 {
		v.Errorf("%+v, %v", gone, err)
	}
	if v.names() != "kprobes/a kprobes/b" {
		v.Error(v.names())
	}
}

// testReturnsAndOverride: a return probe sees the result that an override sets.
func testReturnsAndOverride(v *env) {
	sub := v.s.Subscribe(nil, event.Queue{}, session.ReturnEvents)
	defer sub.Close()
	once := int64(1)
	_, err := v.s.Attach([]session.Spec{{Def: "p:o " + target, Override: &session.Override{Value: 55}}}, nil)
	v.checkRefused(err, session.CodeUnavailable)
	plain := v.call(target, 3)
	v.attach(session.Spec{Def: "r:back " + target + " got=$retval:u64"}, session.Spec{Def: "p:o " + target, Unsafe: true, Override: &session.Override{Value: 55, Times: &once}})
	if got := v.call(target, 3); got != 55 {
		v.Errorf("returned %d", got)
	}
	if got := v.call(target, 3); got != plain {
		v.Errorf("returned %d the second time", got)
	}
	i, err := v.s.Get("o")
	if err != nil || i.Injected != 1 || i.Override.Seed == 0 || i.OnHost == "" {
		v.Errorf("%+v, %v", i, err)
	}
	v.s.Sync()
	ev, ok, _ := sub.TryNext()
	if !ok {
		v.Fatal("no event")
	}
	rec, err := ev.Decode()
	if err != nil || rec.Moment != event.AtReturn || rec.Duration < 0 {
		v.Errorf("%+v, %v", rec, err)
	}
}

// testObject loads the programs of an object file, reads its map, and checks that both are removed with the last probe.
func testObject(v *env) {
	file, err := os.ReadFile(objects + "count.o")
	if err != nil {
		v.Fatal(err)
	}
	_, err = v.s.AttachObject(session.ObjectSpec{File: file, At: "nowhere"})
	v.checkRefused(err, session.Code(probe.CodeSymbolNotFound))
	_, err = v.s.AttachObject(session.ObjectSpec{File: file[:100], At: target})
	v.checkRefused(err, session.CodeBadObject)
	if _, err := v.s.AttachObject(session.ObjectSpec{File: file, At: target}); err != nil {
		v.Fatal(err)
	}
	for range 3 {
		v.call(target, 1)
	}
	ms := v.s.Maps()
	if len(ms) == 0 || len(ms[0].Probes) != 1 {
		v.Fatalf("%+v", ms)
	}
	seen := uint64(0)
	if err := v.s.ReadMap(ms[0].Name, func(_ session.MapInfo, m *bpf.Map) error {
		m.Walk(func(_ []byte, vals [][]byte) bool {
			for _, v := range vals {
				if len(v) >= 8 {
					seen += binary.LittleEndian.Uint64(v)
				}
			}
			return true
		})
		return nil
	}); err != nil || seen < 3 {
		v.Errorf("the map %s has %d, %v", ms[0].Name, seen, err)
	}
	gone, err := v.s.Detach()
	if err != nil || len(gone) != 1 || gone[0].Program == nil || gone[0].Program.Runs != 3 {
		v.Errorf("%+v, %v", gone, err)
	}
	v.checkRefused(v.s.ReadMap(ms[0].Name, nil), session.CodeMapNotFound)
}

// testClosed: after Close nothing can be attached, found or changed, and
// subscriptions end.
func testClosed(v *env) {
	v.attach(session.Spec{Def: "p:a " + target})
	sub := v.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	v.call(target, 1)
	if err := v.s.Close(); err != nil {
		v.Fatal(err)
	}
	if _, err := sub.Next(patience.Context(v)); err != nil {
		v.Errorf("the last event: %v", err)
	}
	if _, err := sub.Next(patience.Context(v)); err == nil {
		v.Error("an event after the end")
	}
	_, attach := v.s.Attach([]session.Spec{{Def: "p:b " + target}}, nil)
	_, find := v.s.Find("a")
	_, filter := v.s.SetFilter("1 == 1")
	for _, err := range []error{attach, find, filter, v.s.ReadMap("x", nil), v.s.RunExclusive(nil), v.s.Reset(nil, nil)} {
		if !errors.Is(err, session.ErrClosed) {
			v.Errorf("%v", err)
		}
	}
	if !v.s.Closed() {
		v.Error("not closed")
	}
}

// testNothingWaitsForAChange: lookups, listings and counts continue while a change is under way.
func testNothingWaitsForAChange(v *env) {
	a := v.attach(session.Spec{Def: "p:a " + target})
	begun, end := make(chan struct{}), make(chan struct{})
	var change sync.WaitGroup
	change.Go(func() {
		if err := v.s.RunExclusive(func() error { close(begun); <-end; return nil }); err != nil {
			v.Error(err)
		}
	})
	<-begun
	v.call(target, 1)
	if i, err := v.s.Get("a"); err != nil || i.Stats.Hits != 1 {
		v.Errorf("%+v, %v", i, err)
	}
	for i := range v.s.Infos(v.s.Probes()) {
		if i.Probe != a.Probes[0] || !v.s.Has(i.Probe) {
			v.Errorf("%+v", i)
		}
	}
	v.s.Maps()
	close(end)
	change.Wait()
	if _, err := v.s.DetachIf(func(*session.Probe) bool { return true }); err != nil {
		v.Error(err)
	}
}
