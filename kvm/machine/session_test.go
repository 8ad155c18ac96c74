package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// sessionOn returns a Session on a running built-in guest with these words on its command line.
func sessionOn(t *testing.T, cmdline string) (*Machine, *session.Session) {
	t.Helper()
	return sessionOf(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: cmdline}, session.Options{})
}

// sessionOf returns a Session with these options, and what it needs of the machine, on a running guest.
func sessionOf(t *testing.T, c Config, o session.Options) (*Machine, *session.Session) {
	t.Helper()
	m := newMachine(t, c)
	o.Clock = func(now func() int64) (session.Clock, error) { c, err := m.Clock(now); return session.Clock(c), err }
	o.Hold = func() (func() error, error) { return m.Resume, m.Pause() }
	s := session.New(m, o)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	return m, s
}

// awaitProbe waits until a probe is as it is wanted.
func awaitProbe(t *testing.T, m *Machine, s *session.Session, name, what string, is func(session.Info) bool) session.Info {
	t.Helper()
	ctx := patience.Context(t)
	for {
		i, err := s.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		if is(i) {
			return i
		}
		if ctx.Err() != nil || m.Phase() != PhaseRunning {
			t.Fatalf("%s: not %s, and the guest is %s: %+v", name, what, m.Phase(), i)
		}
		breathe()
	}
}

