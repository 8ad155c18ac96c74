package event

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/probe"
)

// filterDef has a value of every kind that a filter can meet.
const filterDef = `p:e vfs_read u=%di:u64 s=%si:s32 b=%dx x=%cx:u8 f=%r8:b3@2/8 name=+0(%r9):string lit=\"lit" arr=+0(%r9):u8[2] far=+0(%bx):u32 sym=%di:symstr gone=+0(%bx):string`

func filterOf(t testing.TB, f *Fetcher, text string) *Filter {
	t.Helper()
	m, err := f.Filter(text, 1)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// TestFilterErrors is the exact table of what can be wrong.
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
		{"u", CodeInvalidOp, 1, "want one of == != < <= > >= & ~ behind a field"},
		{"u = 1", CodeInvalidOp, 2, "want one of == != < <= > >= & ~ behind a field"},
		{"u && s == 1", CodeInvalidOp, 2, "want one of == != < <= > >= & ~ behind a field"},
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
		{"nope == 1", CodeFieldNotFound, 0, "there are u, s, b, x, f, name, lit, far, sym, gone, cpu, common_flags, common_pid, comm"},
		{"__probe_ret_ip == 1", CodeFieldNotFound, 0, ""},
		{`name == "abc`, CodeMissingQuote, 8, ""},
		{`name == 'abc"`, CodeMissingQuote, 8, ""},
		{`name == "` + strings.Repeat("x", 256) + `"`, CodeOperandTooLong, 264, "at most 255 bytes"},
		{`name == 3`, CodeExpectString, 8, "name is text: put quotes around the value"},
		{`u == "3"`, CodeExpectDigit, 5, "u is a number"},
		{`sym == "vfs_read"`, CodeExpectDigit, 7, "sym is a number"},
		{`name < "abc"`, CodeIllegalFieldOp, 5, "text has == != ~"},
		{`name & 3`, CodeIllegalFieldOp, 5, "text has == != ~"},
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
		{"u == 1 " + strings.Repeat(" ", MaxFilter-6), CodeCommandTooLong, MaxFilter, "a filter has at most 4095 bytes"},
	} {
		_, err := compile(t, filterDef, Options{Profile: idle{}}).Filter(tt.text, 1)
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
		_, err := compile(t, filterDef, Options{}).Filter(text, 1)
		var e *SyntaxError
		if !errors.As(err, &e) || e.Code != CodeNoProfile || !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("%s without a profile: %v", text, err)
		}
	}
}

