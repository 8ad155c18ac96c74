package testreport

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// hostile is text as a guest may write it.
const hostile = "a]]>b\x00\x1b[31m\xff\u202e</pre></details>|`x` # TODO <script>&amp; @all https://a.b www.c.d $x$\n...\n  ---\nnot ok 9 - more\r\n1..3\n\ufffe"

// example is a run with each outcome.
func example() *Run {
	return &Run{
		Name: "guestprobe", Host: "host", Began: time.Date(2026, 11, 23, 12, 0, 0, 0, time.FixedZone("", 3600)), Took: 2500 * time.Millisecond,
		Cases: []Case{
			{Name: "reads.bt", File: "t/reads.bt", Outcome: Passed, Took: 1200 * time.Millisecond, Output: "@: 1\n"},
			{Name: "bad #1", File: "t/bad.bt", Outcome: Failed, Kind: "assert", Why: "bad.bt:1:1-2: ERROR: assert failed: " + hostile, Took: time.Second, Output: hostile, Console: hostile, Kept: "kept/bad"},
			{Name: "none|x", File: "t/none.bt", Outcome: Errored, Kind: "daemon", Why: "no /dev/kvm", Took: 300 * time.Millisecond},
			{Name: "later", File: "t/later.bt", Outcome: Skipped, Why: "interrupted"},
		},
	}
}

