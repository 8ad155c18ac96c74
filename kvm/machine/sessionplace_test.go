package machine

import (
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestCheckAgrees: bpf check and attach agree on where programs run, in a guest that can run every program that supports it.
func TestCheckAgrees(t *testing.T) {
	x := onBuiltin(t, 1)
	inGuest, onHost := 0, 0
	names, least := []string{"count.o", "latency.o", "record.o", "callback.o", "slow.o", "override.o", "weakmap.o"}, [2]int{5, 2}
	if testing.Short() {
		names, least = []string{"count.o", "latency.o", "override.o"}, [2]int{2, 1}
	}
	for _, name := range names {
		file := objectFile(t, name)
		o, err := bpf.LoadObject(file, bpf.Selection{})
		if err != nil {
			t.Fatal(name, err)
		}
		c, err := o.Load(1, bpf.Heap{}, 0)
		if err != nil {
			t.Fatal(name, err)
		}
		at := bpf.Places(c.Programs, func(p *bpf.LoadedProgram) (string, bool) { return p.HostReason(), p.InUser() })
		why, steps := map[string]string{}, map[string]int64{}
		for i, p := range c.Programs {
			why[p.Section+" "+p.Name()], steps[p.Section+" "+p.Name()] = at.Why[i], p.Steps()
			if _, err := p.Judge(bpf.Allowed{}); (err != nil) != (name == "override.o") {
				t.Errorf("%s: %v", name, err)
			}
		}
		c.Close()
		if _, err := x.s.AttachObject(session.ObjectSpec{File: file}); (err != nil) != (name == "override.o") {
			t.Errorf("%s: %v", name, err)
		} else if err == nil {
			if _, err := x.s.Detach(); err != nil {
				t.Fatal(err)
			}
		}
		a, err := x.s.AttachObject(session.ObjectSpec{File: file, Unsafe: true})
		if err != nil {
			t.Fatal(name, err)
		}
		for _, p := range x.s.Describe(a.Probes) {
			want, ok := why[p.Program.Section+" "+p.Program.Name]
			if !ok || want != p.OnHost {
				t.Errorf("%s: %s: attach says %q, check %q", name, p.Program.Name, p.OnHost, want)
			}
			if n := steps[p.Program.Section+" "+p.Program.Name]; n != p.Program.Steps || n == 0 {
				t.Errorf("%s: %s: attach says %d steps, check %d", name, p.Program.Name, p.Program.Steps, n)
			}
			if want == "" {
				inGuest++
			} else {
				onHost++
			}
		}
		if _, err := x.s.Detach(); err != nil {
			t.Fatal(err)
		}
	}
	if inGuest < least[0] || onHost < least[1] {
		t.Errorf("%d in the guest, %d on the host", inGuest, onHost)
	}
}

// TestObjectOfBothPrivileges attaches programs of kernel and user code that share
// a map. The program at user code runs on the host and says why. Both count in the
// map.
func TestObjectOfBothPrivileges(t *testing.T) {
	x := onBuiltin(t, 2)
	if _, err := x.s.AttachObject(session.ObjectSpec{File: objectFile(t, "privileges.o")}); err != nil {
		t.Fatal(err)
	}
	const why = `it shares map "in_both" with a program at kernel code, and user code must not reach that`
	awaitProbe(t, x.m, x.s, "kernel", "in the guest", func(i session.Info) bool { return i.Site.InGuest && i.Stats.InGuest > 0 })
	awaitProbe(t, x.m, x.s, "user_shared", "on the host", func(i session.Info) bool {
		return !i.Site.InGuest && i.OnHost == why && i.Program.Runs > 0 && i.Program.InGuest == 0
	})
	for _, m := range x.s.Maps() {
		if err := x.s.ReadMap(m.Name, func(i session.MapInfo, m *bpf.Map) error {
			var counts []uint64
			m.Walk(func(_ []byte, vals [][]byte) bool {
				counts = append(counts, binary.LittleEndian.Uint64(vals[0]))
				return true
			})
			if !i.Shared || len(counts) != 1 || counts[0] == 0 {
				t.Errorf("map %+v: %v", i, counts)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}
