package event

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// filterDef has a value of every kind that a filter can meet.
const filterDef = `p:e vfs_read u=%di:u64 s=%si:s32 b=%dx x=%cx:u8 f=%r8:b3@2/8 name=+0(%r9):string lit=\"lit" arr=+0(%r9):u8[2] far=+0(%bx):u32 sym=%di:symstr gone=+0(%bx):string`

// TestFilterErrors is the exact table of errors.
func TestFilterErrors(t *testing.T) {
	long := strings.Repeat("u == 1 && ", 128) + "u == 1"
	for _, tt := range []struct {
		text   string
		code   Code
		column int
		detail string
	}{
		{"", CodeNoFilter, 0, "it has the form FIELD OP VALUE"},
		{"   ", CodeNoFilter, 0, "it has the form FIELD OP VALUE"},
		{"u", CodeInvalidOp, 1, "want one of == != < <= > >= & ~ after a field"},
		{"u = 1", CodeInvalidOp, 2, "want one of == != < <= > >= & ~ after a field"},
		{"u && s == 1", CodeInvalidOp, 2, "want one of == != < <= > >= & ~ after a field"},
		{"u ==", CodeInvalidValue, 4, "nothing to compare with"},
		{"u == x", CodeInvalidValue, 5, ""},
		{"u == -", CodeInvalidValue, 5, ""},
		{"u == 1 s == 2", CodeInvalidOp, 7, "want && or || between terms"},
		{"u == 1 & s == 2", CodeInvalidOp, 7, "want && or || between terms"},
		{"u == 1 &&", CodeInvalidFilter, 9, "a term has the form FIELD OP VALUE"},
		{"u == 1 || && s == 1", CodeInvalidFilter, 10, "a term has the form FIELD OP VALUE"},
		{"(u == 1", CodeTooManyOpen, 0, ""},
		{"u == 1 && ((s == 1)", CodeTooManyOpen, 10, ""},
		{"(u == 1 s", CodeInvalidOp, 8, "want && or || between terms, or )"},
		{"u == 1)", CodeTooManyClose, 6, ""},
		{"()", CodeInvalidFilter, 1, "a term has the form FIELD OP VALUE"},
		{"!", CodeInvalidFilter, 1, "a term has the form FIELD OP VALUE"},
		{"3 == u", CodeFieldNotFound, 0, ""},
		{"nope == 1", CodeFieldNotFound, 0, "there are u, s, b, x, f, name, lit, far, sym, gone, cpu, common_flags, common_preempt_count, common_pid, comm"},
		{"__probe_ret_ip == 1", CodeFieldNotFound, 0, ""},
		{`name == "abc`, CodeMissingQuote, 8, ""},
		{`name == 'abc"`, CodeMissingQuote, 8, ""},
		{`name == "` + strings.Repeat("x", 256) + `"`, CodeOperandTooLong, 264, "at most 255 bytes"},
		{`name == 3`, CodeExpectString, 8, "name is text: put quotes around the value"},
		{`u == "3"`, CodeExpectDigit, 5, "u is a number"},
		{`sym == "vfs_read"`, CodeExpectDigit, 7, "sym is a number"},
		{`name < "abc"`, CodeIllegalFieldOp, 5, "text has == != ~"},
		{`name & 3`, CodeIllegalFieldOp, 5, "text has == != ~"},
		{`name ~ "["`, CodeInvalidFilter, 7, `pattern "[": the bracket at byte 1 is not closed`},
		{`u == 1 || lit ~ '!a[b-'`, CodeInvalidFilter, 16, `pattern "a[b-": the bracket at byte 2 is not closed`},
		{`u ~ "3*"`, CodeIllegalFieldOp, 2, "numbers have == != < <= > >= &"},
		{`arr == 1`, CodeIllegalFieldOp, 0, "an array has no one value to compare"},
		{"u == 18446744073709551616", CodeIllegalIntval, 5, "u can be 0 to 18446744073709551615"},
		{"u == -1", CodeIllegalIntval, 5, "u can be 0 to 18446744073709551615"},
		{"u == 12x", CodeIllegalIntval, 5, "u can be 0 to 18446744073709551615"},
		{"u == 09", CodeIllegalIntval, 5, "u can be 0 to 18446744073709551615"},
		{"s == 2147483648", CodeIllegalIntval, 5, "s can be -2147483648 to 2147483647"},
		{"s == -2147483649", CodeIllegalIntval, 5, "s can be -2147483648 to 2147483647"},
		{"x == 256", CodeIllegalIntval, 5, "x can be 0 to 255"},
		{"f == 8", CodeIllegalIntval, 5, "f can be 0 to 7"},
		{"cpu == -1", CodeIllegalIntval, 7, "cpu can be 0 to 4294967295"},
		{long, CodeTooManyPreds, 1280, "at most 128"},
		{strings.Repeat("(", 65) + "u == 1" + strings.Repeat(")", 65), CodeTooManyPreds, 64, "too deep inside one another"},
		{strings.Repeat("!", 64) + "u == 1", CodeTooManyPreds, 64, "too deep inside one another"},
		{"u == 1\n", CodeBadCharacter, 6, ""},
		{"u == 1 " + strings.Repeat(" ", maxFilter-6), CodeCommandTooLong, maxFilter, "a filter has at most 4095 bytes"},
	} {
		_, err := compile(t, filterDef, Options{Tasks: true}).Filter(tt.text)
		var e *SyntaxError
		if !errors.As(err, &e) {
			t.Errorf("%.40q: error %v", tt.text, err)
			continue
		}
		if e.Code != tt.code || e.Column != tt.column || tt.detail != "" && e.Detail != tt.detail || e.Text != tt.code.Text() {
			t.Errorf("%.40q: %s at %d (%s), want %s at %d (%s)", tt.text, e.Code, e.Column, e.Detail, tt.code, tt.column, tt.detail)
		}
		if !errors.Is(err, syscall.EINVAL) || strings.ContainsAny(e.Command, "\n\t") {
			t.Errorf("%.40q: errno %v, command %q", tt.text, e.Errno, e.Command)
		}
	}
	for _, text := range []string{"common_pid == 1", `comm == "x"`} {
		_, err := compile(t, filterDef, Options{}).Filter(text)
		var e *SyntaxError
		if !errors.As(err, &e) || e.Code != CodeNoProfile || !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("%s without a profile: %v", text, err)
		}
	}
}

// FuzzFilter wants of every text an error with a place in it, or an expression
// that reads back.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{
		`u > 100 && s == 3`, `!(name ~ "/etc/*") || cpu == 1`, `((u == 1))`, `name == "`, `u & 0x10 && !b < 3`, `comm != 'x' || x == 0377`, "!!!!u==1)",
	} {
		f.Add(s)
	}
	layout := compile(f, filterDef, Options{Tasks: true})
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := layout.Filter(text)
		var e *SyntaxError
		switch {
		case err == nil:
			again, err := layout.Filter(filter.String())
			if err != nil || fmt.Sprint(describe(again.Root())) != fmt.Sprint(describe(filter.Root())) {
				t.Fatalf("%q reads back as %v", text, err)
			}
		case !errors.As(err, &e) || e.Column < 0 || e.Column > len(text) || e.Text == "" || e.Caret("") == "":
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func describe(n *FilterNode) string {
	if n == nil {
		return ""
	}
	if n.Term != nil {
		return fmt.Sprint(*n.Term)
	}
	return fmt.Sprint("(", describe(n.X), n.Op, describe(n.Y), ")")
}
