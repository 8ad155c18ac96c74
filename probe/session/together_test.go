package session_test

import (
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestTogether has several goroutines attach, change, read and detach at the same time, while the guest runs: no call fails, all counts
// close, and nothing is left.
func TestTogether(t *testing.T) {
	f := newFake(t, session.Options{Hold: func() (func() error, error) { return func() error { return nil }, nil }})
	file, err := os.ReadFile("../bpf/testdata/obj/count.o")
	if err != nil {
		t.Fatal(err)
	}
	f.attach(session.Spec{Def: "p:stays " + target + " n=%di:u64"})
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	check := func(i session.Info) {
		if s := i.Stats; s.Hits != s.Handled+s.Filtered+s.Missed {
			t.Errorf("%s: the counts do not close: %+v", i.Name, s)
		}
	}
	done := make(chan struct{})
	var calls, all sync.WaitGroup
	calls.Go(func() {
		for n := uint64(0); ; n++ {
			select {
			case <-done:
				return
			default:
				f.call(target, n)
			}
		}
	})
	each := func(what string, do func(i int) error) {
		all.Go(func() {
			for i := range rounds {
				if err := do(i); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	for k := range 2 {
		each("attach", func(int) error {
			name := fmt.Sprintf("mine%d", k)
			if _, err := f.s.Attach([]session.Spec{{Def: "p:" + name + " " + target}, {Def: "r:r" + name + " " + target + " $retval"}}, nil); err != nil {
				return err
			}
			gone, err := f.s.Detach(name, "r"+name)
			for _, i := range gone {
				check(i)
			}
			return err
		})
	}
	each("filter", func(i int) error {
		_, err := f.s.SetFilter([]string{"n & 1", ""}[i%2], "stays")
		return err
	})
	each("object", func(int) error {
		a, err := f.s.AttachObject(session.ObjectSpec{File: file, At: target})
		if err != nil {
			return err
		}
		for _, m := range f.s.Maps() {
			err := f.s.ReadMap(fmt.Sprint(m.ID), func(_ session.MapInfo, m *bpf.Map) error {
				m.Each(func([]byte, [][]byte) bool { return true })
				return nil
			})
			if err != nil && session.ErrorOf(err).Code != session.CodeMapNotFound { // a script's has gone
				return err
			}
		}
		_, err = f.s.DetachIf(func(p *session.Probe) bool { return p == a.Probes[0] })
		return err
	})
	each("script", func(int) error {
		s, err := f.s.StartScript("kprobe:"+target+" { @[arg0 % 3] = count(); }", session.ScriptOptions{})
		if err != nil {
			return err
		}
		return s.Stop(io.Discard)
	})
	each("events", func(int) error {
		sub := f.s.Subscribe(nil, event.Queue{}, session.AllEvents)
		defer sub.Close()
		for ev, ok, _ := sub.TryNext(); ok; ev, ok, _ = sub.TryNext() {
			if session.ProbeOf(ev).Object() == nil {
				if _, err := ev.Decode(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	each("list", func(int) error {
		for i := range f.s.Infos(f.s.Probes()) {
			_ = f.s.SpecOf(i.Probe)
		}
		for range f.s.Outlines(f.s.Probes()) {
		}
		_, err := f.s.Get("stays")
		return err
	})
	all.Wait()
	close(done)
	calls.Wait()
	if f.names() != "kprobes/stays" || len(f.s.Maps()) != 0 {
		t.Errorf("left: %s, %+v", f.names(), f.s.Maps())
	}
	gone, err := f.s.Detach()
	if err != nil || len(gone) != 1 || gone[0].Stats.Hits == 0 {
		t.Fatalf("%+v, %v", gone, err)
	}
	check(gone[0])
	if n := session.Left(f.s); n != 0 {
		t.Errorf("%d names and events are left", n)
	}
}
