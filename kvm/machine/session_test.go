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

// sessionOn returns a Session on a running built-in guest.
func sessionOn(t *testing.T) (*Machine, *session.Session) {
	t.Helper()
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2})
	s := session.New(m, session.Options{
		Clock: func(now func() int64) (session.Clock, error) { c, err := m.Clock(now); return session.Clock(c), err },
		Hold:  func() (func() error, error) { return m.Resume, m.Pause() },
	})
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
	ctx := patience.Of(t)
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

// TestSession attaches definitions of all kinds, a program and a script to a guest under KVM, changes them, resets the guest under them,
// and takes them away: the counts close, and the text is what it was.
func TestSession(t *testing.T) {
	m, s := sessionOn(t)
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
		ev, err := events.Next(patience.Of(t))
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
	file, err := os.ReadFile("../../probe/bpf/testdata/obj/count.o")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.AttachObject(session.ObjectSpec{File: file}); err != nil {
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
		m.Each(func(_ []byte, vals [][]byte) bool {
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
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		awaitProbe(t, m, s, name, "hit after the reset", func(i session.Info) bool { return i.Stats.Hits > before[name]+2 })
	}
	if err := script.Disable(); err != nil {
		t.Error(err)
	}
	s.Poll()
	var out strings.Builder
	script.NewPrinter(false, func(text string) { out.WriteString(text) }, func(text string) { t.Error(text) }).PrintMaps()
	if !strings.Contains(out.String(), "@[true]: ") {
		t.Errorf("the script's map: %q", out.String())
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
