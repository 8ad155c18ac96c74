package x86

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/arch/x86/x86asm"
)

// asmRows are instructions with their bytes and what objdump says of them: the
// edges of sizes, displacements and registers.
var asmRows = []struct {
	emit func(a *Asm)
	want string
	text string
}{
	{func(a *Asm) { a.Add(8, RAX, RCX) }, "4801c8", "add rax,rcx"},
	{func(a *Asm) { a.Add(1, RAX, Imm(0x7f)) }, "047f", "add al,0x7f"},
	{func(a *Asm) { a.Add(1, RSI, RBX) }, "4000de", "add sil,bl"},
	{func(a *Asm) { a.Add(1, At(RCX, 0), Imm(0xff)) }, "8001ff", "add BYTE PTR [rcx],0xff"},
	{func(a *Asm) { a.Or(4, R9, Imm(0xffffffff)) }, "4183c9ff", "or r9d,0xffffffff"},
	{func(a *Asm) { a.And(8, RAX, Imm(-0x4000)) }, "482500c0ffff", "and rax,0xffffffffffffc000"},
	{func(a *Asm) { a.And(8, RCX, Imm(-128)) }, "4883e180", "and rcx,0xffffffffffffff80"},
	{func(a *Asm) { a.And(8, RCX, Imm(-129)) }, "4881e17fffffff", "and rcx,0xffffffffffffff7f"},
	{func(a *Asm) { a.Sub(8, RCX, Imm(127)) }, "4883e97f", "sub rcx,0x7f"},
	{func(a *Asm) { a.Sub(8, RCX, Imm(128)) }, "4881e980000000", "sub rcx,0x80"},
	{func(a *Asm) { a.Cmp(2, RDX, At(RDI, 0)) }, "663b17", "cmp dx,WORD PTR [rdi]"},
	{func(a *Asm) { a.Cmp(2, At(RDI, 0), Imm(0x1234)) }, "66813f3412", "cmp WORD PTR [rdi],0x1234"},
	{func(a *Asm) { a.Cmp(4, RAX, Imm(1000)) }, "3de8030000", "cmp eax,0x3e8"},
	{func(a *Asm) { a.Test(1, RDX, Imm(7)) }, "f6c207", "test dl,0x7"},
	{func(a *Asm) { a.Test(8, RAX, Imm(1)) }, "48a901000000", "test rax,0x1"},
	{func(a *Asm) { a.Mov(8, RAX, At(RBP, 0)) }, "488b4500", "mov rax,QWORD PTR [rbp+0x0]"},
	{func(a *Asm) { a.Mov(8, RAX, At(R13, 0)) }, "498b4500", "mov rax,QWORD PTR [r13+0x0]"},
	{func(a *Asm) { a.Mov(8, RAX, At(R12, 0)) }, "498b0424", "mov rax,QWORD PTR [r12]"},
	{func(a *Asm) { a.Mov(8, RAX, At(RSP, 127)) }, "488b44247f", "mov rax,QWORD PTR [rsp+0x7f]"},
	{func(a *Asm) { a.Mov(8, RAX, At(RSP, 128)) }, "488b842480000000", "mov rax,QWORD PTR [rsp+0x80]"},
	{func(a *Asm) { a.Mov(8, RAX, At(RDX, -128)) }, "488b4280", "mov rax,QWORD PTR [rdx-0x80]"},
	{func(a *Asm) { a.Mov(8, RAX, At(RDX, -129)) }, "488b827fffffff", "mov rax,QWORD PTR [rdx-0x81]"},
	{func(a *Asm) { a.Mov(8, AtIndex(RBP, R12, 8, 0), R8) }, "4e8944e500", "mov QWORD PTR [rbp+r12*8+0x0],r8"},
	{func(a *Asm) { a.Mov(4, RAX, AtGS(0x10)) }, "658b042510000000", "mov eax,DWORD PTR gs:0x10"},
	{func(a *Asm) { a.Mov(8, R9, AtGS(-0x1000)) }, "654c8b0c2500f0ffff", "mov r9,QWORD PTR gs:0xfffffffffffff000"},
	{func(a *Asm) { a.Mov(1, At(NoReg, 0x8000), RAX) }, "88042500800000", "mov BYTE PTR ds:0x8000,al"},
	{func(a *Asm) { a.Mov(1, At(RAX, 1), RDI) }, "40887801", "mov BYTE PTR [rax+0x1],dil"},
	{func(a *Asm) { a.Mov(1, At(RAX, 1), R15) }, "44887801", "mov BYTE PTR [rax+0x1],r15b"},
	{func(a *Asm) { a.Mov(2, At(RAX, 0), Imm(0xffff)) }, "66c700ffff", "mov WORD PTR [rax],0xffff"},
	{func(a *Asm) { a.Mov(8, At(RAX, 0), Imm(-1)) }, "48c700ffffffff", "mov QWORD PTR [rax],0xffffffffffffffff"},
	{func(a *Asm) { a.Mov(8, RAX, Imm(0)) }, "b800000000", "mov eax,0x0"},
	{func(a *Asm) { a.Mov(4, RDI, Imm(-1)) }, "bfffffffff", "mov edi,0xffffffff"},
	{func(a *Asm) { a.Mov(8, R9, Imm(0x80000000)) }, "41b900000080", "mov r9d,0x80000000"},
	{func(a *Asm) { a.Mov(8, RSI, Imm(1<<32)) }, "48be0000000001000000", "movabs rsi,0x100000000"},
	{func(a *Asm) { a.Mov(8, R13, Imm(-0x80000000)) }, "49c7c500000080", "mov r13,0xffffffff80000000"},
	{func(a *Asm) { a.Mov(8, R13, Imm(-0x80000001)) }, "49bdffffff7fffffffff", "movabs r13,0xffffffff7fffffff"},
	{func(a *Asm) { a.Movzx(1, RAX, RSI) }, "400fb6c6", "movzx eax,sil"},
	{func(a *Asm) { a.Movzx(1, RSI, RAX) }, "0fb6f0", "movzx esi,al"},
	{func(a *Asm) { a.Movzx(2, R8, At(RAX, 2)) }, "440fb74002", "movzx r8d,WORD PTR [rax+0x2]"},
	{func(a *Asm) { a.Movzx(4, R8, R8) }, "4589c0", "mov r8d,r8d"},
	{func(a *Asm) { a.Movsx(8, 1, RAX, At(RDI, 0)) }, "480fbe07", "movsx rax,BYTE PTR [rdi]"},
	{func(a *Asm) { a.Movsx(8, 4, RAX, RDI) }, "4863c7", "movsxd rax,edi"},
	{func(a *Asm) { a.Lea(8, RSP, At(RSP, -128)) }, "488d642480", "lea rsp,[rsp-0x80]"},
	{func(a *Asm) { a.Lock().Xadd(8, At(RCX, 0), RAX) }, "f0480fc101", "lock xadd QWORD PTR [rcx],rax"},
	{func(a *Asm) { a.Lock().Cmpxchg(8, At(RCX, 16), RDX) }, "f0480fb15110", "lock cmpxchg QWORD PTR [rcx+0x10],rdx"},
	{func(a *Asm) { a.Lock().Bts(4, At(RSI, 0), 0) }, "f00fba2e00", "lock bts DWORD PTR [rsi],0x0"},
	{func(a *Asm) { a.Rol(2, R9, Imm(8)) }, "6641c1c108", "rol r9w,0x8"},
	{func(a *Asm) { a.ImulImm(8, RCX, RCX, Imm(64)) }, "486bc940", "imul rcx,rcx,0x40"},
	{func(a *Asm) { a.ImulImm(8, RCX, RCX, Imm(128)) }, "4869c980000000", "imul rcx,rcx,0x80"},
	{func(a *Asm) { a.Push(Imm(1)) }, "6801000000", "push 0x1"},
	{func(a *Asm) { a.JmpAt(At(RSP, -8)) }, "ff6424f8", "jmp QWORD PTR [rsp-0x8]"},
}

