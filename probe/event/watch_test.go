package event

import (
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

func TestParseWatch(t *testing.T) {
	for _, q := range []struct {
		text   string
		want   string // the canonical form, or ""
		access probe.Access
		n      int
		place  Place
		code   Code
		column int
	}{
		{text: "w:v w@var", want: "w:kprobes/v w@var", access: probe.AccessWrite, place: Place{Symbol: "var"}},
		{text: "w:g/v @var:4", want: "w:g/v w@var:4", access: probe.AccessWrite, n: 4, place: Place{Symbol: "var"}},
		{text: "w rw@var+8:8 a=%ax", want: "w:kprobes/w_var_8 rw@var+8:8 a=%ax", access: probe.AccessReadWrite, n: 8, place: Place{Symbol: "var", Offset: 8}},
		{text: "w:r r@0x1000:1", want: "w:kprobes/r r@0x1000:1", access: probe.AccessRead, n: 1, place: Place{Addr: 0x1000}},
		{text: "w:x x@0xffffffff80000000", want: "w:kprobes/x x@0xffffffff80000000", access: probe.AccessExec, place: Place{Addr: guest.GVA(0xffffffff80000000)}},

		{text: "w:v", code: CodeNoPlace, column: 4},
		{text: "w:v var", code: CodeBadWatch, column: 4},
		{text: "w:v q@var", code: CodeBadWatch, column: 4},
		{text: "w:v wr@var", code: CodeBadWatch, column: 4},
		{text: "w:v w@", code: CodeBadProbeAddr, column: 6},
		{text: "w:v rw@var:3", code: CodeBadWatch, column: 11},
		{text: "w:v w@var:", code: CodeBadWatch, column: 10},
		{text: "w:v w@var:16", code: CodeBadWatch, column: 10},
		{text: "w:v w@mod:var", code: CodeBadWatch, column: 10},
		{text: "w:v w@var-1", code: CodeBadProbeAddr, column: 6},
		{text: "w:v w@0x1000+8", code: CodeBadProbeAddr, column: 6},
		{text: "w:v w@var%return", code: CodeBadProbeAddr, column: 6},
		{text: "w:v w@var $arg1", code: CodeNofentryArgs, column: 10},
		{text: "w:v w@var $retval", code: CodeRetvalOnProbe, column: 10},
		{text: "w:v w@var old=%ax", code: CodeUsedArgName, column: 10},
		{text: "w4:v w@var", code: CodeBadMaxactType, column: 1},
	} {
		d, err := Parse(q.text)
		if q.want == "" {
			var e *SyntaxError
			if !errors.As(err, &e) || e.Code != q.code || e.Column != q.column {
				t.Errorf("%q: got %v, want %s at column %d", q.text, err, q.code, q.column)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", q.text, err)
			continue
		}
		if d.Kind != KindWatch || d.Access != q.access || d.Len != q.n || d.Place != q.place || d.String() != q.want {
			t.Errorf("%q: got %+v, %q; want %q", q.text, d, d, q.want)
		}
		if again, err := Parse(d.String()); err != nil || again.String() != d.String() {
			t.Errorf("%q reads back as %v, %v", d, again, err)
		}
	}
}
