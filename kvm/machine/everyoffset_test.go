package machine

import (
	"errors"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// functionStarts returns the offsets at which instructions of a function begin,
// and false when its bytes are not all code.
func functionStarts(img *guest.Image, s guest.Symbol) (map[uint64]bool, bool) {
	starts := map[uint64]bool{}
	for at := uint64(0); at < s.Size; {
		in, err := x86.Decode(img.Code(s.Addr+guest.GVA(at), x86.MaxLen))
		if err != nil {
			return starts, false
		}
		starts[at] = true
		at += uint64(in.Len)
	}
	return starts, true
}

// TestEveryOffset offers every byte of every function of the built-in guest:
// what is inside an instruction is EILSEQ, a boundary is accepted or refused
// with a reason. Then all accepted ones are probed at once, and the workload
// computes what it computes unprobed.
func TestEveryOffset(t *testing.T) {
	kvmtest.Require(t)
	vcpus := kvmtest.ChooseSize(1, 2)
	if testing.Short() {
		vcpus = 1 // emulated hosts
	}
	config := Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: "rounds=1", Tick: slowTick}
	want := results(t, newMachine(t, config))
	m := newMachine(t, config)
	e := m.Engine()
	var all []*probe.Kprobe
	taken := map[guest.GVA]bool{}
	refused := map[probe.Code]int{}
	offered, inside := 0, 0
	for _, s := range m.Image().Symbols() {
		if s.Kind != guest.SymFunc || !m.Image().IsText(s.Addr) {
			continue
		}
		starts, whole := functionStarts(m.Image().(*guest.Image), s)
		for off := range s.Size {
			at := s.Addr + guest.GVA(off)
			if found, _ := m.Image().Find(at); found.Addr != s.Addr {
				continue // a label inside another function: offered as part of that
			}
			offered++
			k := &probe.Kprobe{Addr: at, Pre: func(*probe.Context) int { return 0 }}
			info, err := e.Check(k)
			var pe *probe.Error
			switch {
			case err == nil && !starts[off]:
				t.Errorf("%s+%#x is inside an instruction and was accepted", s.Name, off)
			case err == nil:
				if !taken[info.Addr] {
					taken[info.Addr] = true
					all = append(all, k)
				}
			case !errors.As(err, &pe) || pe.Code == "" || pe.Errno == 0 || pe.Text == "":
				t.Errorf("%s+%#x was refused without a reason: %v", s.Name, off, err)
			default:
				refused[pe.Code]++
				if starts[off] || !whole {
					if starts[off] && pe.Errno == syscall.EILSEQ && pe.Code == probe.CodeNotBoundary {
						t.Errorf("%s+%#x is a boundary: %v", s.Name, off, err)
					}
					continue
				}
				inside++
				// Other checks come before that of the boundary.
				if pe.Errno != syscall.EILSEQ && pe.Code != probe.CodeBlacklisted && pe.Code != probe.CodeHostCannot {
					t.Errorf("%s+%#x is inside an instruction: %v, want EILSEQ", s.Name, off, err)
				}
			}
		}
	}
	t.Logf("%d offsets offered, %d inside instructions, %d sites accepted, refused %v", offered, inside, len(all), refused)
	if len(all) < 1000 && m.Host().Traps.CPL0.Int3.Breakpoints(true) {
		t.Fatalf("only %d sites were accepted", len(all))
	}
	if testing.Short() { // an emulated host takes minutes for all of them
		few := all[:0:0]
		for i := 0; i < len(all); i += 8 {
			few = append(few, all[i])
		}
		all = few
	}
	if err := e.Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-unprobed +every instruction probed):\n%s", diff)
	}
	if err := e.Unregister(all...); err != nil {
		t.Error(err)
	}
	checkText(t, m)
}

// TestExitsPerHit: a probe without a post handler at a function's entry costs
// one exit, for at least 95 of 100 functions.
func TestExitsPerHit(t *testing.T) {
	kvmtest.Require(t)
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=1", Tick: slowTick})
	all := functionProbes(t, m, func(*probe.Context) int { return 0 }, nil)
	if err := m.Engine().Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	results(t, m)
	plans, hit, one := map[string]int{}, 0, 0
	for _, k := range all {
		info, _ := m.Engine().Info(k)
		plans[info.Plan]++
		if info.Stats.Hits == 0 {
			continue
		}
		hit++
		if info.Stats.SecondExits == 0 {
			one++
		} else {
			t.Logf("%s: %.2f exits per hit (%s)", k.Name, 1+float64(info.Stats.SecondExits)/float64(info.Stats.Hits), info.Plan)
		}
	}
	t.Logf("entries of %d functions by plan: %v; %d were hit, %d of them with exactly 1.0 exits per hit", len(all), plans, hit, one)
	if hit < 100 || one*100 < hit*95 {
		t.Errorf("%d of %d functions cost one exit per hit, want 95%%", one, hit)
	}
}
