package machine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func texts(lines []ConsoleLine) []string {
	var out []string
	for _, l := range lines {
		s := l.Text
		if l.Partial {
			s += "~"
		}
		out = append(out, s)
	}
	return out
}

func TestConsoleLines(t *testing.T) {
	long := strings.Repeat("x", consoleMaxLine)
	for _, tc := range []struct {
		name  string
		write string
		flush bool
		want  []string
	}{
		{"nothing", "", false, nil},
		{"one line", "abc\n", false, []string{"abc"}},
		{"empty line", "\n", false, []string{""}},
		{"unfinished", "a\nbc", false, []string{"a", "bc~"}},
		{"flushed", "a\nbc", true, []string{"a", "bc~"}},
		{"flush of nothing", "a\n", true, []string{"a"}},
		{"line of the limit", long + "\n", false, []string{long}},
		{"line over the limit", long + "y\n", false, []string{long, "y"}},
		{"bytes as they are", "\x00\xff\r\n", false, []string{"\x00\xff\r"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newConsole()
			for _, b := range []byte(tc.write) {
				c.write([]byte{b})
			}
			if tc.flush {
				c.flush()
			}
			got, dropped := c.History()
			if diff := cmp.Diff(tc.want, texts(got)); diff != "" || dropped != 0 {
				t.Errorf("history (-want +got), dropped %d:\n%s", dropped, diff)
			}
			for i, l := range got {
				if l.Seq != uint64(i) {
					t.Errorf("line %d has sequence number %d", i, l.Seq)
				}
			}
		})
	}
}

func TestConsoleHistoryIsBounded(t *testing.T) {
	c := newConsole()
	const more = 10
	for i := range consoleMaxLines + more {
		c.write(fmt.Appendf(nil, "%d\n", i))
	}
	got, dropped := c.History()
	if len(got) != consoleMaxLines || dropped != more || got[0].Text != "10" {
		t.Errorf("%d lines, %d dropped, first %q; want %d, %d, \"10\"", len(got), dropped, got[0].Text, consoleMaxLines, more)
	}

	c = newConsole()
	line := strings.Repeat("z", consoleMaxLine) + "\n"
	for range 2 * consoleMaxBytes / consoleMaxLine {
		c.write([]byte(line))
	}
	if got, _ := c.History(); len(got) != consoleMaxBytes/consoleMaxLine {
		t.Errorf("%d long lines kept, want %d", len(got), consoleMaxBytes/consoleMaxLine)
	}
	if got := c.tail(3); len(got) != 3 {
		t.Errorf("Tail(3) has %d lines", len(got))
	}
}

func TestConsoleSubscriber(t *testing.T) {
	c := newConsole()
	c.write([]byte("old\nha"))
	s, history := c.Subscribe(2)
	if diff := cmp.Diff([]string{"old"}, texts(history)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	c.write([]byte("lf\nsecond\nthird\n"))
	if got := []string{(<-s.C()).Text, (<-s.C()).Text}; got[0] != "half" || got[1] != "second" {
		t.Errorf("lines %q", got)
	}
	if s.LostLines() != 1 {
		t.Errorf("lost %d, want 1", s.LostLines())
	}
	s.Close()
	s.Close()
	if _, ok := <-s.C(); ok {
		t.Error("the channel of a closed subscription is open")
	}
	c.write([]byte("nobody listens\n"))

	s, _ = c.Subscribe(0)
	c.close()
	c.close()
	if _, ok := <-s.C(); ok {
		t.Error("the channel is open after the console was closed")
	}
	s, history = c.Subscribe(1)
	if _, ok := <-s.C(); ok || len(history) != 5 {
		t.Errorf("subscription to a closed console: open %v, history %q", ok, texts(history))
	}
	s.Close()
}

// A tap has every byte once, behind the lines that are kept; what it has no room for is counted.
func TestConsoleTap(t *testing.T) {
	c := newConsole()
	c.write([]byte("before\npro"))
	tap, history := c.Tap()
	if d := cmp.Diff([]string{"before", "pro~"}, texts(history)); d != "" {
		t.Errorf("history (-want +got):\n%s", d)
	}
	if b, lost := tap.Take(); b != nil || lost != 0 {
		t.Errorf("took %q, lost %d", b, lost)
	}
	for _, b := range []byte("mpt# \r\n\xff") {
		c.write([]byte{b})
	}
	<-tap.Ready()
	if b, lost := tap.Take(); string(b) != "mpt# \r\n\xff" || lost != 0 {
		t.Errorf("took %q, lost %d", b, lost)
	}
	c.write(make([]byte, tapRoom-1))
	c.write([]byte("abc"))
	if b, lost := tap.Take(); len(b) != tapRoom || b[tapRoom-1] != 'a' || lost != 2 {
		t.Errorf("took %d bytes, lost %d", len(b), lost)
	}
	other, _ := c.Tap()
	tap.Close()
	tap.Close()
	c.write([]byte("x"))
	<-tap.Ready() // a token from before, or its end
	if b, _ := tap.Take(); b != nil {
		t.Errorf("took %q behind the end", b)
	}
	c.close()
	<-other.Ready()
	if _, open := <-other.Ready(); open {
		t.Error("the console is closed and its tap is not")
	}
	if b, _ := other.Take(); string(b) != "x" {
		t.Errorf("took %q", b)
	}
	last, _ := c.Tap()
	if _, open := <-last.Ready(); open {
		t.Error("a tap of a closed console is open")
	}
}

// TestConsoleOfTwoTerminals: lines of two terminals that write at a time are not mixed.
func TestConsoleOfTwoTerminals(t *testing.T) {
	c := newConsole()
	c.writeTTY([]byte("10"))
	c.writeSecondTTY([]byte("by h"))
	c.writeTTY([]byte("0\r"))
	c.writeSecondTTY([]byte("vc\r\nmo"))
	c.writeTTY([]byte("\nand"))
	c.flush()
	lines, _ := c.History()
	var got []string
	for _, l := range lines {
		got = append(got, fmt.Sprint(l.Text, l.Partial))
	}
	if want := "[by hvcfalse 100false andtrue motrue]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
