package x86

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestAsmText assembles each instruction with random operands, and lets
// x86asm, and objdump where there is one, read them.
func TestAsmText(t *testing.T) {
	notInsns := []string{"NewLabel", "Place", "LabelHere", "LabelAt", "Offset", "Len", "PC", "WrittenRegs", "MarkWritten", "Append", "Align", "Link", "Code", "Reset"}
	var names []string
	for m := range reflect.TypeFor[*Asm]().Methods() {
		if name := m.Name; !slices.Contains(notInsns, name) {
			names = append(names, name)
			if asmMethods[name] == nil {
				t.Errorf("nothing tests the text of %s", name)
			}
		}
	}
	if len(names) != len(asmMethods) {
		t.Fatalf("%d instructions, %d in the test", len(names), len(asmMethods))
	}
	g := operands{rand.New(rand.NewPCG(1, 2))}
	const n = 60
	var codes [][]byte
	var want []string
	for _, r := range asmRows {
		codes, want = append(codes, Assemble(r.emit)), append(want, normalizeText(r.text))
	}
	for _, name := range names {
		for range n {
			emit, text := asmMethods[name](g)
			a := NewAsm(0)
			emit(a)
			b := bytes.Clone(a.Code())
			if i, err := Decode(b); err != nil || int(i.Len) != len(b) {
				t.Errorf("%s: % x decodes to %d bytes: %v", text, b, i.Len, err)
				continue
			}
			text = normalizeText(text)
			if got := x86Text(b); got != text {
				t.Errorf("% x: x86asm says %q, want %q", b, got, text)
			}
			codes, want = append(codes, b), append(want, text)
		}
	}
	if _, err := exec.LookPath("objdump"); err != nil {
		t.Logf("no objdump here: %v", err)
		return
	}
	seen := 0
	disassembleSlots(t, codes, func(k int, l *line) {
		seen++
		if len(codes[k]) != len(l.bytes) {
			t.Errorf("% x: objdump takes %d bytes", codes[k], len(l.bytes))
		}
		text := l.text
		if f := strings.Fields(text); len(f) == 2 && (f[0] == "jmp" || f[0] == "call" || f[0][0] == 'j') && strings.HasPrefix(f[1], "0x") {
			v, _ := strconv.ParseUint(f[1], 0, 64)
			text = fmt.Sprintf("%s %#x", f[0], v-l.addr)
		}
		if got := normalizeText(text); got != want[k] {
			t.Errorf("% x: objdump says %q, want %q", codes[k], got, want[k])
		}
	})
	if seen != len(codes) {
		t.Errorf("objdump saw %d of %d", seen, len(codes))
	}
}

// operands makes operands, with their text.
type operands struct{ *rand.Rand }

var regNames64 = [...]string{"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"}

// regText is the name of a register of size bytes.
func regText(r Reg64, size int) string {
	n := regNames64[r]
	if r >= R8 {
		return n + map[int]string{1: "b", 2: "w", 4: "d", 8: ""}[size]
	}
	switch size {
	case 8:
		return n
	case 4:
		return "e" + n[1:]
	case 2:
		return n[1:]
	}
	if r < RSP {
		return n[1:2] + "l"
	}
	return n[1:] + "l"
}

var sizeText = map[int]string{0: "", 1: "byte ", 2: "word ", 4: "dword ", 8: "qword "}

func (g operands) reg() Reg64 { return Reg64(g.IntN(16)) }

// size is an operand size, at least min.
func (g operands) size(min int) int {
	for {
		if n := 1 << g.IntN(4); n >= min {
			return n
		}
	}
}

var edges = []int64{0, 1, -1, 8, 127, 128, -128, -129, 255, 256, 0x7fff, 0x8000, 0xffff, -0x8000, 0x7fffffff, -0x80000000}

func (g operands) number() int64 {
	if g.IntN(3) == 0 {
		return int64(int32(g.Uint32()))
	}
	return edges[g.IntN(len(edges))]
}