// TestAsmRows has the bytes, and the text where x86asm knows it.
func TestAsmRows(t *testing.T) {
	for _, r := range asmRows {
		b := Assemble(r.emit)
		if got := hex.EncodeToString(b); got != r.want {
			t.Errorf("%s: got %s, want %s", r.text, got, r.want)
		}
		if i, err := Decode(b); err != nil || int(i.Len) != len(b) {
			t.Errorf("%s: % x decodes to %d bytes: %v", r.text, b, i.Len, err)
		}
		if got, want := x86Text(b), normalizeText(r.text); got != want {
			t.Errorf("% x: x86asm says %q, want %q", b, got, want)
		}
	}
}

// x86Text is what golang.org/x/arch says of one instruction, as normalizeText has it.
// It writes immediates of 16 bits with their sign, and has other names for some
// conditions.
func x86Text(b []byte) string {
	x, err := x86asm.Decode(b, 64)
	if err != nil {
		return err.Error()
	}
	text := normalizeText(x86asm.IntelSyntax(x, 0, nil))
	if rel, ok := x.Args[0].(x86asm.Rel); ok {
		name, _, _ := strings.Cut(text, " ")
		text = fmt.Sprintf("%s %#x", name, uint64(len(b)+int(rel)))
	}
	text = otherNames.Replace(text)
	if x.DataSize == 16 {
		if head, v, ok := strings.Cut(text, ",0xffff"); ok && len(v) == 4 {
			text = head + ",0x" + v
		}
	}
	return text
}