// TestFilterMatch is a table of what passes.
func TestFilterMatch(t *testing.T) {
	m := newMachine(t, 1)
	m.set(mapped, []byte("/etc/passwd\x00"))
	f := compile(t, filterDef, Options{Profile: idle{}})
	regs := &probe.Regs{RDI: 1 << 63, RSI: 0xffffffff, RDX: 0x1234, RCX: 0x1ff, R8: 0x14, R9: uint64(mapped), RBX: 8, RFLAGS: 2}
	m.handle(t, func(c *probe.Context) {
		for text, want := range map[string]bool{
			"u == 0x8000000000000000": true, "u > 9223372036854775807": true, "u < 1": false, "u >= 9223372036854775808": true,
			"u <= 9223372036854775807": false, "u != 0": true, "s == -1": true, "s < 0": true, "s > -2": true, "s & 4": true,
			"s >= 0": false, "b & 0x30": true, "b & 0x8": false, "x == 255": true, "x == 0377": true, "f == 5": true,
			`name == "/etc/passwd"`: true, `name == '/etc/passwd'`: true, `name == "/etc"`: false, `name != "/etc"`: true,
			`name ~ "/etc/*"`: true, `name ~ "*passwd"`: true, `name ~ "*c/p*"`: true, `name ~ "/???/passw[a-e]"`: true,
			`name ~ "passwd"`: false, `lit == "lit"`: true, `lit ~ "l?t"`: true, "far == 0": false, "far != 0": false, "!(far == 0)": true,
			`gone == ""`: false, `gone != "x"`: false, `gone ~ "*"`: false, "cpu == 0": true, "CPU < 1": true, "common_pid == 1": true,
			`comm == "swapper"`: true, `comm ~ "swap*"`: true, `COMM != "swapper"`: false, "common_flags & 1": true,
			"__probe_ip == 0xffffffff81001000": true, "sym == 0x8000000000000000": true,
			"u == 0 || s == -1 && x == 0": false, "(u == 0 || s == -1) && x == 255": true, "!u == 0": true, "!!u == 0": false,
			"x==255&&f==5": true, "  x  ==  255  ": true, "u == 0 && far == 0 || x == 255": true,
		} {
			if got := filterOf(t, f, text).Match(c); got != want {
				t.Errorf("%s: %v, want %v", text, got, want)
			}
		}
		all := filterOf(t, f, `far == 1 || comm == "x" || lit ~ "z*" || name ~ "*x*y*" || s == -1`)
		quiet := filterOf(t, f, `comm == "x" || lit ~ "z*" || name ~ "*x*y*" || u == 1`)
		if n := testing.AllocsPerRun(100, func() { all.Match(c); quiet.Match(c) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
	m.hit(0, regs)
}

// naiveFilter decides by what a decoded record says.
func naiveFilter(n *FilterNode, f *Fetcher, r *Record, c *probe.Context) bool {
	switch n.Op {
	case FilterNot:
		return !naiveFilter(n.X, f, r, c)
	case FilterAnd:
		return naiveFilter(n.X, f, r, c) && naiveFilter(n.Y, f, r, c)
	case FilterOr:
		return naiveFilter(n.X, f, r, c) || naiveFilter(n.Y, f, r, c)
	}
	t := n.Term
	d := Datum{Text: r.Comm}
	switch t.Field {
	case FieldValue:
		d = r.Values[t.Value].Data[0]
	case FieldCPU:
		d.Bits = uint64(c.CPU)
	case FieldPID:
		d.Bits = uint64(int64(r.PID))
	case FieldFlags:
		d.Bits = map[bool]uint64{true: 1}[r.IRQsOff]
	case FieldAddr:
		d.Bits = uint64(r.Addr)
	case FieldRet:
		d.Bits = uint64(r.Ret)
	}
	if d.Fault {
		return false
	}
	if t.IsText {
		d.Text = d.Text[:min(len(d.Text), maxFilterText)]
		switch t.Is {
		case Equal:
			return d.Text == t.Text
		case NotEqual:
			return d.Text != t.Text
		}
		return globRegexp(t.Text).MatchString(d.Text)
	}
	sign := 0
	switch a, b := d.Bits, t.Num; {
	case t.Signed && t.Field == FieldValue:
		a = uint64(f.types[t.Value].Type.signed(a))
		fallthrough
	case t.Signed:
		sign = cmpInt(int64(a), int64(b))
	case a < b:
		sign = -1
	case a > b:
		sign = 1
	}
	return map[Comparison]bool{
		Equal: sign == 0, NotEqual: sign != 0, Less: sign < 0, LessEqual: sign <= 0, Greater: sign > 0, GreaterEqual: sign >= 0,
		AnyBit: d.Bits&t.Num != 0,
	}[t.Is]
}

func cmpInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// randomFilter writes an expression that f takes.
func randomFilter(r *rand.Rand, f *Fetcher, depth int) string {
	if depth > 0 && r.IntN(2) == 0 {
		x, y := randomFilter(r, f, depth-1), randomFilter(r, f, depth-1)
		return []string{x + " && " + y, x + " || " + y, "(" + x + " || " + y + ") && " + x, "!(" + x + ")", "!" + x}[r.IntN(5)]
	}
	names := []string{"cpu", "common_pid", "comm", "common_flags"}
	for _, a := range f.types {
		names = append(names, a.Name, a.Name)
	}
	for {
		ops := []string{"==", "!=", "<", "<=", ">", ">=", "&"}
		values := []string{"0", "1", "5", "-3", "100", "255", "0x10000", "0x11000", "0x1ffff", "9223372036854775807"}
		if r.IntN(2) == 0 {
			ops = []string{"==", "!=", "~"}
			values = []string{`"textual"`, `""`, `"*t*"`, `"tex*"`, `"*al"`, `"?*"`, `"literal"`, `"t[e-x]*l"`, `"swapper"`}
		}
		text := fmt.Sprintf("%s %s %s", names[r.IntN(len(names))], ops[r.IntN(len(ops))], values[r.IntN(len(values))])
		if _, err := f.Filter(text, 1); err == nil {
			return text
		}
	}
}

// TestFilterDifferential compares decisions of random filters with what the
// captured records say.
func TestFilterDifferential(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	m := newMachine(t, 1)
	randomMemory(r, m.fakeTarget)
	passed := 0
	const rounds = 3000
	m.handle(t, func(c *probe.Context) {
		for range rounds {
			d := randomDef(r)
			f, err := Compile(d, kernel, Options{Profile: idle{}})
			if err != nil {
				t.Fatal(err)
			}
			filter := filterOf(t, f, randomFilter(r, f, 3))
			at := *c
			at.Regs = randomRegs(r)
			buf, n, got := make([]byte, f.BufSize()), 0, false
			if d.Kind == KindReturn {
				entry := make([]byte, 8+f.EntrySize())
				f.CaptureEntry(&at, entry[8:])
				at.Regs = randomRegs(r)
				n, got = f.CaptureReturn(&at, entry[8:], buf), filter.MatchReturn(&at, entry)
			} else {
				n, got = f.Capture(&at, buf), filter.Match(&at)
			}
			rec, err := f.Decode(buf[:n])
			if err != nil {
				t.Fatal(err)
			}
			if want := naiveFilter(filter.Root(), f, rec, &at); got != want {
				t.Fatalf("%s\nfilter %s: %v, want %v\n%s", d, filter, got, want, f.AppendArgs(nil, rec))
			}
			if got {
				passed++
			}
		}
	})
	m.hit(0, randomRegs(r))
	if passed < rounds/10 || passed > rounds*9/10 {
		t.Errorf("%d of %d passed: the test says little", passed, rounds)
	}
}

// globRegexp translates a pattern that has no backslash.
func globRegexp(pattern string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '*':
			b.WriteString(".*")
		case c == '?':
			b.WriteString(".")
		case c == '[':
			end := strings.IndexByte(pattern[i:], ']')
			b.WriteString(pattern[i : i+end+1])
			i += end
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	return regexp.MustCompile(b.String() + `\z`)
}

// FuzzFilter wants of every text an error with a place in it, or an expression
// that can be evaluated.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{
		`u > 100 && s == 3`, `!(name ~ "/etc/*") || cpu == 1`, `((u == 1))`, `name == "`, `u & 0x10 && !b < 3`, `comm != 'x' || x == 0377`, "!!!!u==1)",
	} {
		f.Add(s)
	}
	m := newMachine(f, 1)
	fetcher := compile(f, filterDef, Options{Profile: idle{}})
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := fetcher.Filter(text, 1)
		var e *SyntaxError
		switch {
		case err == nil:
			m := &machine{fakeTarget: m.fakeTarget, probe: &probe.Kprobe{Symbol: "vfs_read"}}
			m.engine, _ = probe.New(m.fakeTarget, probe.Options{})
			m.handle(t, func(c *probe.Context) { filter.Match(c) })
			m.hit(0, &probe.Regs{})
			again, err := fetcher.Filter(filter.String(), 1)
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
