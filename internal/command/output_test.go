package command

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"plain text ü\n\tmore": "plain text ü\n\tmore",
		"\x1b[31mred":          `\x1b[31mred`,
		"bell\a cr\r":          `bell\x07 cr\x0d`,
		"\x00\xff":             `\x00\xff`,
		"\u202e":               `\xe2\x80\xae`, // reverses the direction of text
		"\ufffd":               "\ufffd",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTableKeepsItsShape(t *testing.T) {
	var out bytes.Buffer
	r := &Run{Env: Env{Stdout: &out}}
	if err := r.Table([]string{"A", "B"}, [][]string{{"x\ty\nz", "1"}, {"\x1b[2J", "2"}, {"last", ""}}); err != nil {
		t.Fatal(err)
	}
	want := "A        B\n" + `x\ty\nz  1` + "\n" + `\x1b[2J  2` + "\nlast\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
