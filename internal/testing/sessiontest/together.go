package sessiontest

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

// testTogether has several goroutines attach, change, read and detach at the
// same time, while the guest runs: no call fails, all counts are consistent, and
// nothing is left.
func testTogether(v *env) {
	file, err := os.ReadFile(objects + "count.o")
	if err != nil {
		v.Fatal(err)
	}
	v.attach(session.Spec{Def: "p:stays " + target + " n=%di:u64"})
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	check := func(i session.Info) {
		if s := i.Stats; s.Hits != s.Handled+s.Filtered+s.Missed {
			v.Errorf("%s: the counts do not close: %+v", i.Name, s)
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
				v.call(target, n)
			}
		}
	})
	each := func(what string, do func(i int) error) {
		all.Go(func() {
			for i := range rounds {
				if err := do(i); err != nil {
					v.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	for k := range 2 {
		each("attach", func(int) error {
			name := fmt.Sprintf("mine%d", k)
			if _, err := v.s.Attach([]session.Spec{{Def: "p:" + name + " " + target}, {Def: "r:r" + name + " " + target + " $retval"}}, nil); err != nil {
				return err
			}
			gone, err := v.s.Detach(name, "r"+name)
			for _, i := range gone {
				check(i)
			}
			return err
		})
	}
	each("filter", func(i int) error {
		_, err := v.s.SetFilter([]string{"n & 1", ""}[i%2], "stays")
		return err
	})
	each("object", func(int) error {
		a, err := v.s.AttachObject(session.ObjectSpec{File: file, At: target})
		if err != nil {
			return err
		}
		for _, m := range v.s.Maps() {
			err := v.s.ReadMap(fmt.Sprint(m.ID), func(_ session.MapInfo, m *bpf.Map) error {
				m.Walk(func([]byte, [][]byte) bool { return true })
				return nil
			})
			if err != nil && session.ErrorOf(err).Code != session.CodeMapNotFound { // a script's has gone
				return err
			}
		}
		_, err = v.s.DetachIf(func(p *session.Probe) bool { return p == a.Probes[0] })
		return err
	})
	each("script", func(int) error {
		s, err := v.s.StartScript("kprobe:"+target+" { @[arg0 % 3] = count(); }", session.ScriptOptions{})
		if err != nil {
			return err
		}
		return s.Stop(io.Discard)
	})
	each("events", func(int) error {
		sub := v.s.Subscribe(nil, event.Queue{}, session.AllEvents)
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
		for i := range v.s.Infos(v.s.Probes()) {
			_ = v.s.SpecOf(i.Probe)
		}
		for range v.s.Outlines(v.s.Probes()) {
		}
		_, err := v.s.Get("stays")
		return err
	})
	all.Wait()
	close(done)
	calls.Wait()
	if v.names() != "kprobes/stays" || len(v.s.Maps()) != 0 {
		v.Errorf("left: %s, %+v", v.names(), v.s.Maps())
	}
	gone, err := v.s.Detach()
	if err != nil || len(gone) != 1 || gone[0].Stats.Hits == 0 {
		v.Fatalf("%+v, %v", gone, err)
	}
	check(gone[0])
	if v.left == nil {
		return
	}
	if n := v.left(v.s); n != 0 {
		v.Errorf("%d names and events are left", n)
	}
}
