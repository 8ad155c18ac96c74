package x86

import (
	"testing"
	"unsafe"
)

// TestDecodeRules has what the corpus cannot show: errors, prefix rules, and
// encodings that objdump does not know.
func TestDecodeRules(t *testing.T) {
	for _, tt := range []struct {
		name, code string // followed by whatever
		len        uint8
		err        error
	}{
		{"nothing", "", 0, ErrTruncated},
		{"prefix alone", "66", 0, ErrTruncated},
		{"rex alone", "48", 0, ErrTruncated},
		{"14 prefixes and nop", "666666666666666666666666666690", 15, nil},
		{"15 prefixes and nop", "66666666666666666666666666666690", 0, ErrTooLong},
		{"15 bytes with a displacement", "2e2e2e2e65654881042510000000aabbccdd", 0, ErrTooLong},
		{"14 bytes with a displacement", "2e654881042510000000aabbccdd", 14, nil},
		{"rex counts before the opcode", "48b80102030405060708", 10, nil},
		{"rex before a prefix does not", "4866b80102", 5, nil},
		{"rex, then rex", "4840b801020304", 7, nil},
		{"operand size and rex.w", "6648b80102030405060708", 11, nil},
		{"f2 does not hide 66 as operand size", "66f2b80102", 5, nil},
		{"moffs", "48a10102030405060708", 10, nil},
		{"moffs, address size", "6748a101020304", 7, nil},
		{"enter", "c8100001", 4, nil},
		{"test, group 3", "f70001020304", 6, nil},
		{"test /1", "f70801020304", 6, nil},
		{"neg", "f718", 2, nil},
		{"extrq", "660f78c00102", 6, nil},
		{"insertq", "f20f78c00102", 6, nil},
		{"vmread", "0f7800", 3, nil},
		{"3dnow", "0f0f00bf", 4, nil},
		{"sib without base", "8b042501020304", 7, nil},
		{"sib, r13 as base has a displacement", "418b442500", 5, nil},
		{"sib, no displacement", "8b0424", 3, nil},
		{"mov cr, memory form", "0f2000", 3, nil},
		{"mov cr, disp form has none", "0f2080", 3, nil},
		{"xabort", "c6f801", 3, nil},
		{"c6 /7, other rm", "c6f901", 0, ErrInvalid},
		{"c7 /1", "c708", 0, ErrInvalid},
		{"fe /2", "fe10", 0, ErrInvalid},
		{"ff /7", "ff38", 0, ErrInvalid},
		{"far call, register", "ffd8", 0, ErrInvalid},
		{"popcnt without f3", "0fb8c0", 0, ErrInvalid},
		{"popcnt", "f30fb8c0", 4, nil},
		{"push es", "06", 0, ErrInvalid},
		{"daa", "27", 0, ErrInvalid},
		{"pusha", "60", 0, ErrInvalid},
		{"82", "820000", 0, ErrInvalid},
		{"far call, immediate", "9a000000000000", 0, ErrInvalid},
		{"into", "ce", 0, ErrInvalid},
		{"aam", "d40a", 0, ErrInvalid},
		{"salc", "d6", 0, ErrInvalid},
		{"far jump, immediate", "ea000000000000", 0, ErrInvalid},
		{"0f 04", "0f04", 0, ErrInvalid},
		{"0f 24", "0f2400", 0, ErrInvalid},

		{"vzeroupper", "c5f877ff", 3, nil},
		{"vex, 66 before", "66c5f877", 0, ErrInvalid},
		{"vex, lock before", "f0c5f877", 0, ErrInvalid},
		{"vex, rex before: #ud, but a length", "48c5f877", 4, nil},
		{"vex, gs before", "65c5f82800", 5, nil},
		{"vex map 0", "c4e07800c0", 0, ErrInvalid},
		{"vex map 7: urdmsr", "c4e77bf8c001020304", 9, nil},
		{"evex map 0", "62f07c4828c0", 0, ErrInvalid},
		{"evex 77", "62f17c4877", 0, ErrInvalid},
		{"evex disp8", "62f17c48284001", 7, nil},
		{"evex map 4: ccmp imm8", "62f44c1880c001", 7, nil},
		{"evex map 4: add imm32", "62f44c1881c001020304", 10, nil},
		{"evex map 4: add imm16", "62f44d1881c00102", 8, nil},
		{"evex map 4: not", "62f44c18f7d0", 6, nil},
		{"evex map 4: test imm32", "62f44c18f7c001020304", 10, nil},
		{"xop map 8", "8fe878c0c001", 6, nil},
		{"xop map 9", "8fe97880c0", 5, nil},
		{"xop map 10", "8fea781000" + "01020304", 9, nil},
		{"xop map 11", "8feb781000", 0, ErrInvalid},
		{"pop", "8f00", 2, nil},
		{"8f /1, low map", "8fc8", 0, ErrTruncated}, // map 8
		{"rex2 push", "d51050", 3, nil},
		{"rex2 mov imm64", "d518b80102030405060708", 11, nil},
		{"rex2 map 1: movzx", "d590b6c0", 4, nil},
		{"rex2 map 1: jcc", "d58084", 0, ErrInvalid},
		{"rex2 and jcc", "d50074", 0, ErrInvalid},
		{"rex2 and escape", "d5000f", 0, ErrInvalid},
		{"rex2 and vex", "d500c5", 0, ErrInvalid},
		{"rex2 after rex", "48d50050", 0, ErrInvalid},
		{"jmpabs", "d500a10102030405060708", 11, nil},
		{"jmpabs with w", "d508a10102030405060708", 0, ErrInvalid},
		{"jmpabs with 66", "66d500a10102030405060708", 0, ErrInvalid},
	} {
		b := unhex(t, tt.code)
		i, err := Decode(b)
		if err != tt.err || i.Len != tt.len {
			t.Errorf("%s (%s): got length %d, %v; want %d, %v", tt.name, tt.code, i.Len, err, tt.len, tt.err)
		}
	}
}