func writeReport(t *testing.T, write func(w io.Writer) error) string {
	t.Helper()
	var b strings.Builder
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestJUnit: what a reader of XML finds is what the run had, whatever the guest has written.
func TestJUnit(t *testing.T) {
	text := writeReport(t, example().JUnit)
	for i, r := range text {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0xfffe && r <= 0xffff {
			t.Errorf("byte %d is %U, which is not in XML 1.0", i, r)
		}
	}
	if !utf8.ValidString(text) {
		t.Error("not UTF-8")
	}
	var got junitSuites
	if err := xml.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	s := got.Suites[0]
	if s.Tests != 4 || s.Failures != 1 || s.Errors != 1 || s.Skipped != 1 || s.Time != "2.500" || s.Began != "2026-11-23T11:00:00" || s.Name != "guestprobe" || s.Host != "host" {
		t.Errorf("suite %+v", s)
	}
	c := s.Cases
	if c[0].Failure != nil || c[0].Error != nil || c[0].Skipped != nil || c[0].Out != "@: 1\n" || c[0].Time != "1.200" || c[0].File != "t/reads.bt" {
		t.Errorf("passed: %+v", c[0])
	}
	shown := "a]]>b\\x00\\x1b[31m\\xff\\xe2\\x80\\xae</pre></details>|`x` # TODO <script>&amp; @all https://a.b www.c.d $x$\n...\n  ---\nnot ok 9 - more\\x0d\n1..3\n\\xef\\xbf\\xbe"
	if c[1].Failure == nil || c[1].Failure.Type != "assert" || c[1].Out != shown || c[1].Err != shown {
		t.Errorf("failed: %+v\n%q\nwant\n%q", c[1].Failure, c[1].Out, shown)
	}
	if strings.Contains(c[1].Failure.Message, "\n") || !strings.Contains(c[1].Failure.Text, "\n") {
		t.Errorf("message %q, text %q", c[1].Failure.Message, c[1].Failure.Text)
	}
	if c[2].Error == nil || c[2].Error.Message != "no /dev/kvm" || c[3].Skipped == nil || c[3].Skipped.Message != "interrupted" {
		t.Errorf("%+v, %+v", c[2], c[3])
	}
}

// tapLine is a line of TAP outside of YAML.
var tapLine = regexp.MustCompile(`^(not )?ok (\d+) - ((?:[^#\\]|\\.)*?)(?: # (SKIP) (.*))?$`)

// TestTAP: a reader by TAP's rules finds as many tests as there are, in order, and of each what was said.
func TestTAP(t *testing.T) {
	r := example()
	lines := strings.Split(strings.TrimSuffix(writeReport(t, r.TAP), "\n"), "\n")
	if lines[0] != "TAP version 13" || lines[1] != "1..4" {
		t.Fatalf("begins with %q", lines[:2])
	}
	var seen int
	said := map[string]string{}
	yaml := false
	for _, l := range lines[2:] {
		switch m := tapLine.FindStringSubmatch(l); {
		case yaml && l == "  ...":
			yaml = false
		case yaml:
			key, value, ok := strings.Cut(strings.TrimPrefix(l, "  "), ": ")
			var text any
			if !ok || json.Unmarshal([]byte(value), &text) != nil {
				t.Errorf("%q is no key with a string of YAML", l)
			}
			said[fmt.Sprint(seen, " ", key)] = fmt.Sprint(text)
		case l == "  ---":
			yaml = true
		case m == nil:
			t.Errorf("%q is no line of TAP", l)
		default:
			seen++
			c := r.Cases[seen-1]
			name := strings.NewReplacer(`\\`, `\`, `\#`, "#").Replace(m[3])
			if m[2] != strconv.Itoa(seen) || name != c.Name || (m[1] != "") != (c.Outcome == Failed || c.Outcome == Errored) || (m[4] != "") != (c.Outcome == Skipped) {
				t.Errorf("%q of %+v", l, c)
			}
		}
	}
	if seen != 4 || yaml || said["2 severity"] != "fail" || said["2 kind"] != "assert" || said["3 message"] != "no /dev/kvm" || said["1 duration_ms"] != "1200" || !strings.Contains(said["2 output"], "\nnot ok 9 - more") {
		t.Errorf("%d tests; said %q", seen, said)
	}
}

// TestMarkdown: the summary as it is to be.
func TestMarkdown(t *testing.T) {
	r := example()
	r.Cases[1].Why, r.Cases[1].Console = "said www.c.d <b>|`x` https://a.b @all", "panic </pre> & more\n"
	r.Cases[1].Output = "one\n\ntwo"
	want := `### guestprobe

4 tests: 1 passed, 1 failed, 1 could not be run, 1 skipped, in 2.500s

| | test | time | |
|---|---|---|---|
| ❌ | bad &#35;1 | 1.000s | said www&#46;c.d &#60;b&#62;&#124;&#96;x&#96; https&#58;//a.b &#64;all |
| ⚠️ | none&#124;x | 0.300s | no /dev/kvm |
| ✅ | reads.bt | 1.200s |  |
| ⏭️ | later | 0.000s | interrupted |

<details><summary>bad &#35;1</summary>

why:

<pre>
said www.c.d &lt;b&gt;|` + "`x`" + ` https://a.b @all
</pre>

it printed:

<pre>
one

two
</pre>

the guest's console:

<pre>
panic &lt;/pre&gt; &amp; more
</pre>

</details>

<details><summary>none&#124;x</summary>

why:

<pre>
no /dev/kvm
</pre>

</details>
`
	if got := writeReport(t, r.Markdown); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestBounds: reports of many tests with much text are as large as their readers take.
func TestBounds(t *testing.T) {
	r := &Run{Name: "n", Cases: make([]Case, 3000)}
	much := strings.Repeat("\x1b\"<", 200<<10)
	for i := range r.Cases {
		r.Cases[i] = Case{Name: much, File: much, Outcome: Failed, Kind: "exit", Why: much}
	}
	for i := range 100 {
		r.Cases[i].Output, r.Cases[i].Console = much, much
	}
	if n := len(writeReport(t, r.Markdown)); n >= 1<<20 {
		t.Errorf("a summary of %d bytes", n)
	}
	r.Cases = r.Cases[:1]
	for name, w := range map[string]func(io.Writer) error{"junit": r.JUnit, "tap": r.TAP} {
		if n := len(writeReport(t, w)); n > 2<<20 {
			t.Errorf("%s of one case has %d bytes", name, n)
		}
	}
	for _, c := range []struct {
		text string
		most int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "[...]\nbcd"}, {"", 3, ""}, {"aéé", 3, "[...]\né"}, {"é", 1, "[...]\n"}, {"\x1b\x1b", 4, "[...]\n\\x1b"}, {"\x1b", 4, "\\x1b"}} {
		if got := end(c.text, c.most); got != c.want {
			t.Errorf("end(%q, %d) = %q, want %q", c.text, c.most, got, c.want)
		}
	}
	if got := line("é"+strings.Repeat("x", 9), 1); got != "..." {
		t.Errorf("line: %q", got)
	}
}
