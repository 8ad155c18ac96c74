package program

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// addresses returns all in b, wherever they begin, that are in the fake's shared memory of a
// privilege.
func addresses(b []byte, user bool) (n int) {
	base := uint64(kernelData)
	if user {
		base = userData
	}
	for i := range len(b) - 7 {
		if a := binary.LittleEndian.Uint64(b[i:]); a-base <= 64<<20 {
			n++
		}
	}
	return n
}

// refers reports whether b has an address in the fake's shared memory of a privilege, or an
// operand of 4 bytes that becomes one by its sign.
func refers(b []byte, user bool) bool {
	for i := range len(b) - 3 {
		if addresses(binary.LittleEndian.AppendUint64(nil, uint64(int32(binary.LittleEndian.Uint32(b[i:])))), user) > 0 {
			return true
		}
	}
	return addresses(b, user) > 0
}

func atUserCode(attachTo string) bool { return strings.HasPrefix(attachTo, "user_") }

// TestPrivileges is a table of programs at code of both privileges: a program with an
// address of shared memory has memory of its own privilege, and maps are the kernel's
// as soon as a program at kernel code uses them in the guest.
func TestPrivileges(t *testing.T) {
	const shares = `it shares map "in_both" with a program at kernel code, and user code must not reach that`
	const other = "its maps are for code of the other privilege"
	type where map[string]string // program or map to why it is on the host, "kernel" or "user"
	for _, tt := range []struct {
		name string
		opt  LoadOptions
		at   func(attachTo string) bool // the user argument of Attach
		want where
	}{
		{"both", LoadOptions{User: atUserCode}, atUserCode, where{
			"kernel": "kernel", "user_own": "user", "user_shared": shares, "in_kernel": "kernel", "in_both": "kernel", "in_user": "user",
		}},
		{"user code alone", LoadOptions{User: atUserCode, Section: "kprobe/user_hot+0x0"}, atUserCode, where{
			"user_shared": "user", "in_both": "user", "in_user": "user",
		}},
		{"kernel code alone", LoadOptions{User: atUserCode, Section: "kprobe/vfs_read"}, atUserCode, where{
			"kernel": "kernel", "in_kernel": "kernel", "in_both": "kernel",
		}},
		{"on the host", LoadOptions{User: atUserCode, OnHost: true}, atUserCode, where{
			"kernel": "it was asked for", "user_own": "it was asked for", "user_shared": "it was asked for", "in_kernel": "", "in_both": "", "in_user": "",
		}},
		{"nobody says", LoadOptions{}, atUserCode, where{
			"kernel": "kernel", "user_own": other, "user_shared": other, "in_kernel": "kernel", "in_both": "kernel", "in_user": "kernel",
		}},
		{"attached elsewhere", LoadOptions{User: atUserCode, Section: "kprobe/user_hot"}, func(string) bool { return false }, where{
			"user_own": other, "in_user": "user",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			rt := newRuntime(t, f.config())
			o, err := rt.Load(example(t, "privileges.o"), tt.opt)
			if err != nil {
				t.Fatal(err)
			}
			got := where{}
			for name, m := range o.Maps() {
				switch got[name] = ""; {
				case o.shared[name] == rt.arena(false):
					got[name] = "kernel"
				case o.shared[name] == rt.arena(true):
					got[name] = "user"
				}
				if o.Shared(m) != (got[name] != "") {
					t.Errorf("map %s is shared: %v", name, o.Shared(m))
				}
			}
			for _, p := range o.Programs {
				k, user := &probe.Kprobe{Symbol: "vfs_read"}, tt.at(p.AttachTo)
				p.Attach(k, text, user, true, "")
				if got[p.Name] = p.Why; k.Stage == nil {
					continue
				}
				got[p.Name] = map[bool]string{false: "kernel", true: "user"}[user]
				all := append(append([]byte{}, k.Stage.Code...), p.blocks.area.Bytes...)
				if own, others := refers(all, user), addresses(all, !user); !own || others != 0 {
					t.Errorf("%s: addresses of its own memory: %v, %d of the other", p.Name, own, others)
				}
				for _, a := range []guest.GVA{k.Stage.Block, k.Stage.Lost} {
					if addresses(binary.LittleEndian.AppendUint64(nil, uint64(a)), user) != 1 {
						t.Errorf("%s: block or count at %v", p.Name, a)
					}
				}
			}
			if !maps.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			o.Close()
			rt.Save()
			f.reset()
			if err := rt.Reset(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPrivilegesOfDefinitions wants the definitions at either privilege to have
// a ring and a gate of their own, and records to go only where they belong.
func TestPrivilegesOfDefinitions(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	rt.Want(true)
	sinks := map[bool]*sink{false: newSink(1), true: newSink(1)}
	defs := map[bool]*Definition{}
	for user, s := range sinks {
		l, _ := layoutOf(t, "p:a vfs_read fd=%di", "")
		d, err := rt.Define(l, nil, s)
		if err != nil {
			t.Fatal(err)
		}
		stage, _, err := d.CompileGuest(text, user)
		if err != nil {
			t.Fatal(err)
		}
		defs[user] = d
		all := append(append([]byte{}, stage.Code...), d.guest.blocks.area.Bytes...)
		if !refers(all, user) || addresses(all, !user) != 0 {
			t.Errorf("user %v: addresses of the other privilege", user)
		}
		runInGuest(t, d.guest.blocks, &probe.Regs{RDI: 7})
	}
	// Records forged by user code go to no definition of the kernel's, even with its
	// number, which both have here.
	runInGuest(t, defs[true].guest.blocks, &probe.Regs{RDI: 8})
	rt.Poll()
	for user, want := range map[bool]int{false: 1, true: 2} {
		if recs, lost := sinks[user].take(); len(recs) != want || lost != 0 {
			t.Errorf("user %v: %d records, %d lost; want %d", user, len(recs), lost, want)
		}
	}
	rt.Drop(defs[false], defs[true])
}

// TestScribbled has programs run on maps, and records drained and counted, while
// everything that the guest can write holds random bytes: nothing is followed, and
// every number adds up.
func TestScribbled(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	rnd := rand.New(rand.NewPCG(1, 2))
	var ks []*probe.Kprobe
	var bs []*blocks
	s := newSink(1)
	for _, name := range []string{"count.o", "record.o", "latency.o", "privileges.o"} {
		o, err := rt.Load(example(t, name), LoadOptions{User: atUserCode})
		if err != nil {
			t.Fatal(err)
		}
		o.Emit(func(string) Emitter { return s })
		for _, p := range o.Programs {
			if p.Kind != bpf.Kprobe {
				continue
			}
			k := &probe.Kprobe{Symbol: "vfs_read"}
			if p.Attach(k, text, p.user, true, ""); p.blocks != nil {
				ks, bs = append(ks, k), append(bs, p.blocks)
			}
			if err := f.engine.Register(k); err != nil {
				t.Fatal(err)
			}
		}
		defer o.Close()
	}
	d, stage, err := define(t, rt, "p:a vfs_read fd=%di", "fd != 3", s)
	if err != nil {
		t.Fatal(err)
	}
	ks, bs = append(ks, &probe.Kprobe{Stage: stage}), append(bs, d.guest.blocks)
	for range 20 {
		f.scribble(func() byte { return byte(rnd.Uint32()) >> (rnd.Uint32() % 8) })
		f.hit(0, &probe.Regs{RDI: rnd.Uint64(), RSP: uint64(stack) + 0x800, RFLAGS: 2})
		rt.Poll()
		rt.Want(rnd.Uint32()%2 == 0)
		for i, k := range ks {
			for cpu := range 2 {
				k.Stage.Counts(cpu)
			}
			bs[i].stats()
		}
	}
	rt.Drop(d)
}

// TestPlaced: code in the guest knows the current address of its probe, also after a
// reset.
func TestPlaced(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	d, stage, err := define(t, rt, "p vfs_read", "", newSink(1))
	if err != nil {
		t.Fatal(err)
	}
	want := func(at guest.GVA) {
		t.Helper()
		for cpu := range rt.cfg.CPUs {
			// docs/engine.md has the offset.
			if got := binary.LittleEndian.Uint64(d.guest.blocks.areaOf(cpu).Bytes[64:]); got != uint64(at) {
				t.Errorf("vCPU %d: %#x, want %v", cpu, got, at)
			}
		}
	}
	want(text)
	stage.Placed(text + 0x40)
	want(text + 0x40)
	rt.Save()
	f.reset()
	if err := rt.Reset(); err != nil {
		t.Fatal(err)
	}
	want(text + 0x40)
	stage.Placed(text)
	want(text)
}

// TestKernelAtUserCode: at user code of a Linux guest a program reads the kernel's half of the addresses, too, by the page tables
// of the kernel; a definition does not, nor a program in another guest.
func TestKernelAtUserCode(t *testing.T) {
	f := newFake(t)
	rt := New(f.config())
	e := newEnv(rt)
	var c *probe.Context
	k := &probe.Kprobe{Addr: text, Pre: func(at *probe.Context) int {
		c = at
		at.CPL, at.Root = 3, 0x7000 // page tables that are not there
		for _, tt := range []struct {
			linux, object bool
			want          string
		}{{true, true, "/etc"}, {true, false, ""}, {false, true, ""}} {
			r := &runner{rt: rt}
			if rt.cfg.Tasks = nil; tt.linux {
				rt.cfg.Tasks = func() *linux.Tasks { return nil }
			}
			if tt.object {
				r.of = &Program{}
			}
			e.begin(r, at, false)
			var b [4]byte
			err := e.ReadKernel(uint64(strings_), b[:])
			if got := string(bytes.TrimRight(b[:], "\x00")); got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("Linux %v, object %v: %q, %v, want %q", tt.linux, tt.object, got, err, tt.want)
			}
			if err := e.ReadUser(uint64(strings_), b[:]); err == nil {
				t.Errorf("Linux %v, object %v: the kernel's memory was read as the user's", tt.linux, tt.object)
			}
		}
		return 0
	}}
	if err := f.engine.Register(k); err != nil {
		t.Fatal(err)
	}
	f.hit(0, &probe.Regs{RFLAGS: 2})
	if c == nil {
		t.Fatal("not hit")
	}
}
