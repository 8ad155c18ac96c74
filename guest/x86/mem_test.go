package x86

import "testing"

// TestMem has operands of every kind; the corpus tests hold all but Access
// against objdump, TestNativeUse holds Access against the CPU.
func TestMem(t *testing.T) {
	const none = NoReg
	for _, tt := range []struct {
		name, code string
		want       Mem
	}{
		{"load", "488b4708", Mem{Base: RDI, Index: none, Scale: 1, Access: Read, Size: 8, Disp: 8}},
		{"store byte", "8807", Mem{Base: RDI, Index: none, Scale: 1, Access: Write, Size: 1}},
		{"rmw", "66830001", Mem{Base: RAX, Index: none, Scale: 1, Access: Read | Write, Size: 2}},
		{"cmp only reads", "833800", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 4}},
		{"sib", "4b8b44a5f0", Mem{Base: R13, Index: R12, Scale: 4, Access: Read, Size: 8, Disp: -16}},
		{"no index", "8b0424", Mem{Base: RSP, Index: none, Scale: 1, Access: Read, Size: 4}},
		{"r12 is an index", "428b0420", Mem{Base: RAX, Index: R12, Scale: 1, Access: Read, Size: 4}},
		{"no base", "8b04c500100000", Mem{Base: none, Index: RAX, Scale: 8, Access: Read, Size: 4, Disp: 0x1000}},
		{"absolute", "8b042500100080", Mem{Base: none, Index: none, Scale: 1, Access: Read, Size: 4, Disp: -0x7ffff000}},
		{"gs", "65488b042528000000", Mem{Base: none, Index: none, Scale: 1, Segment: SegGS, Access: Read, Size: 8, Disp: 0x28}},
		{"null segments", "3e8b00", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 4}},
		{"rip", "8b0510000000", Mem{Base: none, Index: none, Scale: 1, RIP: true, Access: Read, Size: 4, Disp: 16}},
		{"moffs", "64a3f0debc9a78563412", Mem{Base: none, Index: none, Scale: 1, Segment: SegFS, Access: Write, Size: 4, Disp: 0x123456789abcdef0}},
		{"moffs, address size", "67a0f0debc9a", Mem{Base: none, Index: none, Scale: 1, Access: Read, Size: 1, Disp: 0x9abcdef0}},
		{"lea", "488d04c7", Mem{Base: RDI, Index: RAX, Scale: 8, Size: 8}},
		{"nopl", "0f1f4000", Mem{Base: RAX, Index: none, Scale: 1, Size: 1}},
		{"prefetch", "0f1808", Mem{Base: RAX, Index: none, Scale: 1, Size: 1}},
		{"clflush is checked like a load", "0fae3f", Mem{Base: RDI, Index: none, Scale: 1, Access: Read, Size: 1}},
		{"fxsave", "0fae00", Mem{Base: RAX, Index: none, Scale: 1, Access: Write, Size: 512}},
		{"xsave", "0fae20", Mem{Base: RAX, Index: none, Scale: 1, Access: Write}},
		{"fnsave, 16 bits", "66dd30", Mem{Base: RAX, Index: none, Scale: 1, Access: Write, Size: 94}},
		{"fldenv", "d920", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 28}},
		{"fstp tbyte", "db38", Mem{Base: RAX, Index: none, Scale: 1, Access: Write, Size: 10}},
		{"cmpxchg16b", "480fc70f", Mem{Base: RDI, Index: none, Scale: 1, Access: Read | Write, Size: 16}},
		{"call", "ff10", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 8}},
		{"far call", "ff18", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 6}},
		{"pop mem", "8f00", Mem{Base: RAX, Index: none, Scale: 1, Access: Write, Size: 8}},
		{"sidt", "0f0108", Mem{Base: RAX, Index: none, Scale: 1, Access: Write, Size: 10}},
		{"movss", "f30f1000", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 4}},
		{"movups store", "0f1100", Mem{Base: RAX, Index: none, Scale: 1, Access: Write, Size: 16}},
		{"vmovaps ymm", "c5fc2800", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 32}},
		{"kmovq", "c4e1f89000", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 8}},
		{"vgatherdps", "c4e27d92448f04", Mem{Base: RDI, Index: 1, Scale: 4, Vector: true, Access: Read, Size: 4, Disp: 4}},
		{"evex disp8 is scaled", "62f17c48284002", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 64, Disp: 128}},
		{"evex disp32 is not", "62f17c48288002000000", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 64, Disp: 2}},
		{"evex broadcast", "62f17c58584002", Mem{Base: RAX, Index: none, Scale: 1, Access: Read, Size: 4, Disp: 8}},
		{"evex compress: scaled by the element", "62f27d488a4002", Mem{Base: RAX, Index: none, Scale: 1, Access: Write, Size: 64, Disp: 8}},
		{"evex scatter, index above 15", "62f27d41a2448701", Mem{Base: RDI, Index: 16, Scale: 4, Vector: true, Access: Write, Size: 4, Disp: 4}},
		{"rex2 base", "d5188b00", Mem{Base: 16, Index: none, Scale: 1, Access: Read, Size: 8}},
		{"unknown to the tables", "62f44c18f710", Mem{Base: RAX, Index: none, Scale: 1, Access: Read | Write}},
	} {
		i := mustDecode(t, tt.code)
		if got, ok := i.Mem(); !ok || got != tt.want {
			t.Errorf("%s (%s): got %+v, %v; want %+v", tt.name, tt.code, got, ok, tt.want)
		}
	}
	for _, code := range []string{"90", "4889e5", "0f20c0", "0f2000", "55", "c5f828c1", "a4"} {
		i := mustDecode(t, code)
		if got, ok := i.Mem(); ok {
			t.Errorf("%s: got %+v, want none", code, got)
		}
		if _, ok := i.Addr(0, &Regs{}); ok {
			t.Errorf("%s: has an address", code)
		}
	}
}

