package http

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// slidView is an image of which one variable is elsewhere in each boot, and one function has
// another name.
type slidView struct {
	*guest.Image
	by   guest.GVA
	name string
}

func (v *slidView) Lookup(name string) (guest.Symbol, error) {
	s, err := v.Image.Lookup(name)
	switch {
	case name != "vfs_bytes_read":
	case v.name == "":
		return guest.Symbol{}, guest.ErrSymbolNotFound
	default:
		s.Addr += v.by
	}
	return s, err
}

// Address is that of the kernel's own symbols, as a Linux guest's view has it: the variable is a
// module's.
func (v *slidView) Address(name string) (guest.GVA, bool) {
	s, err := v.Image.Lookup(name)
	return s.Addr, err == nil && name != "vfs_bytes_read"
}

func (v *slidView) Find(addr guest.GVA) (guest.Symbol, bool) {
	s, ok := v.Image.Find(addr)
	if s.Name == "vfs_read" {
		s.Name = v.name
	}
	return s, ok
}

// serveSlid starts a daemon with such a guest, whose variable is at.
func serveSlid(t *testing.T) (h *harness, g *fakeGuest, v *slidView, at guest.Symbol) {
	t.Helper()
	o := defaultOptions()
	g = newFakeGuest(t, o.vcpus)
	v = &slidView{Image: g.img, name: "vfs_read"}
	g.view = v
	at, err := v.Lookup("vfs_bytes_read")
	if err != nil {
		t.Fatal(err)
	}
	return serveGuest(t, g, o), g, v, at
}

// TestLocatedAgain: what definitions read by name is where the name is in each boot, in their
// arguments and filters, and addresses have the names of the boot; counts go on.
func TestLocatedAgain(t *testing.T) {
	h, g, v, at := serveSlid(t)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:v vfs_read total=@vfs_bytes_read:u64 fd=$arg1", Filter: "total != 7"},
		api.ProbeSpec{Def: "r:back vfs_read same=@vfs_bytes_read:u64 $retval"}); err != nil {
		t.Fatal(err)
	}
	s, err := h.c.Events(h.ctx, api.StreamEvents{Names: []string{"v"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	next[api.Start](h, s, api.RecordStart)
	set := func(addr guest.GVA, n uint64) {
		t.Helper()
		if err := g.WriteMemory(0, addr, binary.LittleEndian.AppendUint64(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	hit := func(want string) {
		t.Helper()
		if !g.hit(t, 0, "vfs_read", 0, func(r *probe.Regs) { r.RDI = 3 }) {
			t.Fatal("no probe is there")
		}
		if want == "" {
			return
		}
		for {
			r, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			if r.Type != api.RecordHit {
				continue
			}
			if x := decode[api.Hit](h, r); x.Text != want {
				t.Errorf("hit %s, want %s", x.Text, want)
			}
			return
		}
	}
	set(at.Addr, 11)
	hit("(vfs_read+0x4/0xa9) total=11 fd=0x3")
	for boot, b := range []struct {
		by   guest.GVA
		name string
		n    uint64
		want string
	}{{8, "vfs_read", 22, "(vfs_read+0x4/0xa9) total=22 fd=0x3"}, {16, "vfs_reed", 33, "(vfs_reed+0x4/0xa9) total=33 fd=0x3"},
		{8, "vfs_read", 7, ""}, {0, "", 0, ""}} {
		v.by, v.name = b.by, b.name
		if err := h.s.resetGuestAndPrograms(context.Background(), h.s.guest.Reset); err != nil {
			t.Fatal(err)
		}
		set(at.Addr, 44)
		set(at.Addr+b.by, b.n)
		hit(b.want)
		p, err := h.c.Probe(h.ctx, "v")
		if err != nil || p.Stats.Hits != uint64(boot+2) {
			t.Errorf("boot %d: %+v, %v", boot, p.Stats, err)
		}
	}
	if keys := len(h.s.probes.Probes()); keys != 2 {
		t.Errorf("%d probes", keys)
	}
	if _, err := h.c.DetachAll(h.ctx); err != nil {
		t.Error(err)
	}
}

// TestLocatedInModules: what definitions read of a module is where that is each time that it comes, and
// nowhere while it is not there.
func TestLocatedInModules(t *testing.T) {
	h, g, v, at := serveSlid(t)
	h.attach("p:v vfs_read total=@vfs_bytes_read:u64")
	s := h.stream(h.ctx, api.StreamEvents{Names: []string{"v"}})
	next[api.Start](h, s, api.RecordStart)
	for i := range 3 {
		if err := g.WriteMemory(0, at.Addr+guest.GVA(8*i), binary.LittleEndian.AppendUint64(nil, uint64(11*(i+1)))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		by   guest.GVA
		name string
		want string
	}{{0, "vfs_read", "11"}, {8, "vfs_read", "22"}, {0, "", "(fault)"}, {16, "vfs_read", "33"}} {
		v.by, v.name = c.by, c.name
		g.onModules()
		if !g.hit(t, 0, "vfs_read", 0, nil) {
			t.Fatal("no probe is there")
		}
		if r := next[api.Hit](h, s, api.RecordHit); !strings.HasSuffix(r.Text, " total="+c.want) {
			t.Errorf("%s, want %s", r.Text, c.want)
		}
	}
}
