package event

import (
	_ "embed"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/guestprobe/guestprobe/guest"
)

// vectorsTSV is what Linux 6.12 was seen to answer: see the file's own header.
//
//go:embed testdata/vectors.tsv
var vectorsTSV string

// syntaxTSV are the kernel's own syntax error tests, as observed there.
//
//go:embed testdata/syntax.tsv
var syntaxTSV string

// sameDef compares definitions, except for data that a listing does not keep.
var sameDef = cmp.Options{cmpopts.IgnoreUnexported(Def{}), cmpopts.IgnoreFields(Def{}, "AutoName")}

var x64 = Type{Format: Hex, Size: 8}

func TestParse(t *testing.T) {
	tests := []struct {
		text string
		want *Def
		list string
	}{
		{"p:myread vfs_read fd=%di count=%dx:u64", &Def{
			Kind: KindProbe, Group: "kprobes", Event: "myread", Place: Place{Symbol: "vfs_read"},
			Args: []Arg{{"fd", "%di", Register{RegDI}, x64}, {"count", "%dx:u64", Register{RegDX}, Type{Format: Unsigned, Size: 8}}},
		}, "p:kprobes/myread vfs_read fd=%di count=%dx:u64"},
		{" \tp:g/  do_fork+0x4\r\n # comment", &Def{
			Kind: KindProbe, Group: "g", Event: "p_do_fork_4", AutoName: true, Place: Place{Symbol: "do_fork", Offset: 4},
		}, "p:g/p_do_fork_4 do_fork+4"},
		{"r010:a.b mod:f.isra.0%return $retval", &Def{
			Kind: KindReturn, Group: "a", Event: "b", MaxActive: 8, Place: Place{Module: "mod", Symbol: "f.isra.0"},
			Args: []Arg{{"arg1", "$retval", RetVal{}, x64}},
		}, "r8:a/b mod:f.isra.0 arg1=$retval"},
		{"pfoo:-a/b 0xffffffff81001000", &Def{
			Kind: KindProbe, Group: "-a", Event: "b", Place: Place{Addr: addrRead},
		}, "p:-a/b 0xffffffff81001000"},
		{"p mod:f$x*", &Def{
			Kind: KindProbe, Group: "kprobes", Event: "p_mod_f_x__0", AutoName: true, Place: Place{Module: "mod", Symbol: "f$x*"},
		}, "p:kprobes/p_mod_f_x__0 mod:f$x*"},
		{"p:e /bin/sh:0x10(32) a=%ax:s32", &Def{
			Kind: KindProbe, Group: "kprobes", Event: "e", Place: Place{Symbol: "/bin/sh:0x10", Semaphore: 32},
			Args: []Arg{{"a", "%ax:s32", Register{RegAX}, Type{Format: Signed, Size: 4}}},
		}, "p:kprobes/e /bin/sh:0x10(0x20) a=%ax:s32"},
		{"p 4096", &Def{
			Kind: KindProbe, Group: "kprobes", Event: "p_0x1000", AutoName: true, Place: Place{Addr: 4096},
		}, "p:kprobes/p_0x1000 0x1000"},
		{`p:e f $stack $stack07 @_a-0x10:b4@4/32 -u8(+0(@16)):ustring[3] \-1 c=\"x" $COMM:string ++8(%ax):symstr`, &Def{
			Kind: KindProbe, Group: "kprobes", Event: "e", Place: Place{Symbol: "f"},
			Args: []Arg{
				{"arg1", "$stack", StackPointer{}, x64},
				{"arg2", "$stack07", StackSlot{7}, x64},
				{"arg3", "@_a-0x10:b4@4/32", Deref{Of: SymbolAddr{"_a", -16}}, Type{Format: Bits, Size: 4, Width: 4, Offset: 4}},
				{"arg4", "-u8(+0(@16)):ustring[3]", Deref{-8, true, Deref{Of: Deref{Of: Immediate{16}}}}, Type{Format: UString, Size: 4, Count: 3}},
				{"arg5", `\-1`, Immediate{1<<64 - 1}, x64},
				{"c", `\"x"`, Literal{"x"}, stringType},
				{"arg7", "$COMM:string", Comm{}, stringType},
				{"arg8", "++8(%ax):symstr", Deref{8, false, Register{RegAX}}, Type{Format: SymStr, Size: 4}},
			},
		}, `p:kprobes/e f arg1=$stack arg2=$stack07 arg3=@_a-0x10:b4@4/32 arg4=-u8(+0(@16)):ustring[3] arg5=\-1 c=\"x" arg7=$COMM:string arg8=++8(%ax):symstr`},
	}
	for _, tt := range tests {
		d, err := Parse(tt.text)
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		if diff := cmp.Diff(tt.want, d, cmpopts.IgnoreUnexported(Def{})); diff != "" {
			t.Errorf("%q: -want +got\n%s", tt.text, diff)
		}
		if got := d.String(); got != tt.list {
			t.Errorf("%q: listed as %q, want %q", tt.text, got, tt.list)
		}
		again, err := Parse(d.String())
		if err != nil {
			t.Errorf("%q: parse of the listing: %v", tt.text, err)
		} else if diff := cmp.Diff(d, again, sameDef); diff != "" {
			t.Errorf("%q: -once +twice\n%s", tt.text, diff)
		}
	}
}