// TestDecodeFields looks at everything of a few instructions.
func TestDecodeFields(t *testing.T) {
	i := mustDecode(t, "6448c784c1785634120df0adba") // movq $-0x45520ff3, %fs:0x12345678(%rcx,%rax,8)
	if i.Enc != Legacy || i.Map != Map0 || i.Opcode != 0xc7 || !i.HasModRM || !i.HasSIB || i.Mod() != 2 || i.Reg() != 0 || i.RM() != 4 ||
		i.Segment != SegFS || !i.Has(PrefixFS|PrefixREX|PrefixREXW) || i.Has(PrefixFS|PrefixGS) || i.Disp != 0x12345678 || i.Imm != -0x45520ff3 {
		t.Errorf("got %+v", i)
	}
	i = mustDecode(t, "656467480fbe05fcffffff") // the last segment prefix counts
	if i.Map != Map0F || i.Opcode != 0xbe || i.Segment != SegFS || !i.RIPRelative() || i.Disp != -4 || !i.Has(PrefixGS|PrefixAddrSize) {
		t.Errorf("got %+v", i)
	}
	if got := i.RIPTarget(1<<32 - 1); got != 6 {
		t.Errorf("eip-relative target: got %#x, want 6", got)
	}
	if i = mustDecode(t, "41ffd3"); i.RMReg() != R11 {
		t.Errorf("call *r11: register %d", i.RMReg())
	}
	for code, want := range map[string]bool{"f30f1efa": true, "f30f1efb": true, "0f1efa": false, "f30f1ef9": false, "f30f1ec8": false, "90": false} {
		if i = mustDecode(t, code); i.IsEndbr() != want {
			t.Errorf("%s: endbr %v, want %v", code, !want, want)
		}
	}
	if i = mustDecode(t, "c8341207"); i.Imm != 0x071234 {
		t.Errorf("enter: immediate %#x", i.Imm)
	}
	if i = mustDecode(t, "48b8efcdab8967452381"); uint64(i.Imm) != 0x8123456789abcdef {
		t.Errorf("movabs: immediate %#x", i.Imm)
	}
}

