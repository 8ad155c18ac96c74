package probe_test

import (
	"debug/elf"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestDataInText: functions with data among their code, as hand-written guests have
// them. A probe is put only on instructions, including those after the data, where
// straight-line decoding is out of step; and a jump displaces only code that is known
// to run.
func TestDataInText(t *testing.T) {
	img, err := probetest.BuildImage(textBase, false,
		// lea 0x10(%rip),%rdx; movslq (%rdx,%rdi,4),%rcx; add %rdx,%rcx; jmp *%rcx; two .long; two cases
		hexFunc(t, "table", "48 8d 15 09 00 00 00 48 63 0c ba 48 01 d1 ff e1 08 00 00 00 0e 00 00 00 b8 0b 00 00 00 c3 b8 16 00 00 00 c3"),
		// mov 7(%rip),%eax; ret; five bytes
		hexFunc(t, "constant", "8b 05 01 00 00 00 c3 88 77 66 55 44"),
		// jmp a; eight bytes; a: mov 2(%rip),%rax; ret
		hexFunc(t, "behind", "eb 08 88 77 66 55 44 33 22 11 48 8b 05 f1 ff ff ff c3"),
		// lea f(%rip),%rax; add %rdi,%rax; jmp *%rax; nops; f: mov $0xc7ffff01,%eax; jmp; nop; mov %edi,%eax; ret
		hexFunc(t, "middle", "48 8d 05 08 00 00 00 48 01 f8 ff e0 90 90 90 b8 01 ff ff c7 eb 01 90 89 f8 c3"),
		// push $f; ret; f: call g; .byte 1,2,3,4; g: pop %r11; ret. In a straight line the last bytes are add (%rcx,%rax,2),%eax; pop %rbx
		hexFunc(t, "pushed", "68 06 00 00 00 c3 e8 04 00 00 00 01 02 03 04 41 5b c3"),
	)
	if err != nil {
		t.Fatal(err)
	}
	e := newFake(t, 1, img).Engine()
	for _, tt := range []struct {
		symbol string
		offset uint64
		code   probe.Code // of the refusal, or
		reason string     // why there is no jump; "" for both: there is one
	}{
		{"table", 0, "", "indirect_jump"},
		{"table", 0xe, "", "not_padding"},
		{"table", 0x10, probe.CodeData, ""},
		{"table", 0x14, probe.CodeUndecodable, ""},
		{"constant", 0, "", ""},
		{"constant", 6, "", "not_padding"},
		{"constant", 7, probe.CodeData, ""},
		{"behind", 0, "", "not_padding"},
		{"behind", 2, probe.CodeData, ""},
		{"behind", 0xa, "", ""},
		{"behind", 9, probe.CodeData, ""}, // an instruction, in a straight line
		{"middle", 0xf, "", "unreached"},
		{"middle", 0x10, probe.CodeNotBoundary, ""},
		{"middle", 0, "", "indirect_jump"},
		{"pushed", 6, "", "unreached"},
		{"pushed", 0xd, probe.CodeNotBoundary, ""},  // over g
		{"pushed", 0xf, probe.CodeNotBoundary, ""},  // g, of which the straight line knows nothing
		{"pushed", 0x10, probe.CodeNotBoundary, ""}, // inside pop %r11
		{"pushed", 0x11, "", "function_too_short"},
	} {
		p := &probe.Kprobe{Symbol: tt.symbol, Offset: tt.offset, Pre: func(*probe.Context) int { return 0 }}
		err := e.Register(p)
		var refused *probe.Error
		if errors.As(err, &refused); err != nil && refused.Code != tt.code || (err == nil) != (tt.code == "") {
			t.Errorf("%s+%#x: got %v, want %q", tt.symbol, tt.offset, err, tt.code)
			continue
		}
		if err != nil {
			continue
		}
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
		i, _ := e.Info(p)
		if i.Optimized != (tt.reason == "") || i.Unoptimized.Reason != tt.reason {
			t.Errorf("%s+%#x: optimized %v, %v; want %q", tt.symbol, tt.offset, i.Optimized, i.Unoptimized, tt.reason)
		}
		if err := e.Unregister(p); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSymbolInText: if a symbol names a place among bytes that no known path reaches,
// the instruction of the straight line that spans it does not count.
func TestSymbolInText(t *testing.T) {
	f := hexFunc(t, "f", "c3 03 04 41 5b c3") // ret; .byte 3,4; inner: pop %r11; ret
	file := elfbuild.File{Entry: textBase,
		Symbols: []elfbuild.Symbol{
			{Name: f.Name, Addr: textBase, Size: uint64(len(f.Code)), Type: elf.STT_FUNC},
			{Name: "inner", Addr: textBase + 3},
		},
		Segments: []elfbuild.Segment{{Section: ".text", VAddr: textBase, PAddr: 0x100000, Flags: elf.PF_R | elf.PF_X, Data: f.Code}},
	}
	img, err := file.Image()
	if err != nil {
		t.Fatal(err)
	}
	e := newFake(t, 1, img).Engine()
	for off, want := range map[uint64]probe.Code{0: "", 1: probe.CodeNotBoundary, 3: probe.CodeNotBoundary, 4: probe.CodeNotBoundary, 5: ""} {
		_, err := e.Check(&probe.Kprobe{Addr: textBase + guest.GVA(off)})
		var refused *probe.Error
		if errors.As(err, &refused); (err == nil) != (want == "") || err != nil && refused.Code != want {
			t.Errorf("f+%#x: %v, want %q", off, err, want)
		}
	}
}
