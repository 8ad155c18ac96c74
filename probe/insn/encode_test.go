package insn

import (
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// must drops the ok of an encoder.
func must(b []byte, ok bool) []byte {
	if !ok {
		return nil
	}
	return b
}

// encodings are all encoders: bytes, and the source that makes the GNU
// assembler write the same.
var encodings = []struct {
	got        []byte
	want, text string
}{
	{AppendInt3(nil), "cc", "int3"},
	{AppendUD2(nil), "0f0b", "ud2"},
	{must(AppendJmp(nil, 0x1000, 0x1000)), "e9fbffffff", ".byte 0xe9; .long -5"},
	{must(AppendJmp(nil, 0x1000, 0x2005)), "e900100000", ".byte 0xe9; .long 0x1000"},
	{must(AppendCall(nil, 0x1000, 0x2005)), "e800100000", "call . + 0x1005"},
	{AppendJmpAbs(nil, 0x1122334455667788), "ff25000000008877665544332211", "jmp *0(%rip); .quad 0x1122334455667788"},
	{AppendPushf(nil), "9c", "pushfq"},
	{AppendPopf(nil), "9d", "popfq"},
	{AppendPush(nil, RAX), "50", "push %rax"},
	{AppendPush(nil, RDI), "57", "push %rdi"},
	{AppendPush(nil, R8), "4150", "push %r8"},
	{AppendPush(nil, R15), "4157", "push %r15"},
	{AppendPop(nil, RSP), "5c", "pop %rsp"},
	{AppendPop(nil, R12), "415c", "pop %r12"},
	{AppendPushImm(nil, -2), "68feffffff", ".byte 0x68; .long -2"},
	{AppendPushImm(nil, 0x12345678), "6878563412", "push $0x12345678"},
	{AppendMovImm(nil, RAX, 0), "b800000000", "mov $0, %eax"},
	{AppendMovImm(nil, RDI, 0xffffffff), "bfffffffff", "mov $0xffffffff, %edi"},
	{AppendMovImm(nil, R9, 0x80000000), "41b900000080", "mov $0x80000000, %r9d"},
	{AppendMovImm(nil, RSI, 1<<32), "48be0000000001000000", "movabs $0x100000000, %rsi"},
	{AppendMovImm(nil, RSI, ^uint64(0)), "48c7c6ffffffff", "mov $-1, %rsi"},
	{AppendMovImm(nil, R13, 0xffffffff80000000), "49c7c500000080", "mov $-0x80000000, %r13"},
	{AppendMovImm(nil, R13, 0xffffffff7fffffff), "49bdffffff7fffffffff", "movabs $-0x80000001, %r13"},
	{AppendMovReg(nil, RSI, RSP), "4889e6", "mov %rsp, %rsi"},
	{AppendMovReg(nil, R8, R15), "4d89f8", "mov %r15, %r8"},
	{AppendLea(nil, RSP, RSP, -128), "488da42480ffffff", "lea.d32 -128(%rsp), %rsp"},
	{AppendLea(nil, RAX, R13, 8), "498d8508000000", "lea.d32 8(%r13), %rax"},
	{AppendLea(nil, R9, R12, 8), "4d8d8c2408000000", "lea.d32 8(%r12), %r9"},
	{AppendLoad(nil, RAX, RBP, 0), "488b8500000000", "mov.d32 0(%rbp), %rax"},
	{AppendLoad(nil, R10, RSP, 16), "4c8b942410000000", "mov.d32 16(%rsp), %r10"},
	{AppendStore(nil, RDI, 0x1234, RBX), "48899f34120000", "mov.d32 %rbx, 0x1234(%rdi)"},
	{AppendStore(nil, R15, -8, R14), "4d89b7f8ffffff", "mov.d32 %r14, -8(%r15)"},
	{AppendNop(nil, 1), "90", "nop"},
	{AppendNop(nil, 2), "6690", "xchg %ax, %ax"},
	{AppendNop(nil, 3), "0f1f00", "nopl (%rax)"},
	{AppendNop(nil, 4), "0f1f4000", "nopl.d8 0(%rax)"},
	{AppendNop(nil, 5), "0f1f440000", "nopl.d8 0(%rax,%rax,1)"},
	{AppendNop(nil, 6), "660f1f440000", "nopw.d8 0(%rax,%rax,1)"},
	{AppendNop(nil, 7), "0f1f8000000000", "nopl.d32 0(%rax)"},
	{AppendNop(nil, 8), "0f1f840000000000", "nopl.d32 0(%rax,%rax,1)"},
	{AppendNop(nil, 9), "660f1f840000000000", "nopw.d32 0(%rax,%rax,1)"},
	{AppendNop(nil, 11), "660f1f8400000000006690", "nopw.d32 0(%rax,%rax,1); xchg %ax, %ax"},
	{AppendNop(nil, 0), "", ""},
}

// TestEncode has the bytes of every encoder; each must decode to its end.
func TestEncode(t *testing.T) {
	for _, tt := range encodings {
		if got := hex.EncodeToString(tt.got); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.text, got, tt.want)
		}
		for b := tt.got; len(b) > 0 && !strings.Contains(tt.text, ".quad"); {
			i, err := Decode(b)
			if err != nil {
				t.Errorf("%s: % x: %v", tt.text, b, err)
				break
			}
			b = b[i.Len:]
		}
	}
}

