package probe_test

import (
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// model is what FuzzLife expects of one probe.
type model struct {
	registered, disabled bool
	hits                 uint64
}

// FuzzLife does what the bytes say, to eight probes on four places: register,
// unregister, enable, disable, arm and disarm everything, call. After each step
// the text, the flags and the counts must be what a simple model says.
func FuzzLife(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x50\x10\x11\x12\x13\x50"))
	f.Add([]byte("\x00\x04\x50\x20\x50\x24\x50\x30\x50\x34\x50\x40\x50\x41\x50\x10\x14\x50"))
	f.Add([]byte("\x40\x00\x01\x05\x50\x41\x50\x21\x50\x40\x50\x41\x11\x50\x00\x00\x10\x10"))
	f.Add([]byte("\x02\x06\x50\x16\x50\x06\x50\x12\x26\x50\x36\x50\x07\x03\x50"))
	f.Add([]byte("\x00\x60\x50\x04\x50\x14\x60\x50\x30\x60\x50\x20\x60\x50\x40\x50\x41\x60\x50\x10\x50"))
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 200 {
			ops = ops[:200]
		}
		fake, err := probetest.NewFake(probetest.FakeOptions{Probe: probe.Options{OptimizeDelay: -1}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := fake.Close(); err != nil {
				t.Error(err)
			}
		}()
		e := fake.Engine()
		names := []string{"hot", "hot_load", "work", "kprobe_target"}
		var ps [8]*probe.Kprobe
		var ms [8]model
		for i := range ps {
			ps[i] = &probe.Kprobe{Symbol: names[i%4], Pre: emptyHandler}
			if i >= 4 {
				ps[i].Post = func(*probe.Context) {}
			}
		}
		armed := true
		for _, op := range ops {
			i := int(op) % 8
			p, m := ps[i], &ms[i]
			switch op >> 4 {
			case 0:
				if !m.registered {
					p.Addr, p.Disabled = 0, op&8 != 0
				}
				if err := e.Register(p); (err == nil) == m.registered {
					t.Fatalf("register %d: %v", i, err)
				}
				if !m.registered {
					*m = model{registered: true, disabled: p.Disabled}
				}
			case 1:
				if err := e.Unregister(p); (err == nil) != m.registered {
					t.Fatalf("unregister %d: %v", i, err)
				}
				*m = model{}
			case 2, 3:
				do, disabled := e.Enable, false
				if op>>4 == 3 {
					do, disabled = e.Disable, true
				}
				if err := do(p); (err == nil) != m.registered {
					t.Fatalf("disable=%v %d: %v", disabled, i, err)
				}
				m.disabled = m.registered && disabled
			case 4:
				do := e.DisarmAll
				if armed = op&1 == 1; armed {
					do = e.ArmAll
				}
				if err := do(); err != nil {
					t.Fatal(err)
				}
			case 6:
				if err := e.Optimize(); err != nil {
					t.Fatal(err)
				}
			default:
				s, err := fake.Symbol("work")
				if err != nil {
					t.Fatal(err)
				}
				if r, err := fake.Call(0, s.Addr, 3); err != nil || r != 24 {
					t.Fatalf("work(3) = %d, %v, want 24", r, err)
				}
				for j := range ms {
					if armed && ms[j].registered && !ms[j].disabled {
						ms[j].hits += [4]uint64{3, 3, 1, 0}[j%4]
					}
				}
			}
			checkModel(t, fake, ps[:], ms[:], armed)
		}
	})
}

