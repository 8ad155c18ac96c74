package flow

import "testing"

// Code with data after instructions that do not fall through, as hand-written
// assembly has it. The comments give the offsets.
const (
	// 0 lea 0x10(%rip),%rdx; 7 movslq (%rdx,%rdi,4),%rcx; b add %rdx,%rcx; e jmp *%rcx
	// 10 .long 8, 14; 18 mov $11,%eax; 1d ret; 1e mov $22,%eax; 23 ret
	openTable = "48 8d 15 09 00 00 00 48 63 0c ba 48 01 d1 ff e1 08 00 00 00 0e 00 00 00 b8 0b 00 00 00 c3 b8 16 00 00 00 c3"
	// 0 mov 7(%rip),%eax; 6 ret; 7 five bytes
	afterRet = "8b 05 01 00 00 00 c3 88 77 66 55 44"
	// the same with bytes that padding has
	likePadding = "8b 05 01 00 00 00 c3 cc cc cc cc cc"
	// 0 jmp a; 2 eight bytes; a mov 2(%rip),%rax; 11 ret
	afterJmp = "eb 08 88 77 66 55 44 33 22 11 48 8b 05 f1 ff ff ff c3"
	// 0 lea f(%rip),%rax; 7 add %rdi,%rax; a jmp *%rax; c nop; nop; nop
	// f mov $0xc7ffff01,%eax (or, from 10 on, add %edi,%edi; inc %edi; jmp 17); 14 jmp 17; 16 nop; 17 mov %edi,%eax; 19 ret
	intoCode = "48 8d 05 08 00 00 00 48 01 f8 ff e0 90 90 90 b8 01 ff ff c7 eb 01 90 89 f8 c3"
	// 0 jne 8; 2 mov $0x01ebc7ff,%eax; 7 nop; 8 jmp 3, which is inc %edi; jmp 8
	crossed = "75 06 b8 ff c7 eb 01 90 eb f9"
	// 0 jne 5; 2 mov $0x9090c7ff,%eax, the end of which is nop; nop; then nops
	crossedEnd = "75 03 b8 ff c7 90 90 90 90 90 90 c3"
	// 0 call 9; 5 four bytes; 9 pop %rax; a mov (%rax),%eax; c ret
	inline = "e8 04 00 00 00 01 02 03 04 58 8b 00 c3"
)

// TestData: a jump displaces nothing but instructions that known paths reach,
// and padding. The sites where Linux allows more do no harm there: its text
// holds no data.
func TestData(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		off        int
		want, data string
	}{
		{"before a jump nobody knows the targets of", openTable, 0, "indirect_jump", ""},
		{"that jump, its table behind it", openTable, 0xe, "not_padding", ""},
		{"in the table", openTable, 0x10, "data", "memory of an instruction"},
		{"behind the table", openTable, 0x1e, "data", "memory of an instruction"},
		{"reads a constant", afterRet, 0, "ok 6", ""},
		{"ret, constant", afterRet, 6, "not_padding", ""},
		{"in the constant", afterRet, 7, "data", "memory of an instruction"},
		{"ret, constant that looks like padding", likePadding, 6, "data", ""},
		{"in that", likePadding, 7, "data", "memory of an instruction"},
		{"jmp over a constant", afterJmp, 0, "not_padding", ""},
		{"in the constant", afterJmp, 2, "data", "memory of an instruction"},
		{"behind it", afterJmp, 0xa, "ok 7", ""},
		{"a computed jump may go into it", intoCode, 0xf, "unreached", ""},
		{"the computed jump", intoCode, 0xa, "not_padding", ""},
		{"jumped into", crossed, 2, "jump_into_region", ""},
		{"the other half", crossed, 3, "jump_into_region", ""},
		{"the end of the other half", crossedEnd, 5, "overlapping_code", ""},
		{"behind a call for its address", inline, 5, "unreached", ""},
		{"that call", inline, 0, "ok 5 call", ""},
	} {
		f := Analyze(Input{Addr: base, Code: code(t, tt.code)})
		if got := verdict(f, tt.off, OursCalls); got != tt.want {
			t.Errorf("%s, at %#x: got %q, want %q", tt.name, tt.off, got, tt.want)
		}
		if k, ok := f.Index(tt.off); ok {
			if got := f.Data(tt.off, int(f.Insts()[k].Len)); got != tt.data {
				t.Errorf("%s, at %#x: data: %q, want %q", tt.name, tt.off, got, tt.data)
			}
		}
	}
}

// TestObject: what the image itself calls data is data, wherever paths lead.
func TestObject(t *testing.T) {
	in := Input{Addr: base, Code: code(t, "90 90 90 90 90 90 90 90 90 90 90 c3"), Object: func(lo, hi uint64) string {
		if lo < base+7 && hi > base+6 {
			return "table, an object"
		}
		return ""
	}}
	f := Analyze(in)
	for off, want := range map[int]string{0: "ok 5 @1 2 3 4", 1: "ok 5 @1 2 3 4", 2: "data", 6: "data", 7: "ok 5 @1 2 3 4"} {
		if got := verdict(f, off, Ours); got != want {
			t.Errorf("at %d: got %q, want %q", off, got, want)
		}
		if got := f.Data(off, 1) != ""; got != (off == 6) {
			t.Errorf("at %d: data %v", off, got)
		}
	}
}

// TestLabel: a name that the image does not call a function may be a table's.
func TestLabel(t *testing.T) {
	body := code(t, "53 55 53 55 53 55 53 c3")
	if got := verdict(Analyze(Input{Addr: base, Code: body, Label: true}), 0, Ours); got != "unreached" {
		t.Errorf("a label: %q", got)
	}
	if got := verdict(Analyze(Input{Addr: base, Code: body, Label: true, Known: knownIndex(false, base)}), 0, Ours); got != "unreached" {
		t.Errorf("a label that unknown bytes lead to: %q", got)
	}
	if got := verdict(Analyze(Input{Addr: base, Code: body, Label: true, Known: knownIndex(true, base)}), 0, Ours); got != "ok 5 @1 2 3 4" {
		t.Errorf("a label that code calls: %q", got)
	}
	if got := verdict(Analyze(Input{Addr: base, Code: body, Label: true, AllCode: true}), 0, Ours); got != "ok 5 @1 2 3 4" {
		t.Errorf("where all is code: %q", got)
	}
}