// TestEncodeAssembler holds the same table against the GNU assembler, in a
// full run.
func TestEncodeAssembler(t *testing.T) {
	if !full() {
		return
	}
	dir := t.TempDir()
	var src strings.Builder
	var want []byte
	for _, tt := range encodings {
		src.WriteString(tt.text + "\n")
		want = append(want, unhex(t, tt.want)...)
	}
	file, obj, bin := filepath.Join(dir, "a.s"), filepath.Join(dir, "a.o"), filepath.Join(dir, "a.bin")
	// ".d32" is how the table asks for a displacement of that size.
	asm := strings.NewReplacer("lea.d32", "{disp32} lea", "mov.d32", "{disp32} mov", "nopl.d32", "{disp32} nopl", "nopw.d32", "{disp32} nopw",
		"nopl.d8", "{disp8} nopl", "nopw.d8", "{disp8} nopw").Replace(src.String())
	if err := os.WriteFile(file, []byte(asm), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"as", "-o", obj, file}, {"objcopy", "-O", "binary", "-j", ".text", obj, bin}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	got, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("as wrote\n% x, the table has\n% x", got, want)
	}
}

// TestJmpReach has the edges of a jump's reach, which wraps modulo 2^64.
func TestJmpReach(t *testing.T) {
	for _, tt := range []struct {
		from, to uint64
		want     bool
	}{
		{0x1000, 0x1005, true},
		{0, 5 + 1<<31 - 1, true},
		{0, 5 + 1<<31, false},
		{1 << 31, 5, true},
		{1<<31 + 1, 5, false},
		{^uint64(0), 4, true},
		{4, ^uint64(0), true},
		{^uint64(0), 4 + 1<<31 - 1, true},
		{^uint64(0), 4 + 1<<31, false},
		{0xffffffff81000000, 0xffffffffc0000000, true},
		{0x401000, 0xffffffff81000000, true}, // through the top
		{0x7f0000001000, 0xffffffff81000000, false},
	} {
		if got := JmpReaches(tt.from, tt.to); got != tt.want {
			t.Errorf("%#x to %#x: got %v, want %v", tt.from, tt.to, got, tt.want)
		}
		b, ok := Jmp32(tt.from, tt.to)
		if ok != tt.want {
			t.Errorf("Jmp32 %#x to %#x: got %v, want %v", tt.from, tt.to, ok, tt.want)
			continue
		}
		before := []byte{1, 2}
		if out, ok := AppendJmp(before, tt.from, tt.to); !ok && len(out) != 2 {
			t.Errorf("AppendJmp %#x to %#x: changed its input", tt.from, tt.to)
		}
		if out, ok := AppendCall(before, tt.from, tt.to); !ok && len(out) != 2 {
			t.Errorf("AppendCall %#x to %#x: changed its input", tt.from, tt.to)
		}
		if !ok {
			continue
		}
		i, err := Decode(b[:])
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := i.Target(tt.from); got != tt.to {
			t.Errorf("jump from %#x goes to %#x, want %#x", tt.from, got, tt.to)
		}
	}
}
