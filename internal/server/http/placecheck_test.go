package http

import (
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestCheckAgrees: what bpf check says of where programs run is what attach says, in a guest that takes all that can run there.
func TestCheckAgrees(t *testing.T) {
	h := serveMachine(t, 1)
	inGuest, onHost := 0, 0
	for _, name := range []string{"count.o", "latency.o", "record.o", "callback.o", "slow.o", "override.o", "weakmap.o"} {
		o, err := bpf.LoadObject(objectFile(t, name), bpf.Selection{})
		if err != nil {
			t.Fatal(name, err)
		}
		c, err := o.Load(1, bpf.Heap{}, 0)
		if err != nil {
			t.Fatal(name, err)
		}
		at := bpf.Places(c.Programs, func(p *bpf.LoadedProgram) (string, bool) { return p.WhyHost(), p.InUser() })
		why := map[string]string{}
		for i, p := range c.Programs {
			why[p.Section+" "+p.Name()] = at.Why[i]
			if _, err := p.Judge(bpf.Allowed{}); (err != nil) != (name == "override.o") {
				t.Errorf("%s: %v", name, err)
			}
		}
		c.Close()
		if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, name)}); (err != nil) != (name == "override.o") {
			t.Errorf("%s: %v", name, err)
		} else if err == nil {
			if _, err := h.c.DetachAll(h.ctx); err != nil {
				t.Fatal(err)
			}
		}
		ps, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, name), Unsafe: true})
		if err != nil {
			t.Fatal(name, err)
		}
		for _, p := range ps {
			want, ok := why[p.Program.Section+" "+p.Program.Name]
			if !ok || want != p.OnHost {
				t.Errorf("%s: %s: attach says %q, check %q", name, p.Program.Name, p.OnHost, want)
			}
			if want == "" {
				inGuest++
			} else {
				onHost++
			}
		}
		if _, err := h.c.DetachAll(h.ctx); err != nil {
			t.Fatal(err)
		}
	}
	if inGuest < 5 || onHost < 2 {
		t.Errorf("%d in the guest, %d on the host", inGuest, onHost)
	}
}