var otherNames = strings.NewReplacer("jnl ", "jge ", "jnb ", "jae ", "jnle ", "jg ", "jnbe ", "ja ", "jz ", "je ", "jnz ", "jne ",
	"setnl ", "setge ", "setnb ", "setae ", "setnle ", "setg ", "setnbe ", "seta ", "setz ", "sete ", "setnz ", "setne ")

var (
	scaled = regexp.MustCompile(`\b([248])\*(r[0-9a-z]+)`)
	direct = regexp.MustCompile(`\[(0x[0-9a-f]+)\]`)
	number = regexp.MustCompile(`([+-]?)\b(0x[0-9a-f]+|[0-9]+)\b`)
	spaces = regexp.MustCompile(`\s+`)
)

// normalizeText brings what different disassemblers write to one form: lower case,
// single spaces, numbers modulo 2^32 without sign, no scale of 1, no
// displacement of 0.
func normalizeText(s string) string {
	s = strings.ToLower(spaces.ReplaceAllString(s, " "))
	s = strings.NewReplacer(", ", ",", "ptr ", "", "ds:", "", "*1]", "]", "*1+", "+", "*1-", "-", "movabs", "mov", "movsxd", "movsx",
		"rex ", "", "pushfq", "pushf", "popfq", "popf", "xchg ax,ax", "data16").Replace(s)
	s = scaled.ReplaceAllString(s, "$2*$1")
	s = number.ReplaceAllStringFunc(s, func(n string) string {
		sign, digits := "", n
		if n[0] == '+' || n[0] == '-' {
			sign, digits = n[:1], n[1:]
		}
		v, err := strconv.ParseUint(digits, 0, 64)
		if err != nil {
			return n
		}
		if sign == "-" {
			v = -v
		}
		if v = uint64(uint32(v)); v == 0 && sign != "" {
			return ""
		}
		if sign != "" {
			sign = "+"
		}
		return fmt.Sprintf("%s%#x", sign, v)
	})
	s = strings.NewReplacer(",+0x", ",0x", " +0x", " 0x", "*0x", "*").Replace(s)
	return direct.ReplaceAllString(s, "$1")
}