// TestTouches has implied operands and what cannot be known.
func TestTouches(t *testing.T) {
	r := Regs{RAX: 0x1234, RBX: 0x2000, RCX: 3, RSI: 0x3000, RDI: 0x4000, RSP: 0x5000, RBP: 0x6000}
	down := r
	down.RFLAGS = FlagDF
	for _, tt := range []struct {
		name, code string
		regs       Regs
		want       []Touch
		ok         bool
	}{
		{"push", "55", r, []Touch{{0x4ff8, 8, Write, 0}}, true},
		{"pushw", "6655", r, []Touch{{0x4ffe, 2, Write, 0}}, true},
		{"push mem", "ff36", r, []Touch{{0x3000, 8, Read, 0}, {0x4ff8, 8, Write, 0}}, true},
		{"pop to the stack: address behind the pop", "8f0424", r, []Touch{{0x5008, 8, Write, 0}, {0x5000, 8, Read, 0}}, true},
		{"call mem", "ff16", r, []Touch{{0x3000, 8, Read, 0}, {0x4ff8, 8, Write, 0}}, true},
		{"call", "e800000000", r, []Touch{{0x4ff8, 8, Write, 0}}, true},
		{"ret", "c3", r, []Touch{{0x5000, 8, Read, 0}}, true},
		{"leave", "c9", r, []Touch{{0x6000, 8, Read, 0}}, true},
		{"enter", "c8100000", r, []Touch{{0x4ff8, 8, Write, 0}}, true},
		{"enter, nested", "c8100001", r, []Touch{{0x4ff8, 8, Write, 0}}, false},
		{"movsq", "48a5", r, []Touch{{0x3000, 8, Read, 0}, {0x4000, 8, Write, 0}}, true},
		{"rep movsl, fs", "64f3a5", r, []Touch{{0x3000, 12, Read, SegFS}, {0x4000, 12, Write, 0}}, true},
		{"rep movsb, down", "f3a4", down, []Touch{{0x2ffe, 3, Read, 0}, {0x3ffe, 3, Write, 0}}, true},
		{"rep stos, count 0", "f3aa", Regs{RDI: 0x4000}, nil, true},
		{"lods", "ad", r, []Touch{{0x3000, 4, Read, 0}}, true},
		{"scas", "ae", r, []Touch{{0x4000, 1, Read, 0}}, true},
		{"outs, at most 32 bits", "486f", r, []Touch{{0x3000, 4, Read, 0}}, true},
		{"ins", "6d", r, []Touch{{0x4000, 4, Write, 0}}, true},
		{"xlat", "d7", r, []Touch{{0x2034, 1, Read, 0}}, true},
		{"bt, negative", "0fa306", Regs{RAX: 1<<64 - 1, RSI: 0x3000}, []Touch{{0x2ffc, 4, Read, 0}}, true},
		{"bts", "480fab06", Regs{RAX: 64, RSI: 0x3000}, []Touch{{0x3008, 8, Read | Write, 0}}, true},
		{"maskmovdqu", "660ff7c1", r, []Touch{{0x4000, 16, Write, 0}}, true},
		{"movdir64b", "660f38f806", r, []Touch{{0x3000, 64, Read, 0}, {0x1234, 64, Write, 0}}, true},
		{"clzero", "0f01fc", r, []Touch{{0x1200, 64, Write, 0}}, true},
		{"monitor", "0f01c8", r, []Touch{{0x1234, 1, Read, 0}}, true},
		{"lea touches nothing", "8d06", r, nil, true},
		{"register", "4889e5", r, nil, true},
		{"xsave", "0fae26", r, []Touch{{0x3000, 0, Write, 0}}, false},
		{"gather", "c4e27d92448e04", r, []Touch{{0, 4, Read, 0}}, false},
		{"vmaskmov", "c4e2752c06", r, []Touch{{0x3000, 32, Read, 0}}, false},
		{"iret", "48cf", r, nil, false},
		{"far call", "ff1e", r, nil, false},
	} {
		i := mustDecode(t, tt.code)
		got, ok := i.AppendTouches(nil, 0x1000, &tt.regs)
		if ok != tt.ok || len(got) != len(tt.want) {
			t.Errorf("%s: got %+x, %v; want %+x, %v", tt.name, got, ok, tt.want, tt.ok)
			continue
		}
		for k := range got {
			if got[k] != tt.want[k] {
				t.Errorf("%s: got %+x, want %+x", tt.name, got[k], tt.want[k])
			}
		}
	}
}

