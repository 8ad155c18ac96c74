package event

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
)

func TestSourcePlace(t *testing.T) {
	for text, want := range map[string]SourcePlace{
		"p fs/read_write.c:450 $stack0": {File: "fs/read_write.c", Line: 450},
		"r:x a.c:1":                     {File: "a.c", Line: 1},
		"p:g/ inline:kmalloc":           {Inline: "kmalloc"},
	} {
		if got, ok := ReadCommand(text).SourcePlace(); !ok || got != want {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "p", "p vfs_read", "p mod:sym", "p mod.x:sym", "p a.c:0", "p a.c:1x", "p a.c:99999999999", "p a:7", "w a.c:7", "p inline:", "-:x a.c:7", "p /bin/sh:0x10"} {
		if got, ok := ReadCommand(text).SourcePlace(); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
	for _, tt := range [][2]string{
		{"p fs/a.c:7 a=%di", "p:p_fs_a_c_7 f+8 a=%di"},
		{"p:g/ inline:g", "p:g/p_inline_g f+8"},
		{"p:g/e  inline:g  b=%ax # c", "p:g/e f+8 b=%ax"},
		{"p:e a.c:7", "p:e f+8"},
	} {
		if got := ReadCommand(tt[0]).AtCode("f+8").String(); got != tt[1] {
			t.Errorf("%q: got %q, want %q", tt[0], got, tt[1])
		}
	}
}

func TestPattern(t *testing.T) {
	for _, tt := range []struct{ text, pattern, of string }{
		{"p:io/ vfs_* fd=%di # c", "vfs_*", "p:io/ f fd=%di"},
		{"r4:g/x_*_y vfs_?+0x4", "vfs_?", "r4:g/x_f_y f+0x4"},
		{"p [a-c]%return", "[a-c]", "p f%return"},
		{"t:* sched_*", "sched_*", "t:f f"},
	} {
		c := ReadCommand(tt.text)
		if got := c.Pattern(); got != tt.pattern {
			t.Errorf("%q: pattern %q", tt.text, got)
			continue
		}
		// The command built from tokens must equal the one parsed from its text.
		of := c.OfFunction("f")
		if got := of.String(); got != tt.of {
			t.Errorf("%q: %q of f", tt.text, got)
		}
		d, err := of.Define(Scope{})
		again, errAgain := Parse(tt.of)
		if err != nil || errAgain != nil || d.String() != again.String() || !reflect.DeepEqual(d.src, again.src) {
			t.Errorf("%q: %v, %v; its text %v, %v", tt.text, d, err, again, errAgain)
		}
	}
	for _, text := range []string{"", "p", "p vfs_read", "w vfs_*", "-:vfs_*", "p /bin/*:main", "p mod:f*"} {
		if got := ReadCommand(text).Pattern(); got != "" {
			t.Errorf("%q: pattern %q", text, got)
		}
	}
}

// TestNewCommand: a command made from parts equals its parsed text. Parts that parsing would split are rejected or stay whole.
func TestNewCommand(t *testing.T) {
	for _, tt := range []struct {
		kind  Kind
		place string
		text  string
	}{
		{KindProbe, "vfs_read+0x4", "p:g/e vfs_read+0x4"}, {KindProbe, "mod:f", "p:g/e mod:f"}, {KindReturn, "vfs_read", "r:g/e vfs_read"},
		{KindWatch, "w@v:8", "w:g/e w@v:8"}, {KindTracepoint, "sched_switch", "t:g/e sched_switch"}, {KindProbe, "twice(unsigned long)", "p:g/e twice(unsigned long)"},
	} {
		d, err := NewCommand(tt.kind, "g", "e", tt.place).Define(Scope{})
		again, errAgain := Parse(tt.text)
		if err != nil || errAgain != nil || !reflect.DeepEqual(d, again) {
			t.Errorf("%q: %+v, %v; its text %+v, %v", tt.text, d, err, again, errAgain)
		}
	}
	for _, name := range []string{"a b", "a x #", "a#", "a/b", "a:b", "a\tb"} {
		if d, err := NewCommand(KindProbe, "g", name, "f").Define(Scope{}); err == nil {
			t.Errorf("event %q: %v", name, d)
		}
	}
	for _, place := range []string{"", "f\n", "f+", "f%x"} {
		if d, err := NewCommand(KindProbe, "g", "e", place).Define(Scope{}); err == nil {
			t.Errorf("place %q: %v", place, d)
		}
	}
	if d, err := NewCommand(KindProbe, "g", "e", "f b # c").Define(Scope{}); err != nil || d.Place.Symbol != "f b # c" || len(d.Args) > 0 {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestCheckCommand checks which commands are rejected without a guest.
func TestCheckCommand(t *testing.T) {
	for _, text := range []string{
		"", " # nothing", "p vfs_*", "r4:g/* vfs_*%return", "p fs/read_write.c:450", "p:x inline:f a=%di", "-:x", "!p:x f", "w:x rw@v:8", "t sched_switch", "p /bin/sh:0x10",
	} {
		if err := ReadCommand(text).Check(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]struct {
		code   Code
		column int
	}{
		"q f":                              {CodeBadCommand, 0},
		"p":                                {CodeNoPlace, 2},
		"-x":                               {CodeBadCommand, 0},
		"p vfs_[":                          {CodeBadProbeAddr, 2},
		"p vfs_* 1a=%di":                   {CodeBadArgName, 4},
		"p fs/read_write.c:450 a=%nothing": {CodeBadRegName, 30},
	} {
		var e *SyntaxError
		if err := ReadCommand(text).Check(); !errors.As(err, &e) || e.Code != want.code || e.Column != want.column {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestWithParameters(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"p:x f", 2, "p:kprobes/x f arg1=$arg1 arg2=$arg2"},
		{"p:x f arg1=%di a=$arg2", 3, "p:kprobes/x f arg1=%di a=$arg2 _arg1=$arg1 arg3=$arg3"},
		{"p:x f $arg1", 1, "p:kprobes/x f arg1=$arg1"},
	} {
		d, err := Parse(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		before := d.String()
		full, err := d.WithParameters(tt.n, Scope{})
		if err != nil || full.String() != tt.want || d.String() != before || full.AutoName != d.AutoName {
			t.Errorf("%q with %d: %v, %v", tt.text, tt.n, full, err)
		}
		if again, err := Parse(tt.want); err != nil || !reflect.DeepEqual(again.Args, full.Args) || again.Place != full.Place {
			t.Errorf("%q: %v, %v, not as read", tt.text, again, err)
		}
	}
	d, err := Parse("p:x f+4")
	if err != nil {
		t.Fatal(err)
	}
	for i := range MaxArgs {
		d.Args = append(d.Args, Arg{Name: fmt.Sprintf("a%d", i), Text: "%di", Fetch: Register{}, Type: defaultType})
	}
	var e *SyntaxError
	if _, err := d.WithParameters(1, Scope{}); !errors.As(err, &e) || e.Code != CodeTooManyArgs {
		t.Errorf("more arguments than there can be: %v", err)
	}
}
