package probe_test

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// ruled is an image that says something else of frames.
type ruled struct {
	*guest.Image
	rule guest.FrameRule
}

func (r ruled) FrameRule(guest.GVA) (guest.FrameRule, bool) { return r.rule, true }

// TestChain: for an image whose code keeps frame pointers the exceptional calls are
// known; and it is reported why the guest cannot walk by frame pointers.
func TestChain(t *testing.T) {
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	chain := func(syms func(*guest.Image) probe.Symbols) (*probe.Engine, *probe.Chain, error) {
		f, err := probetest.NewFake(probetest.FakeOptions{Image: img, Symbols: syms, Probe: probe.Options{OptimizeDelay: -1}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		ch, err := f.Engine().Chain()
		if again, err2 := f.Engine().Chain(); again != ch || err2 != err {
			t.Errorf("the second time %v, %v", again, err2)
		}
		return f.Engine(), ch, err
	}
	e, ch, err := chain(nil)
	if err != nil {
		t.Fatal(err)
	}
	names := func(fs []probe.FrameAt, outer bool) (s []string) {
		for i := range fs {
			if sym, ok := img.Find(fs[i].PC - 1); ok && fs[i].Outer == outer && sym.Section != ".user.text" {
				s = append(s, sym.Name)
			}
			if i > 0 && fs[i].PC <= fs[i-1].PC {
				t.Errorf("%v behind %v", fs[i].PC, fs[i-1].PC)
			}
		}
		return s
	}
	if got, want := strings.Join(names(ch.Calls, true), " "), "ret_from_fork ret_from_fork ret_from_fork"; got != want {
		t.Errorf("calls without a caller in %q, want %q", got, want)
	}
	if got, want := strings.Join(names(ch.Calls, false), " "), "call_next ret_pops _start _start _start"; got != want {
		t.Errorf("calls without a frame in %q, want %q", got, want)
	}
	s, err := img.Lookup("call_protected")
	if err != nil {
		t.Fatal(err)
	}
	for off, want := range map[guest.GVA]guest.FrameRule{0: {CFA: 8, Return: -8}, 1: {CFA: 16, Return: -8, RBP: -16}, 4: probe.ByPointer} {
		if f, err := e.Frame(ch, s.Addr+off); err != nil || f.FrameRule != want || f.PC != s.Addr+off {
			t.Errorf("call_protected+%d: %+v, %v, want %+v", off, f, err, want)
		}
	}
	for _, c := range []struct {
		rule guest.FrameRule
		want string
	}{
		{guest.FrameRule{CFA: 32, Return: -8}, "more than 256 calls are in code that keeps no frame pointers"},
		{guest.FrameRule{CFA: 32, Return: -16}, "only the host finds the caller of the code in front of"},
		{guest.FrameRule{AtRBP: true, RBP: -8, CFA: 32, Return: -8}, "only the host finds the caller"},
	} {
		other, _, err := chain(func(img *guest.Image) probe.Symbols { return ruled{img, c.rule} })
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.rule, err, c.want)
		}
		if _, err := other.Frame(ch, s.Addr); err == nil || !strings.Contains(err.Error(), "another image") {
			t.Errorf("of another image: %v", err)
		}
	}
	// Through the entries of interrupts stacks of hits go by frame pointers, whatever is known of them.
	if _, _, err := chain(func(img *guest.Image) probe.Symbols { return ruled{img, guest.FrameRule{Trap: true, Return: -40}} }); err != nil {
		t.Error(err)
	}
}