// objectFile returns an object file of the tests of probe/bpf.
func objectFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../probe/bpf/testdata/obj/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSession attaches definitions of all kinds, a program and a script to a guest under KVM, changes them, resets the guest under them,
// and takes them away: the counts close, and the text is what it was.
func TestSession(t *testing.T) {
	m, s := sessionOn(t, "")
	events := s.Subscribe(func(ev event.Event) bool { return session.ProbeOf(ev).Name() == "kprobes/reads" }, event.Queue{}, session.AllEvents)
	defer events.Close()
	if _, err := s.Attach([]session.Spec{
		{Def: "p:reads vfs_read fd=%di:s32", Filter: "fd > 3"},
		{Def: "r:back vfs_read got=$retval:s64", Stack: true},
		{Def: "w:written w@watch_u64", Emulate: true},
		{Def: "p:args do_fork", Args: 2},
	}, nil); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		ev, err := events.Next(patience.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := ev.Decode()
		if err != nil {
			t.Fatal(err)
		}
		if text := string(rec.Values[0].AppendText(nil)); text == "3" || strings.HasPrefix(text, "-") {
			t.Errorf("the filter has let fd=%s pass", text)
		}
	}
	if _, err := s.AttachObject(session.ObjectSpec{File: objectFile(t, "count.o")}); err != nil {
		t.Fatal(err)
	}
	sc, err := s.CompileScript("kprobe:vfs_read { @[arg0 > 3] = count(); }", session.ScriptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	script, err := s.LoadScript(sc, session.ScriptOptions{})
	if err == nil {
		err = script.Begin()
	}
	if err != nil {
		t.Fatal(err)
	}
	hit := func(i session.Info) bool { return i.Stats.Handled > 0 && i.Stats.Hits > 2 }
	names := []string{"reads", "back", "written", "args", "count"}
	before := map[string]uint64{}
	for _, name := range names {
		before[name] = awaitProbe(t, m, s, name, "hit", hit).Stats.Hits
	}
	if i, _ := s.Get("count"); i.Program == nil || i.Site.Optimized && !i.Site.InGuest && i.OnHost == "" {
		t.Errorf("%+v", i)
	}
	counted := uint64(0)
	if err := s.ReadMap(s.Maps()[0].Name, func(_ session.MapInfo, m *bpf.Map) error {
		m.Walk(func(_ []byte, vals [][]byte) bool {
			for _, v := range vals {
				counted += binary.LittleEndian.Uint64(v)
			}
			return true
		})
		return nil
	}); err != nil || counted == 0 {
		t.Errorf("%d, %v", counted, err)
	}
	if _, err := s.SetFilter("", "reads"); err != nil {
		t.Error(err)
	}
	awaitProbe(t, m, s, "reads", "hit by each read", func(i session.Info) bool { return i.Spec.Filter == "" && i.Stats.Hits > before["reads"]+2 })
	if err := s.Reset(m.Pause, func() error { return m.Reset(context.Background(), nil) }); err != nil {
		t.Fatal(err)
	}
	for _, name := range names { // which counts go on from
		i, err := s.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = i.Stats.Hits
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		awaitProbe(t, m, s, name, "hit after the reset", func(i session.Info) bool { return i.Stats.Hits > before[name]+2 })
	}
	// The script's map has begun anew in the guest's memory.
	printed := func() string {
		var out strings.Builder
		script.NewPrinter(false, func(text string) { out.WriteString(text) }, func(text string) { t.Error(text) }).PrintMaps()
		return out.String()
	}
	for ctx := patience.Context(t); ctx.Err() == nil && !strings.Contains(printed(), "@[true]: "); breathe() {
		s.Poll()
	}
	if err := script.Disable(); err != nil {
		t.Error(err)
	}
	s.Poll()
	if out := printed(); !strings.Contains(out, "@[true]: ") {
		t.Errorf("the script's map: %q", out)
	}
	if _, err := script.Close(); err != nil {
		t.Error(err)
	}
	gone, err := s.Detach()
	if err != nil || len(gone) != len(names) {
		t.Errorf("%d detached, %v", len(gone), err)
	}
	for _, i := range gone {
		if c := i.Stats; c.Hits != c.Handled+c.Filtered+c.Missed || i.Kind == 'r' && c.Handled != c.Returns+c.Abandoned+c.UnderWay {
			t.Errorf("%s: the counts do not close: %+v", i.Name, c)
		}
	}
	img := m.Image()
	for _, r := range img.Text(false) {
		b := make([]byte, r.End-r.Start)
		if err := m.ReadText(r.Start, b); err != nil || string(b) != string(img.Code(r.Start, len(b))) {
			t.Errorf("the text at %v is not what it was: %v", r.Start, err)
		}
	}
	_, err = s.Attach([]session.Spec{{Def: "p:a vfs_read"}, {Def: "p:b blacklisted_fn"}}, nil)
	if e := session.ErrorOf(err); e.Code != session.Code(probe.CodeBlacklisted) || len(s.Probes()) != 0 || !errors.As(err, new(*probe.Error)) {
		t.Errorf("%v, %d probes", err, len(s.Probes()))
	}
}

// TestSessionOverride: a definition's function returns what was asked for, in exactly those calls that were.
func TestSessionOverride(t *testing.T) {
	m, s := sessionOn(t, "idle")
	fn, err := m.Image().Lookup("bench_target")
	if err != nil {
		t.Fatal(err)
	}
	call := func() bool {
		t.Helper()
		r, err := m.Call(patience.Context(t), fn.Addr, 7, 1)
		if err != nil {
			t.Fatal(err)
		}
		return int64(r) == -2
	}
	// calls is what has become of n calls, one letter each, with the override as it was.
	calls := func(n int, o session.Override) (string, session.Override) {
		t.Helper()
		if _, err := s.Attach([]session.Spec{{Def: "p:fail bench_target", Override: &o, Unsafe: true}}, nil); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for range n {
			if call() {
				b.WriteByte('x')
			} else {
				b.WriteByte('.')
			}
		}
		gone, err := s.Detach("fail")
		if err != nil {
			t.Fatal(err)
		}
		i := gone[0]
		if got := uint64(strings.Count(b.String(), "x")); i.Override == nil || i.Injected != got || i.Stats.Handled != uint64(n) || !strings.Contains(i.OnHost, "only the engine may") {
			t.Errorf("%d of %d calls returned early: %+v", got, n, i)
		}
		if call() {
			t.Error("a call returns early after the end")
		}
		return b.String(), *i.Override
	}
	two, forever, never := int64(2), int64(-1), int64(0)
	percent := func(p float64) *float64 { return &p }
	for _, c := range []struct {
		o    session.Override
		want string
	}{
		{session.Override{}, "xxxxxxxxxxxx"},
		{session.Override{Times: &forever}, "xxxxxxxxxxxx"},
		{session.Override{Times: &two}, "xx.........."},
		{session.Override{Times: &never}, "............"},
		{session.Override{Interval: 3}, "..x..x..x..x"},
		{session.Override{Interval: 3, After: 2, Times: &two}, "....x..x...."},
		{session.Override{After: 10}, "..........xx"},
		{session.Override{Probability: percent(0)}, "............"},
		{session.Override{Probability: percent(100)}, "xxxxxxxxxxxx"},
		// SplitMix64 from 1234 on, of which each number's upper 53 bits are compared with 40%.
		{session.Override{Probability: percent(40), Seed: 1234}, "..xx...xx.xx"},
	} {
		c.o.Value = -2
		if got, o := calls(12, c.o); got != c.want {
			t.Errorf("%+v: %s, want %s", o, got, c.want)
		}
	}
	// A seed that the session takes does the same again.
	first, o := calls(100, session.Override{Value: -2, Probability: percent(30)})
	if n := strings.Count(first, "x"); n == 0 || n == 100 {
		t.Errorf("of 100 calls %d return early by chance 30%%", n)
	}
	if again, _ := calls(100, o); again != first {
		t.Errorf("by its own seed\n%s is\n%s", first, again)
	}
	o.Seed++
	if other, _ := calls(100, o); other == first {
		t.Errorf("another seed is the same: %s", other)
	}
}

// TestSessionOverrideLimit: hits of two vCPUs at once inject as many as the limit says, another filter does not begin
// again, and hits that are not chosen run.
func TestSessionOverrideLimit(t *testing.T) {
	m, s := sessionOn(t, "")
	limit := int64(5)
	if _, err := s.Attach([]session.Spec{{Def: "p:fail user_hot", Override: &session.Override{Times: &limit, After: 100}, Unsafe: true}}, nil); err != nil {
		t.Fatal(err)
	}
	i := awaitProbe(t, m, s, "fail", "hit on both", func(i session.Info) bool { return i.Stats.CPUs[0].Handled > 200 && i.Stats.CPUs[1].Handled > 200 })
	if i.Injected != 5 {
		t.Errorf("injected %d, want 5", i.Injected)
	}
	if _, err := s.SetFilter("cpu < 2", "fail"); err != nil {
		t.Fatal(err)
	}
	i = awaitProbe(t, m, s, "fail", "hit more", func(now session.Info) bool { return now.Stats.Handled > i.Stats.Handled+200 })
	if i.Injected != 5 {
		t.Errorf("with another filter injected %d, want 5", i.Injected)
	}
}

// TestSessionFilters gives probes that are hit all the time one filter after the other, on the host and in the guest, with a
// subscription to their events: counts only grow, and in the end they close.
func TestSessionFilters(t *testing.T) {
	m, s := sessionOn(t, "")
	events := s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer events.Close()
	names := []string{"a", "b", "c", "d"}
	if _, err := s.Attach([]session.Spec{
		{Def: "p:a user_hot b=$arg2:u64"}, {Def: "p:b user_hot b=$arg2:u64", OnHost: true},
		{Def: "r:c user_hot b=$arg2:u64"}, {Def: "p:d vfs_read b=%dx:u64"},
	}, nil); err != nil {
		t.Fatal(err)
	}
	read := make(chan uint64)
	go func() {
		n := uint64(0)
		for {
			if _, err := events.Next(context.Background()); err != nil {
				read <- n
				return
			}
			n++
		}
	}()
	before := map[uint64]probe.Stats{}
	changes := 40
	if testing.Short() {
		changes = 10
	}
	for i := range changes {
		filter := []string{"b == 7", "0", "b & 1", "", "b < 0x10 && cpu == 1"}[i%5]
		is, err := s.SetFilter(filter, names...)
		if err != nil || len(is) != len(names) {
			t.Fatal(is, err)
		}
		for _, x := range is {
			was, now := before[x.ID], x.Stats.Stats
			if now.Hits < was.Hits || now.Handled < was.Handled || now.Filtered < was.Filtered || now.Returns < was.Returns {
				t.Errorf("change %d: %s has counted %+v, and before %+v", i, x.Name, now, was)
			}
			if x.Spec.Filter != strings.TrimPrefix(filter, "0") {
				t.Errorf("change %d: %s has the filter %q", i, x.Name, x.Spec.Filter)
			}
			before[x.ID] = now
		}
		awaitProbe(t, m, s, "b", "hit", func(x session.Info) bool { return x.Stats.Hits > before[x.ID].Hits })
		if i%2 == 0 {
			if err := m.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
			awaitProbe(t, m, s, "a", "hit", func(x session.Info) bool { return x.Stats.Hits > before[x.ID].Hits+100 })
		}
	}
	if _, err := s.SetFilter("nope == 1", "a", "b"); err == nil {
		t.Error("a filter of no field was accepted")
	}
	gone, err := s.Detach()
	if err != nil || len(gone) != len(names) {
		t.Fatal(len(gone), err)
	}
	s.Sync()
	events.Stop()
	made := uint64(0)
	for _, x := range gone {
		c, n := x.Stats, x.Stats.Handled
		if x.Kind == 'r' {
			n = c.Returns - c.Rejected
		}
		made += n
		if c.Events != n || c.Hits != c.Handled+c.Filtered+c.Missed || x.Kind == 'r' && c.Handled != c.Returns+c.Abandoned+c.UnderWay || x.InUse != 0 || c.Hits < before[x.ID].Hits {
			t.Errorf("%s: %d events of %d, %+v, %d in use", x.Name, c.Events, n, c, x.InUse)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	delivered, lost := <-read, events.Counts().Lost+s.EventCounts().Total().Lost
	if delivered+lost != made {
		t.Errorf("%d events delivered and %d lost of %d", delivered, lost, made)
	}
}
