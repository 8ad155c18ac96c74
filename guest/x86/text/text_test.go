package text

import (
	"encoding/hex"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestOf has the text of instructions as objdump -M att (binutils 2.40) writes it, at 0xffffffff80200000, but for targets:
// there are "first" at 0xffffffff80200000 and "data" at 0xffffffff80300000, each 0x1000 bytes long.
func TestOf(t *testing.T) {
	syms := func(a uint64) (string, uint64) {
		switch a &^ 0xfff {
		case 0xffffffff80200000:
			return "first", a &^ 0xfff
		case 0xffffffff80300000:
			return "data", a &^ 0xfff
		}
		return "", 0
	}
	for _, c := range []struct{ code, want string }{
		{"488985f8feffff", "mov %rax,-0x108(%rbp)"},
		{"8b83205f2180", "mov -0x7fdea0e0(%rbx),%eax"},
		{"488d04c5c0912080", "lea -0x7fdf6e40(,%rax,8),%rax"},
		{"49837c245800", "cmpq $0x0,0x58(%r12)"},
		{"488d742600", "lea 0x0(%rsi,%riz,1),%rsi"},
		{"488b442408", "mov 0x8(%rsp),%rax"},
		{"488b4424f8", "mov -0x8(%rsp),%rax"},
		{"8b042500002080", "mov 0xffffffff80200000,%eax"},
		{"8b046500002080", "mov -0x7fe00000(,%riz,2),%eax"},
		{"678b4480fc", "mov -0x4(%eax,%eax,4),%eax"},
		{"678b042500002080", "mov 0x80200000,%eax"},
		{"8b0425c0912080", "mov 0xffffffff802091c0,%eax"},
		{"65488b042528000000", "mov %gs:0x28,%rax"},
		{"64488b45f8", "mov %fs:-0x8(%rbp),%rax"},
		{"2e8b00", "cs mov (%rax),%eax"},
		{"a18877665544332211", "movabs 0x1122334455667788,%eax"},
		{"48a300000080ffffffff", "movabs %rax,0xffffffff80000000"},
		{"67a078563412", "addr32 mov 0x12345678,%al"},
		{"488b05f9ff0f00", "mov 0xffff9(%rip),%rax # 0xffffffff80300000 <data>"},
		{"488b0501001000", "mov 0x100001(%rip),%rax # 0xffffffff80300008 <data+0x8>"},
		{"488b05f9ff1f00", "mov 0x1ffff9(%rip),%rax # 0xffffffff80400000"},
		{"8b05fafeffff", "mov -0x106(%rip),%eax # 0xffffffff801fff00"},
		{"e8fbffffff", "call first"},
		{"e800000000", "call 0xffffffff80200005"},
		{"ebfe", "jmp first"},
		{"7410", "je 0xffffffff80200012"},
		{"ff2500001000", "jmp *0x100000(%rip) # 0xffffffff80300006 <data+0x6>"},
		{"ffd0", "call *%rax"},
		{"ff14c500002080", "call *-0x7fe00000(,%rax,8)"},
		{"c3", "ret"},
		{"f3c3", "repz ret"},
		{"6aff", "push $0xffffffffffffffff"},
		{"4883e4f0", "and $0xfffffffffffffff0,%rsp"},
		{"83e4f0", "and $0xfffffff0,%esp"},
		{"48c7c700002080", "mov $0xffffffff80200000,%rdi"},
		{"48bf000020800a000000", "movabs $0xa80200000,%rdi"},
		{"f3ab", "rep stos %eax,%es:(%rdi)"},
		{"f3a6", "repz cmpsb %es:(%rdi),%ds:(%rsi)"},
		{"4863c9", "movslq %ecx,%rcx"},
		{"0f1f440000", "nopl 0x0(%rax,%rax,1)"},
		{"66662e0f1f840000000000", "data16 cs nopw 0x0(%rax,%rax,1)"},
		{"6690", "xchg %ax,%ax"},
		{"d8c8", "fmul %st(0),%st"},
		{"de07", "fiadds (%rdi)"},
		{"f30f1efa", "endbr64"},
		{"f30f1efb", "endbr32"},
		{"0f01f9", "rdtscp"},
		{"c5fd6f45e0", "vmovdqa -0x20(%rbp),%ymm0"},
		{"3effe0", "notrack jmp *%rax"},
		// Not known, and so not shown as something else.
		{"f30fae20", ""},     // ptwrite, which x86asm takes for an xsave
		{"f30faef0", ""},     // umonitor, for an mfence
		{"480fc7f2", ""},     // rdrand %rdx, without the register
		{"62f67d08bfc1", ""}, // vfnmsub231sh, for vfnmsub231ss
		{"66e900000000", ""}, // a jump whose length depends on the vendor
		{"c4e2f9910c24", ""}, // vpgatherqq, with a general register as its index
	} {
		b, err := hex.DecodeString(c.code)
		if err != nil {
			t.Fatal(err)
		}
		i, err := x86.Decode(b)
		if err != nil {
			t.Errorf("%s: %v", c.code, err)
			continue
		}
		if got := Format(&i, 0xffffffff80200000, syms); got != c.want {
			t.Errorf("%s: got %q, want %q", c.code, got, c.want)
		}
	}
}
