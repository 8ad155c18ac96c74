package machine

import (
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Functions of the C++ guest.
const (
	cplusReferences = "_Z10referencesRiRKlRhR5pointOi"
	cplusValues     = "_Z6values5point5range3odd3big"
	cplusArea       = "_ZNK6shapes6circle4areaEl"
	cplusTwice      = "_ZN6shapes5twiceIlEET_S1_"
	cplusRings      = "_Z5ringsP4ring5heavyl"
)

// onCplus returns the C++ guest with its debug information, which internal/server/http/testdata/cplus/make.sh has built with that
// optimization level.
func onCplus(t *testing.T, level string) *onGuest {
	t.Helper()
	f, err := os.Open("../../internal/server/http/testdata/cplus/" + level + ".gz")
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
	m, s := sessionOf(t, Config{Image: img, VCPUs: 1, EmulatedStages: true}, session.Options{Source: func() (*debuginfo.Info, error) {
		return debuginfo.OpenImage(img.Path, func(name string) ([]byte, error) { return img.SectionData(name, debuginfo.MaxSection) })
	}})
	return &onGuest{t, m, s}
}

// hit attaches a definition, and returns the text of its next hit.
func (x *onGuest) hit(def string) string {
	x.Helper()
	sub := x.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	own := &session.Owner{}
	if _, err := x.s.Attach([]session.Spec{{Def: def}}, own); err != nil {
		x.Fatal(err)
	}
	ev, err := sub.Next(patience.Context(x))
	if err != nil {
		x.Fatal(err)
	}
	rec, err := ev.Decode()
	if err != nil {
		x.Fatal(err)
	}
	if _, err := x.s.EndOwner(own); err != nil {
		x.Error(err)
	}
	return string(ev.Source.Layout.AppendArgs(nil, rec))
}

// prints runs a script until it exits, and returns its text.
func (x *onGuest) prints(text string) string {
	x.Helper()
	sc := sessiontest.Start(x, x.s, text, session.ScriptOptions{})
	sc.Wait()
	out, _, _ := sc.End()
	return out
}

// TestAttachBySource: a probe's place is the source name of one function, with or without the types of its
// parameters. Hits show such names.
func TestAttachBySource(t *testing.T) {
	x := onCplus(t, "O2")
	for i, c := range []struct{ place, symbol, event string }{
		{"values", cplusValues, "p_values_0"}, {"values(point, range, odd, big)", cplusValues, "p_values_point__range__odd__big__0"},
		{"shapes::circle::area", cplusArea, "p_shapes__circle__area_0"}, {"shapes::circle::area(long)", cplusArea, "p_shapes__circle__area_long__0"},
		{"shapes::twice<long>", cplusTwice, "p_shapes__twice_long__0"}, {cplusTwice, cplusTwice, "p__ZN6shapes5twiceIlEET_S1__0"},
	} {
		a, err := x.s.Attach([]session.Spec{{Def: "p " + c.place}}, nil)
		if err != nil {
			t.Errorf("%s: %v", c.place, err)
			continue
		}
		p := x.s.Describe(a.Probes)[0]
		if p.Symbol != c.symbol || p.Name != "kprobes/"+c.event || p.Spec.Def != "p:kprobes/"+c.event+" "+c.place {
			t.Errorf("%d: %s is %s, of %s", i, p.Spec.Def, p.Name, p.Symbol)
		}
		if d, err := event.Parse(p.Spec.Def + " a=%di:u64"); err != nil || d.String() != p.Spec.Def+" a=%di:u64" {
			t.Errorf("%s reads back as %v, %v", p.Spec.Def, d, err)
		}
	}
	for place, want := range map[string]string{"area": "write " + cplusArea, "values(int)": "the guest has no symbol", "shapes::circle": "the guest has no symbol"} {
		if _, err := x.s.Attach([]session.Spec{{Def: "p:x " + place}}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", place, err, want)
		}
	}
	if _, err := x.s.Detach(); err != nil {
		t.Fatal(err)
	}
	if got := x.hit("r:e shapes::circle::area f=%ip:symbol"); !strings.Contains(got, " <- shapes::circle::area) f=") || strings.Contains(got, "_Z") {
		t.Errorf("hit %s", got)
	}
	if got := x.prints(`kprobe:` + cplusTwice + ` { printf("%s\n", ksym(reg("ip"))); exit(); }`); !strings.HasPrefix(got, "shapes::twice<long>") {
		t.Errorf("the script prints %q", got)
	}
}

// TestCplusReferences: definitions and scripts follow references, including members that are references.
func TestCplusReferences(t *testing.T) {
	for _, level := range []string{"O0", "O2"} {
		t.Run(level, func(t *testing.T) {
			x := onCplus(t, level)
			if _, got, _ := strings.Cut(x.hit("p:e "+cplusReferences+" a b c p.y p.x r"), ") "); got != "a=-3 b=1099511627776 c=200 arg4=-6 arg5=5 r=9" {
				t.Errorf("hit %s", got)
			}
			if got := x.prints("kprobe:" + cplusReferences + ` { printf("%d %ld %d %d %d\n", args.a, args.b, args.c, args.p.y, args.r); exit(); }`); !strings.HasPrefix(got, "-3 1099511627776 200 -6 9\n") {
				t.Errorf("the script prints %q", got)
			}
		})
	}
}

// TestCplusBases: members of base classes are members of the class, static members are not, and a class that is passed by a pointer
// takes one register, whatever its size.
func TestCplusBases(t *testing.T) {
	for _, level := range []string{"O0", "O2"} {
		t.Run(level, func(t *testing.T) {
			x := onCplus(t, level)
			if _, got, _ := strings.Cut(x.hit("p:e "+cplusRings+" x=g->at.x r=g->r width=g->width inner=g->inner n"), ") "); got != "x=11 r=12 width=13 inner=14 n=16" {
				t.Errorf("hit %s", got)
			}
			if got := x.prints("kprobe:" + cplusRings + ` { printf("%d %d %d %d %d\n", args.g->at.x, args.g->r, args.g->width, args.g->inner, args.n); exit(); }`); !strings.HasPrefix(got, "11 12 13 14 16\n") {
				t.Errorf("the script prints %q", got)
			}
			if _, err := x.s.Attach([]session.Spec{{Def: "p:s " + cplusRings + " c=g->count"}}, nil); err == nil || session.ErrorOf(err).Syntax != "NO_BTF_FIELD" {
				t.Errorf("a static member: %v", err)
			}
		})
	}
}