// mem is a memory operand; its text begins with the size in bytes, if not 0.
func (g operands) mem(size int) (Mem, string) {
	m := Mem{Base: g.reg(), Index: NoReg, Scale: 1, Disp: g.number()}
	text := "[" + regNames64[m.Base]
	if g.IntN(2) == 0 {
		if m.Index = g.reg(); m.Index == RSP {
			m.Index = R12
		}
		m.Scale = 1 << g.IntN(4)
		text += fmt.Sprintf("+%s*%d", regNames64[m.Index], m.Scale)
	}
	return m, fmt.Sprintf("%s%s%+d]", sizeText[size], text, m.Disp)
}

// rm is a register or memory.
func (g operands) rm(size int) (Arg, string) {
	if g.IntN(2) == 0 {
		r := g.reg()
		return r, regText(r, size)
	}
	return g.mem(size)
}

// imm is an immediate of an operation on size bytes.
func (g operands) imm(size int) (Imm, string) {
	v := g.number()
	switch size {
	case 1:
		v = int64(int8(v))
	case 2:
		v = int64(int16(v))
	}
	return Imm(v), fmt.Sprintf("%#x", uint64(v)&(1<<(8*size-1)<<1-1))
}

// pair is what an operation of two operands may have.
func (g operands) pair(size int) (dst, src Arg, text string) {
	switch g.IntN(4) {
	case 0:
		m, s := g.mem(size)
		r := g.reg()
		return r, m, regText(r, size) + "," + s
	case 1:
		d, s := g.rm(size)
		v, t := g.imm(size)
		return d, v, s + "," + t
	default:
		d, s := g.rm(size)
		r := g.reg()
		return d, r, s + "," + regText(r, size)
	}
}