// TestAsmLabels has jumps in both directions, to and from outside.
func TestAsmLabels(t *testing.T) {
	a := NewAsm(0x1000)
	ahead := a.NewLabel()
	start := a.LabelHere()
	a.Jcc(CondNE, ahead)
	a.Jmp(start)
	a.Call(a.LabelAt(0x800))
	a.Place(ahead)
	a.Ret()
	if got, want := hex.EncodeToString(a.Code()), "0f850a000000e9f5fffffff0e8"; got != "0f850a000000"+"e9f5ffffff"+"e8f0f7ffff"+"c3" {
		t.Errorf("got %s, not %s", got, want)
	}
	if a.Offset(ahead) != 16 || a.PC() != 0x1011 {
		t.Errorf("ahead is at %d, the end at %#x", a.Offset(ahead), a.PC())
	}
	for _, to := range []uint64{0x1005 + 1<<31 - 1, 0x1005 + 1<<31, ^uint64(0) - 1<<30} {
		far := NewAsm(0x1000)
		far.Jmp(far.LabelAt(to))
		if _, err := far.Link(); (err == nil) != jmpReaches(0x1000, to) || err != nil && !errors.Is(err, ErrOutOfReach) {
			t.Errorf("jump to %#x: %v", to, err)
		}
	}
}

// TestAsmBugs: what no instruction can be is no code.
func TestAsmBugs(t *testing.T) {
	for name, f := range map[string]func(a *Asm){
		"label not placed":     func(a *Asm) { a.Jmp(a.NewLabel()) },
		"label placed twice":   func(a *Asm) { a.Place(a.LabelHere()) },
		"imm8 too large":       func(a *Asm) { a.Add(1, RAX, Imm(256)) },
		"imm16 too small":      func(a *Asm) { a.Add(2, RAX, Imm(-0x8001)) },
		"imm32 too large":      func(a *Asm) { a.Add(4, RAX, Imm(1<<32)) },
		"imm32 without sign":   func(a *Asm) { a.Add(8, RAX, Imm(0x80000000)) },
		"disp too large":       func(a *Asm) { a.Mov(8, RAX, At(RAX, 1<<31)) },
		"index is rsp":         func(a *Asm) { a.Mov(8, RAX, AtIndex(RAX, RSP, 1, 0)) },
		"scale of 3":           func(a *Asm) { a.Mov(8, RAX, AtIndex(RAX, RCX, 3, 0)) },
		"index without base":   func(a *Asm) { a.Mov(8, RAX, AtIndex(NoReg, RCX, 1, 0)) },
		"size of 3":            func(a *Asm) { a.Mov(3, RAX, RCX) },
		"memory to memory":     func(a *Asm) { a.Mov(8, At(RAX, 0), At(RCX, 0)) },
		"mov of part":          func(a *Asm) { a.Mov(1, RAX, Imm(1)) },
		"movsx of 4 to 4":      func(a *Asm) { a.Movsx(4, 4, RAX, RCX) },
		"shift by 64":          func(a *Asm) { a.Shl(8, RAX, Imm(64)) },
		"test of memory twice": func(a *Asm) { a.Test(8, At(RAX, 0), At(RCX, 0)) },
		"no register":          func(a *Asm) { a.Mov(8, RAX, NoReg) },
		"no register to push":  func(a *Asm) { a.Push(NoReg) },
		"no index":             func(a *Asm) { a.Mov(8, RAX, AtIndex(RAX, 16, 1, 0)) },
		"push of 64 bits":      func(a *Asm) { a.Push(Imm(1 << 31)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			Assemble(f)
		}()
	}
}

// TestAsmWritten has the registers recorded as written.
func TestAsmWritten(t *testing.T) {
	var a Asm
	a.Cmp(8, RBX, RSI)
	a.Test(8, RBX, RSI)
	a.Mov(8, At(RDI, 0), RBP)
	a.Mov(8, R15, RBP)
	a.Add(8, R8, Imm(1))
	a.Lock().Cmpxchg(8, At(RDI, 0), R9)
	a.Lock().Xadd(8, At(RDI, 0), R10)
	var want RegSet
	for _, r := range []Reg64{R15, R8, RAX, R10} {
		want.add(r)
	}
	if a.WrittenRegs() != want {
		t.Errorf("got %016b, want %016b", a.WrittenRegs(), want)
	}
}