// checkModel compares the guest and the engine with the model.
func checkModel(t *testing.T, fake *probetest.Fake, ps []*probe.Kprobe, ms []model, armed bool) {
	t.Helper()
	e := fake.Engine()
	for i, p := range ps {
		s, err := fake.Symbol(p.Symbol)
		if err != nil {
			t.Fatal(err)
		}
		want := false
		for j := i % 4; j < len(ms); j += 4 {
			want = want || armed && ms[j].registered && !ms[j].disabled
		}
		info, ok := e.Info(p)
		jump := optimizedAt(ps, e, i%4)
		var b [1]byte
		if err := fake.Read(s.Addr, b[:]); err != nil || (b[0] == 0xcc) != (want && !jump) || (b[0] == 0xe9) != jump || jump && !want {
			t.Fatalf("%s: byte %#x, %v, want armed %v, optimized %v", p.Symbol, b[0], err, want, jump)
		}
		if ok != ms[i].registered || ok && (info.Disabled != ms[i].disabled || info.Armed != want) {
			t.Fatalf("probe %d: %+v, %v, want %+v", i, info, ok, ms[i])
		}
		if st := info.Stats; st.Hits != ms[i].hits || st.Hits != st.Handled+st.Filtered+st.Missed {
			t.Fatalf("probe %d: counts %+v, want %d hits", i, st, ms[i].hits)
		}
	}
}

// optimizedAt reports whether one of the probes on a place says that it has its
// jump.
func optimizedAt(ps []*probe.Kprobe, e *probe.Engine, place int) bool {
	for j := place; j < len(ps); j += 4 {
		if i, ok := e.Info(ps[j]); ok && i.Optimized {
			return true
		}
	}
	return false
}

// FuzzHit reports any traps at any places with any registers: the engine must
// not panic, and must not send a guest that it says is on its own into a slot.
func FuzzHit(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte("\x01\x05\x00\x02\x70\x00\x20\x00\x00\x01\x06\x00\x02\x70\x00\x20\x00\x00\x03\x04\x0e\x02"))
	f.Add([]byte("\x01\x02\x00\x03\x80\x00\x80\x00\x00\x03\x02\x01\x03\x00\x00\x00\x00\x00\x02\x06\x01\x03"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fake, err := probetest.NewFake(probetest.FakeOptions{CPUs: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := fake.Close(); err != nil {
				t.Error(err)
			}
		}()
		e := fake.Engine()
		ps := []*probe.Kprobe{
			{Symbol: "hot_load", Pre: emptyHandler, Post: func(*probe.Context) {}, Fault: func(*probe.Context, probe.Trap) bool { return false }},
			{Symbol: "f_boost"}, {Symbol: "f_emulate"}, {Symbol: "e_callmem", Offset: 1}, {Symbol: "u_fault"}, {Symbol: "r_far", Offset: 10},
		}
		if err := e.Register(probe.Probes(ps)...); err != nil {
			t.Fatal(err)
		}
		places := []guest.GVA{0, 0x1000, symbol(t, fake, "r_int3"), 1 << 63}
		for _, p := range ps {
			places = append(places, p.Addr, p.Addr+1)
			if at, ok := e.SlotOf(p); ok {
				i, _ := e.Info(p)
				places = append(places, at, at+guest.GVA(len(i.Insn)), at+1, at+31)
			}
		}
		for ; len(b) >= 9; b = b[9:] {
			cpu := int(b[0] >> 7)
			rip := places[int(b[1])%len(places)]
			r := probe.Regs{RIP: uint64(rip), RSP: uint64(binary.LittleEndian.Uint32(b[4:])) << (b[8] % 33), RFLAGS: uint64(b[3]) << 7}
			s := probe.State{Regs: &r, CPL: b[2] >> 7 * 3}
			v := e.Hit(cpu, s, probe.Trap{Kind: probe.TrapKind(b[0] & 7), Vector: b[2] & 0x7f})
			switch {
			case v.Action == probe.NotOurs && rip != guest.GVA(r.RIP) && e.InSlot(guest.GVA(r.RIP)):
				t.Fatalf("%v: left in a slot at %#x", rip, r.RIP)
			case v.Action == probe.Inject && e.InSlot(guest.GVA(r.RIP)):
				t.Fatalf("%v: exception injected in a slot at %#x", rip, r.RIP)
			case v.Action == probe.StepInPlace:
				e.NoteStep(cpu, s)
			}
		}
		for _, p := range ps {
			if s, _, _ := e.Stats(p); s.Hits != s.Handled+s.Filtered+s.Missed {
				t.Fatalf("%s: counts do not close: %+v", p.Symbol, s)
			}
		}
	})
}
