package timeline

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestCutTexts: texts that an event of a trace.dat has no room for say that they are not whole; others are.
func TestCutTexts(t *testing.T) {
	fields := []field{{value: value{text: "whole"}}, {value: value{number: 7}, kind: "u64"}, {value: value{text: strings.Repeat("é", maxEvent)}}, {value: value{text: "late"}}, {value: value{text: ""}}}
	b := appendFields(make([]byte, 32), fields)
	var got []string
	for _, at := range []int{32, 44, 48, 52} {
		loc := binary.LittleEndian.Uint32(b[at:])
		text := b[loc&0xffff:][:loc>>16]
		if text[len(text)-1] != 0 {
			t.Errorf("%q does not end", text)
		}
		got = append(got, string(text[:len(text)-1]))
	}
	if got[0] != "whole" || !strings.HasSuffix(got[1], "é...") || got[2] != "..." || got[3] != "" || len(b) > maxEvent || len(b) < maxEvent-8 {
		t.Errorf("an event of %d bytes has %q", len(b), got)
	}
}

// FuzzStrings: whatever bytes a guest has in strings, each line of text and each trace.dat says which they were, and has
// nothing in it that moves a terminal's cursor.
func FuzzStrings(f *testing.F) {
	for _, s := range []string{"", "/etc/passwd", `a"b\`, `a" t="b`, `\x41`, `\`, `\\`, `"`, "x\xffy", "é\x00\n\t\x1b[2J\u202e", `it's`, "\ufffd", strings.Repeat(`\`, 255)} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, s, other string) {
		if len(s)+len(other) > 400 {
			return // a definition's strings are of 255 bytes, and an event of a trace.dat of 2048
		}
		kind := event.Type{Format: event.String}
		one := event.Value{Name: "s", Type: kind, Data: []event.Datum{{Text: s}}}
		kind.Count = 2
		two := event.Value{Name: "two", Type: kind, Data: []event.Datum{{Text: s}, {Text: other}}}
		hit := api.Hit{Probe: "kprobes/a", Stage: "pre", Text: "(f)"}
		for _, v := range []event.Value{one, two} {
			a := api.Arg{Name: v.Name, Type: v.Type.String(), Value: v.JSON(), Text: string(v.AppendText(nil)), Raw: v.RawTexts()}
			hit.Args, hit.Text = append(hit.Args, a), hit.Text+" "+a.Name+"="+a.Text
		}
		lines, err := NewLines("", false)
		if err != nil {
			t.Fatal(err)
		}
		if line := lines.Line(hit); !strings.HasSuffix(line, "(f) s="+hit.Args[0].Text+" two="+hit.Args[1].Text+"\n") {
			t.Errorf("line %q", line)
		}
		// The line's strings, one after the other.
		rest := strings.TrimPrefix(hit.Text, "(f) s=")
		for _, want := range []string{s, s, other} {
			text, err := strconv.QuotedPrefix(rest)
			if err != nil {
				t.Fatalf("%v: %s in %s", err, rest, hit.Text)
			}
			if got, err := strconv.Unquote(text); err != nil || got != want {
				t.Errorf("%q is printed as %s, which is %q, %v", want, text, got, err)
			}
			rest = strings.TrimLeft(rest[len(text):], ` two={,`)
		}
		if rest != "}" {
			t.Errorf("left is %q of %s", rest, hit.Text)
		}
		if utf8.ValidString(s) {
			if v := valueOf("", &hit.Args[0]); v.text != s {
				t.Errorf("%q is %q of a timeline", s, v.text)
			}
		}
		var out bytes.Buffer
		w := writerOf(t, Ftrace, &out)
		for _, r := range []*Record{NewRecord(api.Start{}), NewRecord(hit), NewRecord(api.End{})} {
			if err := w.Write(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		plain := func(text string) string { return text[1 : len(text)-1] }
		if want := plain(hit.Args[0].Text) + "\x00" + strings.Replace(plain(plain(hit.Args[1].Text)), `","`, "\x00", 1) + "\x00"; !strings.Contains(s+other, `","`) && !bytes.Contains(out.Bytes(), []byte(want)) {
			t.Errorf("no %q in the trace.dat", want)
		}
	})
}

// TestCut: nothing of what stands for one character is left without the rest of it.
func TestCutText(t *testing.T) {
	for _, tc := range []struct {
		text string
		most int
		want string
	}{
		{"abc", 3, "abc"}, {"abc", 2, "ab"}, {"abc", 0, ""}, {"aé", 2, "a"}, {"aé", 3, "aé"},
		{`a\x1bb`, 4, "a"}, {`a\x1bb`, 5, `a\x1b`}, {`a\"b`, 2, "a"}, {`a\"b`, 3, `a\"`}, {`\\\\`, 3, `\\`}, {"a\xffb", 2, "a\xff"}, {`a\`, 1, "a"},
	} {
		if got := Cut(tc.text, tc.most); got != tc.want {
			t.Errorf("%q cut at %d is %q, want %q", tc.text, tc.most, got, tc.want)
		}
	}
}