// TestTarget has branch targets, and Falls.
func TestTarget(t *testing.T) {
	const from = 0x123400
	for _, tt := range []struct {
		code  string
		want  uint64
		ok    bool
		falls bool
	}{
		{"eb80", from + 2 - 0x80, true, false},
		{"eb7f", from + 2 + 0x7f, true, false},
		{"e900000080", 1<<64 - 1<<31 + from + 5, true, false},
		{"e8ffffff7f", from + 5 + 1<<31 - 1, true, true},
		{"7400", from + 2, true, true},
		{"e3fe", from, true, true},
		{"0f8510000000", from + 0x16, true, true},
		{"c7f810000000", from + 0x16, true, true},
		{"66e91000", 0x3414, true, false},
		{"66eb10", 0x3413, true, false},
		{"d500a10102030405060708", 0x0807060504030201, true, false},
		{"48a10102030405060708", 0, false, true},
		{"c3", 0, false, false},
		{"cb", 0, false, false},
		{"48cf", 0, false, false},
		{"ffe0", 0, false, false},
		{"ff28", 0, false, false},
		{"ff18", 0, false, true},
		{"ffd0", 0, false, true},
		{"0f0b", 0, false, false},
		{"0f05", 0, false, true},
		{"90", 0, false, true},
	} {
		i := mustDecode(t, tt.code)
		if got, ok := i.Target(from); ok != tt.ok || got != tt.want {
			t.Errorf("%s: got %#x, %v; want %#x, %v", tt.code, got, ok, tt.want, tt.ok)
		}
		if got := i.Falls(); got != tt.falls {
			t.Errorf("%s: falls %v, want %v", tt.code, got, tt.falls)
		}
	}
}

// TestCosts: an Inst is small, and nothing here allocates.
func TestCosts(t *testing.T) {
	if s := unsafe.Sizeof(Inst{}); s > 64 {
		t.Errorf("Inst has %d bytes, want at most a cache line", s)
	}
	code := unhex(t, "48c784c1785634120df0adba")
	push := mustDecode(t, "55")
	call := mustDecode(t, "ff542408")
	r := &Regs{}
	m := &fuzzMemory{limit: 1 << 40}
	var buf [3]Touch
	var dst [MaxRelocated]byte
	for name, f := range map[string]func(){
		"decode":  func() { _, _ = Decode(code) },
		"analyze": func() { Analyze(code, 0x1000, Options{}) },
		"emulate push": func() {
			r.RSP = 0x8000
			if err := push.Emulate(0x1000, r, m); err != nil {
				t.Fatal(err)
			}
		},
		"emulate call through memory": func() {
			r.RSP = 0x8000
			if err := call.Emulate(0x1000, r, m); err != nil && err != ErrCannotEmulate {
				t.Fatal(err)
			}
		},
		"touches":  func() { _, _ = call.AppendTouches(buf[:0], 0x1000, r) },
		"mem":      func() { call.Mem() },
		"relocate": func() { _, _ = Relocate(dst[:], &push, 0x1000, 0x2000) },
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	var code [][]byte
	readCorpus(b, func(l *line) { code = append(code, l.bytes) })
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		_, _ = Decode(code[n%len(code)])
	}
}

func BenchmarkAnalyze(b *testing.B) {
	code := unhex(b, "4883ec18")
	b.ReportAllocs()
	for b.Loop() {
		Analyze(code, 0x1000, Options{})
	}
}

func BenchmarkEmulate(b *testing.B) {
	for _, tt := range []struct{ name, code string }{
		{"push", "55"}, {"sub", "4883ec18"}, {"endbr64", "f30f1efa"}, {"jcc", "7410"}, {"call", "e800000000"},
	} {
		b.Run(tt.name, func(b *testing.B) {
			i := Analyze(unhex(b, tt.code), 0x1000, Options{}).Inst
			r := &Regs{}
			m := &fuzzMemory{limit: 1 << 40}
			b.ReportAllocs()
			for b.Loop() {
				r.RSP = 0x8000
				if err := i.Emulate(0x1000, r, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