// asmMethods makes, for each instruction by its method's name, one with random
// operands and its text.
var asmMethods = map[string]func(g operands) (func(a *Asm), string){
	"Add": twoOperands("add", (*Asm).Add), "Or": twoOperands("or", (*Asm).Or), "Adc": twoOperands("adc", (*Asm).Adc),
	"And": twoOperands("and", (*Asm).And), "Sub": twoOperands("sub", (*Asm).Sub), "Xor": twoOperands("xor", (*Asm).Xor),
	"Cmp": twoOperands("cmp", (*Asm).Cmp),
	"Inc": oneOperand("inc", (*Asm).Inc), "Dec": oneOperand("dec", (*Asm).Dec), "Not": oneOperand("not", (*Asm).Not), "Neg": oneOperand("neg", (*Asm).Neg),
	"Mul": oneOperand("mul", (*Asm).Mul), "Div": oneOperand("div", (*Asm).Div), "Idiv": oneOperand("idiv", (*Asm).Idiv),
	"Shl": shift("shl", (*Asm).Shl), "Shr": shift("shr", (*Asm).Shr), "Sar": shift("sar", (*Asm).Sar), "Rol": shift("rol", (*Asm).Rol),
	"Xchg": memReg(1, "xchg", (*Asm).Xchg), "Xadd": memReg(1, "xadd", (*Asm).Xadd), "Cmpxchg": memReg(1, "cmpxchg", (*Asm).Cmpxchg),
	"Ret": noOperands("ret", (*Asm).Ret), "Int3": noOperands("int3", (*Asm).Int3), "Iretq": noOperands("iretq", (*Asm).Iretq),
	"Pushfq": noOperands("pushf", (*Asm).Pushfq), "Popfq": noOperands("popf", (*Asm).Popfq), "Lahf": noOperands("lahf", (*Asm).Lahf), "Sahf": noOperands("sahf", (*Asm).Sahf),
	"Cli": noOperands("cli", (*Asm).Cli), "Cld": noOperands("cld", (*Asm).Cld), "Hlt": noOperands("hlt", (*Asm).Hlt), "Pause": noOperands("pause", (*Asm).Pause),
	"Nop": noOperands("nop", (*Asm).Nop), "Rdtsc": noOperands("rdtsc", (*Asm).Rdtsc), "Syscall": noOperands("syscall", (*Asm).Syscall),
	"Test": func(g operands) (func(a *Asm), string) {
		size := g.size(1)
		x, s := g.rm(size)
		if g.IntN(2) == 0 {
			v, t := g.imm(size)
			return func(a *Asm) { a.Test(size, x, v) }, "test " + s + "," + t
		}
		r := g.reg()
		return func(a *Asm) { a.Test(size, x, r) }, "test " + s + "," + regText(r, size)
	},
	"Mov": func(g operands) (func(a *Asm), string) {
		size := g.size(1)
		if g.IntN(3) == 0 {
			r, v := g.reg(), g.Int64()>>g.IntN(64)
			if g.IntN(2) == 0 {
				v = int64(uint32(v))
			}
			wide := 8
			if v == int64(uint32(v)) {
				wide = 4
			}
			return func(a *Asm) { a.Mov(8, r, Imm(v)) }, fmt.Sprintf("mov %s,%#x", regText(r, wide), uint64(v))
		}
		dst, src, text := g.pair(size)
		if _, ok := dst.(Reg64); ok && reflect.TypeOf(src) == reflect.TypeFor[Imm]() {
			dst, src, text = RAX, RCX, regText(RAX, size)+","+regText(RCX, size)
		}
		return func(a *Asm) { a.Mov(size, dst, src) }, "mov " + text
	},
	"Movzx": func(g operands) (func(a *Asm), string) {
		size, r := 1<<g.IntN(2), g.reg()
		src, s := g.rm(size)
		return func(a *Asm) { a.Movzx(size, r, src) }, fmt.Sprintf("movzx %s,%s", regText(r, 4), s)
	},
	"Movsx": func(g operands) (func(a *Asm), string) {
		to, size, r := 4<<g.IntN(2), 1<<g.IntN(2), g.reg()
		if to == 8 && g.IntN(3) == 0 {
			size = 4
		}
		src, s := g.rm(size)
		return func(a *Asm) { a.Movsx(to, size, r, src) }, fmt.Sprintf("movsx %s,%s", regText(r, to), s)
	},
	"Lea": func(g operands) (func(a *Asm), string) {
		size, r := g.size(4), g.reg()
		m, s := g.mem(0)
		return func(a *Asm) { a.Lea(size, r, m) }, fmt.Sprintf("lea %s,%s", regText(r, size), s)
	},
	"Lock": func(g operands) (func(a *Asm), string) {
		size := g.size(1)
		m, s := g.mem(size)
		r := g.reg()
		return func(a *Asm) { a.Lock().Add(size, m, r) }, fmt.Sprintf("lock add %s,%s", s, regText(r, size))
	},
	"Bts": func(g operands) (func(a *Asm), string) {
		size, n := g.size(2), uint8(g.IntN(32))
		m, s := g.mem(size)
		return func(a *Asm) { a.Bts(size, m, n) }, fmt.Sprintf("bts %s,%d", s, n)
	},
	"SignDX": func(g operands) (func(a *Asm), string) {
		size := g.size(4)
		return func(a *Asm) { a.SignDX(size) }, map[int]string{4: "cdq", 8: "cqo"}[size]
	},
	"Imul": func(g operands) (func(a *Asm), string) {
		size, r := g.size(2), g.reg()
		src, s := g.rm(size)
		return func(a *Asm) { a.Imul(size, r, src) }, fmt.Sprintf("imul %s,%s", regText(r, size), s)
	},
	"ImulImm": func(g operands) (func(a *Asm), string) {
		size, r := g.size(2), g.reg()
		src, s := g.rm(size)
		v, t := g.imm(size)
		return func(a *Asm) { a.ImulImm(size, r, src, v) }, fmt.Sprintf("imul %s,%s,%s", regText(r, size), s, t)
	},
	"Shrd": func(g operands) (func(a *Asm), string) {
		size, r, n := g.size(2), g.reg(), uint8(g.IntN(64))
		dst, s := g.rm(size)
		return func(a *Asm) { a.Shrd(size, dst, r, n) }, fmt.Sprintf("shrd %s,%s,%d", s, regText(r, size), n)
	},
	"Bswap": func(g operands) (func(a *Asm), string) {
		size, r := g.size(4), g.reg()
		return func(a *Asm) { a.Bswap(size, r) }, "bswap " + regText(r, size)
	},
	"Setcc": func(g operands) (func(a *Asm), string) {
		c, r := g.cond()
		reg := g.reg()
		return func(a *Asm) { a.Setcc(c, reg) }, fmt.Sprintf("set%s %s", r, regText(reg, 1))
	},
	"Jcc": func(g operands) (func(a *Asm), string) {
		c, s := g.cond()
		return func(a *Asm) { a.Jcc(c, a.LabelAt(0x1000)) }, fmt.Sprintf("j%s 0x1000", s)
	},
	"Jmp": func(operands) (func(a *Asm), string) { return func(a *Asm) { a.Jmp(a.LabelAt(0x1000)) }, "jmp 0x1000" },
	"Call": func(operands) (func(a *Asm), string) {
		return func(a *Asm) { a.Call(a.LabelAt(0x1000)) }, "call 0x1000"
	},
	"JmpAt":  indirectOperand("jmp", (*Asm).JmpAt),
	"CallAt": indirectOperand("call", (*Asm).CallAt),
	"Pop":    indirectOperand("pop", (*Asm).Pop),
	"Push": func(g operands) (func(a *Asm), string) {
		if g.IntN(3) > 0 {
			return indirectOperand("push", (*Asm).Push)(g)
		}
		v, s := g.imm(8)
		return func(a *Asm) { a.Push(v) }, "push " + s
	},
	"Out": func(g operands) (func(a *Asm), string) {
		n := uint8(g.Uint32())
		return func(a *Asm) { a.Out(n) }, fmt.Sprintf("out %#x,al", n)
	},
}

