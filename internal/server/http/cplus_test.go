package http

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveCplus serves a guest of C++, which testdata/cplus/make.sh has built with that optimization.
func serveCplus(t *testing.T, level string) *harness {
	t.Helper()
	kvmtest.Require(t)
	f, err := os.Open("testdata/cplus/" + level + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	img, err := guest.ParseELF(b)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(machine.Config{Image: img, VCPUs: 1, EmulatedStages: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return newHarness(t).serve(machineGuest{Machine: m, source: func() (*debuginfo.Info, error) { return readImageSource(img) }}, defaultOptions())
}

const (
	cplusReferences = "_Z10referencesRiRKlRhR5pointOi"
	cplusValues     = "_Z6values5point5range3odd3big"
	cplusObject     = "_Z6object7countedl"
	cplusArea       = "_ZNK6shapes6circle4areaEl"
	cplusTwice      = "_ZN6shapes5twiceIlEET_S1_"
)

// arguments are those of the first frame, as bt shows them; addresses are ADDR.
func (h *harness) arguments() string {
	h.Helper()
	list, err := h.c.Backtraces(h.ctx, remote.Where{})
	if err != nil || len(list.Backtraces) != 1 {
		h.Fatal(list, err)
	}
	var out []string
	for _, f := range list.Backtraces[0].Frames {
		if f.Inlined {
			continue
		}
		for _, a := range f.Args {
			value := a.Value
			if a.Why != "" {
				value = "? " + a.Why
			}
			out = append(out, fmt.Sprintf("%s %s = %s", a.Type, a.Name, value))
		}
		break
	}
	return regexp.MustCompile(`0x[0-9a-f]{8,16}`).ReplaceAllString(strings.Join(out, "; "), "ADDR")
}

// TestCplusArguments: a backtrace has the arguments of functions with mangled names, references as what they refer to, and structures that
// are passed in registers or in memory.
func TestCplusArguments(t *testing.T) {
	for _, level := range []string{"O0", "O2"} {
		t.Run(level, func(t *testing.T) {
			h := serveCplus(t, level)
			if _, err := h.c.Pause(h.ctx); err != nil {
				t.Fatal(err)
			}
			timeout := 60000
			for _, x := range []struct{ function, want string }{
				{cplusReferences, `int & a = @ADDR: -3; const long int & b = @ADDR: 1099511627776; unsigned char & c = @ADDR: 200; point_ref p = @ADDR: { .x = 5, .y = -6 }; int && r = @ADDR: 9`},
				{cplusValues, `struct point p = { .x = 1, .y = -2 }; struct range r = { .from = 8589934592, .n = 4 }; struct odd o = { .c = abc }; struct big b = { .a = [10,20,30,40] }`},
				{cplusObject, `struct counted c = { .n = 17 }; long int n = 18`},
				{cplusArea, `const struct circle *const this = ADDR; long int scale = 3`},
			} {
				if s, err := h.c.Step(h.ctx, api.Step{How: api.StepUntil, At: x.function, TimeoutMS: &timeout}); err != nil || !s.Reached {
					t.Fatalf("until %s: %+v, %v", x.function, s, err)
				}
				if got := h.arguments(); got != x.want {
					t.Errorf("at %s:\n%s, want\n%s", x.function, got, x.want)
				}
			}
		})
	}
}

// TestSourceNames: stacks and symbols have the names of the source beside those of the linker, and a name of the source that
// no symbol has is answered with those.
func TestSourceNames(t *testing.T) {
	h := serveCplus(t, "O2")
	if _, err := h.c.Pause(h.ctx); err != nil {
		t.Fatal(err)
	}
	timeout := 60000
	for function, name := range map[string]string{cplusReferences: "references", cplusArea: "shapes::circle::area", cplusTwice: "shapes::twice<long>"} {
		if s, err := h.c.Step(h.ctx, api.Step{How: api.StepUntil, At: function, TimeoutMS: &timeout}); err != nil || !s.Reached {
			t.Fatalf("until %s: %+v, %v", function, s, err)
		}
		list, err := h.c.Backtraces(h.ctx, remote.Where{})
		if err != nil {
			t.Fatal(err)
		}
		f := list.Backtraces[0].Frames[0]
		if f.Name != name || !strings.HasPrefix(f.Symbol, function+"+0x0/") || !strings.HasPrefix(f.Text(), name+"+0x0/") {
			t.Errorf("%s: %+v", function, f.Frame)
		}
		if start := list.Backtraces[0].Frames[1]; start.Name != "" || !strings.HasPrefix(start.Text(), "start+0x") {
			t.Errorf("%s: the caller is %+v", function, start.Frame)
		}
	}
	// Where a stack ends for want of call frame information, it says so.
	namer := newNamer(h.s.guest)
	for name, want := range map[string]string{"trap": "callers of trap are not known: its code has no call frame information", "_start": "", "start": "", cplusArea: ""} {
		sym, err := namer.img.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := namer.end([]guest.Frame{{PC: uint64(sym.Addr), Exact: true}}); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	list, err := h.c.Symbols(h.ctx, remote.SymbolQuery{Match: "_Z*"})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, s := range list.Symbols {
		names[s.Name] = s.Demangled
	}
	for name, want := range map[string]string{
		cplusReferences: "references(int&, long const&, unsigned char&, point&, int&&)", cplusValues: "values(point, range, odd, big)",
		cplusArea: "shapes::circle::area(long) const", cplusTwice: "long shapes::twice<long>(long)",
	} {
		if names[name] != want {
			t.Errorf("%s is %q, want %q", name, names[name], want)
		}
	}
	timeout = 1
	if _, err := h.c.Step(h.ctx, api.Step{How: api.StepUntil, At: "circle::area", TimeoutMS: &timeout}); err == nil || !strings.Contains(err.Error(), "write "+cplusArea) {
		t.Errorf("%v", err)
	}
}

// TestCplusVariables is about the route of variables: references are where they lead. Definitions and scripts with them are tested in
// kvm/machine.
func TestCplusVariables(t *testing.T) {
	for _, level := range []string{"O0", "O2"} {
		t.Run(level, func(t *testing.T) {
			h := serveCplus(t, level)
			list, err := h.c.Variables(h.ctx, cplusReferences)
			if err != nil || len(list.Places) != 1 {
				t.Fatal(list, err)
			}
			var got []string
			for _, v := range list.Places[0].Variables {
				if v.Parameter {
					got = append(got, fmt.Sprintf("%s: %s at %s%s", v.Name, v.Type, v.Where, v.Why))
				}
			}
			if want := "a: int & at +0(%di), b: const long int & at +0(%si), c: unsigned char & at +0(%dx), p: point_ref at +0(%cx), r: int && at +0(%r8)"; strings.Join(got, ", ") != want {
				t.Errorf("%s, want %s", strings.Join(got, ", "), want)
			}
		})
	}
}