// TestFlags has a row for each kind of use.
func TestFlags(t *testing.T) {
	const none = 0
	for _, tt := range []struct {
		name, code    string
		reads, writes uint32
	}{
		{"mov", "4889e5", none, none},
		{"add", "01c0", none, FlagsStatus},
		{"adc", "11c0", FlagCF, FlagsStatus},
		{"sbb imm", "83d800", FlagCF, FlagsStatus},
		{"inc", "ffc0", none, FlagsStatus &^ FlagCF},
		{"not", "f7d0", none, none},
		{"neg", "f7d8", none, FlagsStatus},
		{"rol", "d1c0", none, FlagCF | FlagOF},
		{"rcl", "d1d0", FlagCF, FlagCF | FlagOF},
		{"shl", "d1e0", none, FlagsStatus},
		{"bt", "0fa3c0", none, FlagsStatus &^ FlagZF},
		{"je", "7400", FlagZF, none},
		{"jg", "7f00", FlagZF | FlagSF | FlagOF, none},
		{"setbe", "0f96c0", FlagCF | FlagZF, none},
		{"cmovp", "0f4ac0", FlagPF, none},
		{"loope", "e100", FlagZF, none},
		{"loop", "e200", none, none},
		{"call", "e800000000", none, none},
		{"movs", "a4", FlagDF, none},
		{"cmps", "a6", FlagDF, FlagsStatus},
		{"sahf", "9e", none, FlagsStatus &^ FlagOF},
		{"lahf", "9f", FlagsStatus &^ FlagOF, none},
		{"pushf", "9c", fAll, none},
		{"popf", "9d", FlagIOPL, fAll},
		{"cmc", "f5", FlagCF, FlagCF},
		{"std", "fd", none, FlagDF},
		{"stac", "0f01cb", none, FlagAC},
		{"rdpid", "f30fc7f8", none, none},
		{"rdrand", "0fc7f0", none, FlagsStatus},
		{"cmpxchg16b", "480fc70f", none, FlagZF},
		{"ucomisd", "660f2ec1", none, FlagsStatus},
		{"fcomi", "dbf1", none, FlagsStatus},
		{"fcmove", "dac9", FlagCF | FlagZF | FlagPF, none},
		{"adox", "f30f38f6c1", FlagOF, FlagOF},
		{"ptest", "660f3817c1", none, FlagsStatus},
		{"andn", "c4e270f2c0", none, FlagsStatus},
		{"shlx", "c4e271f7c0", none, none},
		{"kortest", "c5f898c1", none, FlagsStatus},
		{"vaddps", "c5f058c1", none, none},
		{"syscall", "0f05", fAll, fAll},
		{"iret", "48cf", fAll, fAll},
		{"apx", "62f44c18f7d0", fAll, fAll},
	} {
		i := mustDecode(t, tt.code)
		if got, want := i.Flags(), (Flags{tt.reads, tt.writes}); got != want {
			t.Errorf("%s: got %+x, want %+x", tt.name, got, want)
		}
	}
}

func TestRepeats(t *testing.T) {
	for code, want := range map[string]bool{
		"\xf3\xa4": true, "\xf3\x48\xab": true, "\xf2\xae": true, "\xf3\x6c": true, "\xf3\xaf": true,
		"\xa4": false, "\xf3\x90": false, "\xf3\xa8\x01": false, "\xf3\x0f\x1e\xfa": false, "\xf3\x0f\xa4\xc0\x01": false, "\xc3": false,
	} {
		i, err := Decode([]byte(code))
		if err != nil {
			t.Fatalf("%x: %v", code, err)
		}
		if i.Repeats() != want {
			t.Errorf("%x: %v", code, !want)
		}
	}
}