// TestRefusals has what the kernel's vectors leave out: the rest of its error
// list, boundaries, the shifted carets, and the errors that are ours.
func TestRefusals(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := []struct {
		text string
		want Code // "" = accepted
		col  int
	}{
		{"", CodeBadCommand, 0},
		{"p", CodeNoPlace, 2},
		{"f vfs_read", CodeBadCommand, 0},
		{"p bin/sh:0x10", CodeFilePlace, 2},
		{"p /bin/sh:0x10", CodeFilePlace, 2}, // the image of the test has no files
		{"p /bin/sh:0x10%return", CodeFilePlace, 2},
		{"p /bin/sh:0x10%back", CodeBadAddrSuffix, 14},
		{"p /bin/sh:0x10(0x20)", CodeFilePlace, 2},
		{"p /bin/sh:0x10(0x20", CodeRefcntOpenBrace, 14},
		{"p /bin/sh:0x10(0x20)%return", CodeRefcntBadSuffix, 20},
		{"p /bin/sh:0x10(x)", CodeBadRefcnt, 15},
		{"p /bin/sh:0x10(0x21)", CodeBadRefcnt, 15},
		{"p /bin/sh:0x10(0)", CodeBadRefcnt, 15},
		{"p /bin/sh:main-1", CodeBadProbeAddr, 2},
		{"p /bin/:main", CodeBadProbeAddr, 2},
		{"p /bin/sh:", CodeBadProbeAddr, 2},
		{"p a\x01b", CodeBadCharacter, 3},
		{"p vfs_read " + strings.Repeat("a", 4083), CodeArgTooLong, 11},
		{"p vfs_read " + strings.Repeat("a", 4084), CodeCommandTooLong, 4094},
		{"p vfs_read" + strings.Repeat(" %di", 128), "", 0},
		{"p vfs_read" + strings.Repeat(" %di", 129), CodeTooManyArgs, 11},
		{"r0 vfs_read", CodeBadMaxact, 1},
		{"r4096 vfs_read", "", 0},
		{"r4097 vfs_read", CodeMaxactTooBig, 1},
		{"r4294967296 vfs_read", CodeBadMaxact, 1},
		{"r1" + strings.Repeat("0", 63) + " vfs_read", CodeBadMaxact, 1},
		{"r010:x vfs_read", "", 0},
		{"r10fuzz:x vfs_read", CodeBadMaxact, 1},
		{"p name_show", CodeNonUniqSymbol, 2},
		{"p vfs_read+-1", CodeBadProbeAddr, 2},
		{"p vfs_read+4294967295", "", 0},
		{"p vfs_read+4294967296", CodeBadProbeAddr, 2},
		{"p +%return", CodeBadProbeAddr, 2},
		{"p 0x5+0", CodeBadProbeAddr, 2},
		{"p :f", CodeBadProbeAddr, 2},
		{"r with_endbr+4", "", 0},
		{"r vfs_read+4", CodeBadRetprobe, 2},
		{"r vfs_read+0x400", "", 0}, // kfree's entry
		{"r 0xffffffff81001000 $retval $arg1", "", 0},
		{"r 0xffffffff81001001", CodeBadRetprobe, 2},
		{"p with_endbr+4 $arg1", "", 0},
		{"p:" + long + "/x vfs_read", "", 0},
		{"p:" + long + "a/x vfs_read", CodeGroupTooLong, 2},
		{"p:" + long + " vfs_read", "", 0},
		{"p:" + long + "a vfs_read", CodeEventTooLong, 2},
		{"p:1/x vfs_read", CodeBadGroupName, 2},
		{"p:g/- vfs_read", CodeBadEventName, 4},
		{"p:/x nofunc", CodeBadProbeAddr, 5}, // place before name, as in the kernel
		{"p vfs_read $arg", CodeBadVar, 11},
		{"p vfs_read $arg0", CodeBadArgNum, 11},
		{"p vfs_read $arg2048", "", 0},
		{"p vfs_read $arg2049", CodeBadArgNum, 11},
		{"p vfs_read x=$arg1x", CodeBadVar, 13},
		{"p vfs_read+20 x=$arg1", CodeNofentryArgs, 16},
		{"r vfs_read $retvalx", CodeBadVar, 11},
		{"r vfs_read $retval->x", CodeNosupBTFArg, 11},
		{"p vfs_read+20 file", CodeNosupBTFArg, 14},
		{"p vfs_read $stack2048", "", 0},
		{"p vfs_read $stack99999999999999999999", CodeBadVar, 11},
		{"p vfs_read $stackx", CodeBadVar, 11},
		{"p vfs_read @0x", CodeBadMemAddr, 11},
		{"p vfs_read @0xffffffffffffffff", "", 0},
		{"p vfs_read @0x10000000000000000", CodeBadMemAddr, 11},
		{`p vfs_read \`, CodeBadImm, 12},
		{`p vfs_read \18446744073709551615 \-9223372036854775808 \0777`, "", 0},
		{`p vfs_read \18446744073709551616`, CodeBadImm, 12},
		{`p vfs_read \-9223372036854775809`, CodeBadImm, 12},
		{`p vfs_read \+9223372036854775808`, CodeBadImm, 12},
		{`p vfs_read \08`, CodeBadImm, 12},
		{`p vfs_read \1_0`, CodeBadImm, 12},
		{`p vfs_read \0b1`, CodeBadImm, 12},
		{`p vfs_read \"`, CodeImmstrNoClose, 13},
		{`p vfs_read \""`, "", 0},
		{`p vfs_read \"a":u8`, CodeNeedStringType, 16},
		{`p vfs_read $comm:string[2]`, CodeNeedStringType, 17},
		{`p vfs_read +0(\"a")`, CodeCommCantDeref, 14},
		{"p vfs_read +0()", CodeBadFetchArg, 14},
		{"p vfs_read +(%di)", CodeBadDerefOffs, 11},
		{"p vfs_read +u(%di)", CodeBadDerefOffs, 11},
		{"p vfs_read +9223372036854775807(%di)", "", 0},
		{"p vfs_read +9223372036854775808(%di)", CodeBadDerefOffs, 11},
		{"p vfs_read +0(%di)x", CodeDerefSuffix, 18},
		{"p vfs_read +0(+0(%di)x)", CodeDerefSuffix, 21},
		{"p vfs_read +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(@0)))))))))))))", "", 0},
		{"p vfs_read +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(@_sdata))))))))))))", "", 0},
		{"p vfs_read +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(@_sdata)))))))))))))", CodeTooManyOps, 14},
		{"p vfs_read +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(%di))))))))))))))", "", 0},
		{"p vfs_read +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(", CodeDerefOpenBrace, 56},
		{"p vfs_read %di:", CodeBadType, 15},
		{"p vfs_read %di:%pd", CodeNoProfile, 15},
		{"p vfs_read +0(%di):u8[]", CodeBadArrayNum, 22},
		{"p vfs_read +0(%di):u8[64]", "", 0},
		{"p vfs_read +0(%di):u8[65]", CodeArrayTooBig, 22},
		{"p vfs_read +u0(%di):u8[2]", "", 0},
		{"p vfs_read %di:u8[2]", CodeBadString, 15},
		{"p vfs_read @_sdata:symstr", "", 0},
		{"p vfs_read $stack:symstr", CodeBadSymstring, 18},
		{"p vfs_read +u0(%di):symstr", CodeBadSymstring, 23},
		{"p vfs_read +0(%di):symstr[2]", CodeBadString, 22},
		{"p vfs_read %di:b8", CodeBadType, 15},
		{"p vfs_read %di:b1@8/8", CodeBadBitfield, 15},
		{"p vfs_read %di:b1@7/8 %di:b8@0/8", "", 0},
		{"p vfs_read %di:b@0/8", CodeBadBitfield, 15},
		{"p vfs_read %di:b18446744073709551615@1/8", CodeBadBitfield, 15},
		{"p vfs_read " + strings.Repeat("a", 32) + "=%di", "", 0},
		{"p vfs_read common_pid=%di", CodeUsedArgName, 11},
		{"p vfs_read arg2=%di %si", CodeUsedArgName, 20},
		{"p vfs_read a=+" + strings.Repeat("0", 57) + "(%di)", "", 0},
		{"p vfs_read a=+" + strings.Repeat("0", 58) + "(%di)", CodeArgTooLong, 13},
		// The caret quirks of G.5.
		{"p:z1 vfs_read +0($stack):b10@a/16", CodeBadBitfield, 28},
		{"p:z8 vfs_read +u0(%none)", CodeBadRegName, 17},
		{"p vfs_read -u0(%none)", CodeBadRegName, 14},
		{"p vfs_read ++0(%none)", CodeBadRegName, 15},
		{"p vfs_read +1234567(%di):b", CodeBadType, 25},
		{"p vfs_read +1234567(%di):b@/8", CodeBadBitfield, 29}, // never past the command
		// 3072 bytes of arguments: 6 arrays of 512.
		{"p vfs_read" + strings.Repeat(" +0(%di):u64[64]", 6), "", 0},
		{"p vfs_read" + strings.Repeat(" +0(%di):u64[64]", 6) + " +0(%di):u8", CodeEventTooBig, 11 + 16*6 + 3},
	}
	for _, tt := range tests {
		_, err := ParseIn(tt.text, Scope{Symbols: kernel})
		var e *SyntaxError
		if err != nil && !errors.As(err, &e) {
			t.Errorf("%q: error %v is no *SyntaxError", tt.text, err)
			continue
		}
		got, col := Code(""), 0
		if e != nil {
			got, col = e.Code, e.Column
		}
		if got != tt.want || col != tt.col {
			t.Errorf("%.80q: got %q at %d, want %q at %d", tt.text, got, col, tt.want, tt.col)
		}
	}
}

// TestCompileRefuses what Parse cannot see.
func TestCompileRefuses(t *testing.T) {
	tests := []struct {
		text   string
		want   Code
		col    int
		errno  string
		detail string
	}{
		{"p nofunc", CodeBadProbeAddr, 2, "invalid argument", `no symbol "nofunc"`},
		{"p nomod:f", CodeBadProbeAddr, 2, "invalid argument", `no symbol "nomod:f"`},
		{"p name_show", CodeNonUniqSymbol, 2, "invalid argument", "ambiguous"},
		{"r vfs_read+20", CodeBadRetprobe, 2, "invalid argument", "not a function's entry"},
		{"p vfs_read+20 +0($arg1)", CodeNofentryArgs, 17, "invalid argument", ""},
		{"p vfs_read %di a=@nosym+4", CodeBadProbeAddr, 2, "no such file or directory", "@nosym: symbol not found"},
		{"p vfs_read @_sdata+x", CodeBadProbeAddr, 2, "no such file or directory", "@_sdata+x"},
		{"p vfs_read @name_show", CodeBadProbeAddr, 2, "invalid argument", "ambiguous"},
		{"p vfs_read a=$comm", CodeNoProfile, 13, "operation not supported", "$comm"},
	}
	for _, tt := range tests {
		d, err := Parse(tt.text)
		if err != nil {
			t.Errorf("%q: parse: %v", tt.text, err)
			continue
		}
		_, err = Compile(d, Scope{Symbols: kernel}, Options{})
		var e *SyntaxError
		if !errors.As(err, &e) || e.Code != tt.want || e.Column != tt.col || e.Errno.Error() != tt.errno || !strings.Contains(e.Detail, tt.detail) || e.Command != tt.text {
			t.Errorf("%q: got %+v, want %s", tt.text, err, tt.want)
		}
	}
}

// TestCompileByHand takes a definition that nothing has parsed.
func TestCompileByHand(t *testing.T) {
	d := &Def{Kind: KindProbe, Group: "g", Event: "e", Place: Place{Symbol: "vfs_read"}, Args: []Arg{{Name: "a", Text: "%di"}}}
	f, err := Compile(d, Scope{Symbols: kernel}, Options{})
	if err != nil || f.Addr() != addrRead || f.Def() != d || f.StackArgs() != nil {
		t.Errorf("got %+v, %v", f, err)
	}
	d.Args[0].Text = "%none"
	var e *SyntaxError
	if _, err = Compile(d, Scope{Symbols: kernel}, Options{}); !errors.As(err, &e) || e.Code != CodeBadRegName || e.Column != 17 {
		t.Errorf("got %v, want BAD_REG_NAME at 17", err)
	}
}

func TestErrorText(t *testing.T) {
	_, err := Parse("p  vfs_read   %none")
	var e *SyntaxError
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	if got, want := e.Error(), "Invalid register name (registers have the names of struct pt_regs, as %di or %rdi) at column 11: EINVAL [BAD_REG_NAME]"; got != want {
		t.Errorf("Error: %q, want %q", got, want)
	}
	if got, want := e.Caret("  "), "  p vfs_read %none\n             ^"; got != want {
		t.Errorf("Caret:\n%s\nwant\n%s", got, want)
	}
	want := "trace_kprobe: error: Invalid register name\n  Command: p vfs_read %none\n                      ^\n"
	if got := e.ErrorLog(); got != want {
		t.Errorf("ErrorLog:\n%s\nwant\n%s", got, want)
	}
}

// TestCodes wants a text for every code, and none twice but on purpose.
func TestCodes(t *testing.T) {
	texts := map[string]Code{}
	for code, r := range reasons {
		if r.text == "" || texts[r.text] != "" {
			t.Errorf("%s: text %q, also of %q", code, r.text, texts[r.text])
		}
		texts[r.text] = code
	}
	if Code("NONE").Text() != "" {
		t.Error("an unknown code has a text")
	}
}

func TestDeletion(t *testing.T) {
	def := func(s string) *Def {
		d, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	a := def("p:g/e vfs_read+4 x=%di %si")
	for _, tt := range []struct {
		text string
		want bool
	}{
		{"-:e", true}, {"-:g/e", true}, {"-:g/", true}, {" -:e # x", true}, {"-:h/", false}, {"-:f", false}, {"-:h/e", false},
		{"-:e vfs_read+4", true}, {"-:e vfs_read", false}, {"-:e vfs_read+4 x=%di", true}, {"-:e vfs_read+4 x=%di arg2=%si", true},
		{"-:e vfs_read+4 %di", false}, {"-:/", false}, {"-:/e", false},
		{"!p:g/e vfs_read+4 x=%di arg2=%si", true}, {"!p:e", true}, {"!:e", true}, {"!r:g/e", true}, {"!p:g/", true}, {"!p:h/e vfs_read+4", false}, {"-:e vfs_read+4 x=%di arg2=%si y=%di", false},
	} {
		x, err := ParseDeletion(tt.text)
		if err != nil || x.Matches(a) != tt.want || !ReadCommand(tt.text).IsDeletion() {
			t.Errorf("%q: %+v, %v; want match %v", tt.text, x, err, tt.want)
		}
	}
	for _, text := range []string{"-", "-:", "-e", "!", "!p f", "", "p:e f", "-:\x01"} {
		var e *SyntaxError
		if _, err := ParseDeletion(text); !errors.As(err, &e) {
			t.Errorf("%q: got %v, want a *SyntaxError", text, err)
		}
	}
}

func TestJoin(t *testing.T) {
	for _, tt := range []struct {
		have, text string
		want       Code
		col        int
	}{
		{"p:e vfs_read %di", "p:e kfree %di", "", 0},
		{"p:e 0x1000", "p:e 0x2000", "", 0}, // the kernel takes any two addresses for the same
		{"p:e 0x1000", "p:e 0x1000", CodeSameProbe, 0},
		{"p:e vfs_read %di", "p:e vfs_read %si", "", 0},
		{"p:e vfs_read %di", "p:e vfs_read arg1=%di", CodeSameProbe, 0},
		{"p:e vfs_read %di", "r:e vfs_read $retval", CodeDiffProbeType, 0},
		{"p:e vfs_read %di", "p:e kfree", CodeDiffArgType, 10},
		{"p:e vfs_read %di", "p:e kfree %di %si", CodeDiffArgType, 14},
		{"p:e vfs_read %di %si:u8", "p:e kfree %di %si", CodeDiffArgType, 14},
		{"p:e vfs_read %di:u8", "p:e kfree %di:b1@0/8", "", 0},
		{"p:e vfs_read +0(%di):u8[2]", "p:e kfree +0(%di):u8[3]", CodeDiffArgType, 10},
	} {
		have, err := Parse(tt.have)
		if err != nil {
			t.Fatal(err)
		}
		d, err := Parse(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		event := Probes{}
		if err := event.Add(have); err != nil {
			t.Fatal(err)
		}
		err = event.Add(d)
		var e *SyntaxError
		if errors.As(err, &e); tt.want == "" && err != nil || tt.want != "" && (e == nil || e.Code != tt.want || e.Column != tt.col) {
			t.Errorf("%q to %q: got %v, want %q at %d", tt.text, tt.have, err, tt.want, tt.col)
		}
		event.Remove(d)
		if event.Remove(have); err == nil && event.Len() != 0 {
			t.Errorf("%q and %q: left are %v", tt.have, tt.text, event)
		}
	}
	d, _ := Parse("p:e f")
	var e *SyntaxError
	if !errors.As(d.ExistsError(), &e) || e.Code != CodeEventExist || e.Column != 0 {
		t.Errorf("Taken: %v", d.ExistsError())
	}
}

func TestLocateEndbr(t *testing.T) {
	for def, want := range map[string]guest.GVA{
		"p with_endbr": addrEndbr + 4, "p with_endbr+4": addrEndbr + 4, "r with_endbr": addrEndbr, "r with_endbr+4": addrEndbr, "w @with_endbr": addrEndbr,
	} {
		d, err := ParseIn(def, Scope{Symbols: kernel})
		if err != nil {
			t.Fatal(err)
		}
		if addr, fn, err := d.locate(kernel); addr != want || fn == "" || err != nil {
			t.Errorf("%s: got %v, %v, %v", def, addr, fn, err)
		}
	}
	if _, found := kernel.Find(guest.GVA(1)); found {
		t.Error("the fake has a symbol everywhere")
	}
}

// TestDocumented compiles the examples of docs/definitions.md.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/definitions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```kprobe_events\n")
	block, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no block of examples")
	}
	for _, text := range strings.Split(strings.TrimSpace(block), "\n") {
		compile(t, text, Options{Tasks: true})
	}
}

// FuzzParse wants no panic; errors that point into the command; and a listing
// that parses to the same definition.
func FuzzParse(f *testing.F) {
	for _, row := range strings.Split(vectorsTSV, "\n") {
		if col := strings.Split(row, "\t"); len(col) > 1 {
			f.Add(col[1])
		}
	}
	for _, row := range strings.Split(syntaxTSV, "\n") {
		if col := strings.Split(row, "\t"); len(col) > 1 {
			f.Add(col[1])
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if _, err := ParseDeletion(text); err != nil {
			checkError(t, text, err)
		}
		if err != nil {
			checkError(t, text, err)
			return
		}
		if d2, err := ParseIn(text, Scope{Symbols: kernel}); err != nil {
			checkError(t, text, err)
		} else if diff := cmp.Diff(d, d2, sameDef); diff != "" {
			t.Errorf("%q: symbols change the definition: %s", text, diff)
		}
		list := d.String()
		if len(list) > maxCommand {
			return // arg1= and the like made it longer
		}
		again, err := Parse(list)
		if err != nil {
			t.Fatalf("%q: listing %q: %v", text, list, err)
		}
		if diff := cmp.Diff(d, again, sameDef); diff != "" || again.String() != list {
			t.Errorf("%q: listing %q: -once +twice\n%s", text, list, diff)
		}
		if c, err := Compile(d, Scope{Symbols: kernel}, Options{Tasks: true}); err != nil {
			checkError(t, text, err)
		} else if c.MaxBytes > maxRecord {
			t.Errorf("%q: records of %d bytes", text, c.MaxBytes)
		}
	})
}

func checkError(t *testing.T, text string, err error) {
	t.Helper()
	var e *SyntaxError
	if !errors.As(err, &e) || !errors.Is(err, e.Errno) {
		t.Fatalf("%q: error %v is no *SyntaxError that wraps its errno", text, err)
	}
	// One past the end for a missing part of a token, two for a missing token.
	if e.Column < 0 || e.Column > len(e.Command)+1 || e.Text == "" || e.Text != e.Code.Text() || e.Errno == 0 {
		t.Fatalf("%q: malformed error %+v", text, e)
	}
}

// TestEventsOfLongNames: names of events that are made of long names of functions differ where these do.
func TestEventsOfLongNames(t *testing.T) {
	long := strings.Repeat("f", 61)
	seen := map[string]bool{}
	for _, fn := range []string{long, long + "_a", long + "_b", long + "_longer_yet", long + "_a.part.0"} {
		d, err := Parse("p " + fn)
		if err != nil {
			t.Fatal(err)
		}
		if seen[d.Event] || len(d.Event) > 63 {
			t.Errorf("%s: %s", fn, d.Event)
		}
		seen[d.Event] = true
	}
}