func (g operands) cond() (Cond, string) {
	c := g.IntN(16)
	return Cond(c), [...]string{"o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g"}[c]
}

func twoOperands(name string, f func(a *Asm, size int, dst, src Arg)) func(g operands) (func(a *Asm), string) {
	return func(g operands) (func(a *Asm), string) {
		size := g.size(1)
		dst, src, text := g.pair(size)
		return func(a *Asm) { f(a, size, dst, src) }, name + " " + text
	}
}

func oneOperand(name string, f func(a *Asm, size int, x Arg)) func(g operands) (func(a *Asm), string) {
	return func(g operands) (func(a *Asm), string) {
		size := g.size(1)
		x, s := g.rm(size)
		return func(a *Asm) { f(a, size, x) }, name + " " + s
	}
}

func shift(name string, f func(a *Asm, size int, dst, n Arg)) func(g operands) (func(a *Asm), string) {
	return func(g operands) (func(a *Asm), string) {
		size := g.size(1)
		x, s := g.rm(size)
		if g.IntN(3) == 0 {
			return func(a *Asm) { f(a, size, x, RCX) }, fmt.Sprintf("%s %s,cl", name, s)
		}
		n := g.IntN(64)
		return func(a *Asm) { f(a, size, x, Imm(n)) }, fmt.Sprintf("%s %s,%d", name, s, n)
	}
}

func memReg(min int, name string, f func(a *Asm, size int, m Mem, r Reg64)) func(g operands) (func(a *Asm), string) {
	return func(g operands) (func(a *Asm), string) {
		size, r := g.size(min), g.reg()
		m, s := g.mem(size)
		return func(a *Asm) { f(a, size, m, r) }, fmt.Sprintf("%s %s,%s", name, s, regText(r, size))
	}
}

func indirectOperand(name string, f func(a *Asm, x Arg)) func(g operands) (func(a *Asm), string) {
	return func(g operands) (func(a *Asm), string) {
		x, s := g.rm(8)
		return func(a *Asm) { f(a, x) }, name + " " + s
	}
}

func noOperands(name string, f func(a *Asm)) func(g operands) (func(a *Asm), string) {
	return func(operands) (func(a *Asm), string) { return f, name }
}
