package bpf

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// assemble translates test programs: one instruction on a line, in the notation
// of the bpf_conformance suite; labels end in a colon, # begins a comment.
func assemble(src string) ([]Insn, error) {
	a := &assembler{labels: map[string]int{}}
	var lines [][]string
	lastExit := -1
	for _, l := range strings.Split(src, "\n") {
		l, _, _ = strings.Cut(l, "#")
		l = strings.TrimSpace(l)
		if name, ok := strings.CutSuffix(l, ":"); ok {
			a.labels[name] = a.slots
			continue
		}
		f := strings.FieldsFunc(strings.ReplaceAll(l, "%", ""), func(r rune) bool { return r == ' ' || r == '\t' || r == ',' })
		if len(f) == 0 {
			continue
		}
		lines = append(lines, f)
		if f[0] == "exit" {
			lastExit = a.slots
		}
		a.slots++
		if f[0] == "lddw" || f[0] == "ldmap" || f[0] == "ldval" {
			a.slots++
		}
	}
	if _, ok := a.labels["exit"]; !ok && lastExit >= 0 {
		a.labels["exit"] = lastExit // which the suite's programs jump to by that name
	}
	for _, f := range lines {
		i, err := a.insn(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(f, " "), err)
		}
		a.out = append(a.out, i)
		if i.wide() {
			a.out = append(a.out, Insn{})
		}
	}
	return a.out, nil
}

func mustAssemble(t testing.TB, src string) asm.Instructions {
	t.Helper()
	p, err := assemble(src)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, p...)
}

type assembler struct {
	labels map[string]int
	slots  int
	out    []Insn
}

var asmALU = map[string]Opcode{
	"add": OpAdd, "sub": OpSub, "mul": OpMul, "div": OpDiv, "or": OpOr, "and": OpAnd, "lsh": OpLsh, "rsh": OpRsh,
	"mod": OpMod, "xor": OpXor, "mov": OpMov, "arsh": OpArsh, "sdiv": OpDiv, "smod": OpMod,
}

var asmJump = map[string]Opcode{
	"jeq": OpJEQ, "jne": OpJNE, "jgt": OpJGT, "jge": OpJGE, "jlt": OpJLT, "jle": OpJLE, "jset": OpJSET,
	"jsgt": OpJSGT, "jsge": OpJSGE, "jslt": OpJSLT, "jsle": OpJSLE,
}

var asmSize = map[string]Opcode{"b": SizeB, "h": SizeH, "w": SizeW, "dw": SizeDW}

func (a *assembler) insn(f []string) (i Insn, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	name := f[0]
	base, is32 := strings.CutSuffix(name, "32")
	class, jclass := ClassALU64, ClassJMP
	if is32 {
		class, jclass = ClassALU, ClassJMP32
	}
	switch {
	case asmALU[base] != 0 || base == "add":
		i.Op, i.Dst = class|asmALU[base], reg(f[1])
		a.operand(&i, f[2])
		if base[0] == 's' && (base == "sdiv" || base == "smod") {
			i.Off = 1
		}
	case base == "neg":
		i = Insn{Op: class | OpNeg, Dst: reg(f[1])}
	case strings.HasPrefix(name, "le") || strings.HasPrefix(name, "be"):
		i = Insn{Op: ClassALU | OpEnd, Dst: reg(f[1]), Imm: num(name[2:])}
		if name[0] == 'b' {
			i.Op |= SrcX
		}
	case strings.HasPrefix(name, "swap"), strings.HasPrefix(name, "bswap"):
		i = Insn{Op: ClassALU64 | OpEnd, Dst: reg(f[1]), Imm: num(strings.TrimPrefix(strings.TrimPrefix(name, "b"), "swap"))}
	case strings.HasPrefix(name, "movsx"): // movsx864: from 8 bits to 64
		i = Insn{Op: ClassALU64 | OpMov | SrcX, Dst: reg(f[1]), Src: reg(f[2])}
		w := name[5:]
		if w == "832" || w == "1632" {
			i.Op = ClassALU | OpMov | SrcX
		}
		i.Off = int16(num(w[:len(w)-2]))
	case asmJump[base] != 0:
		i.Op, i.Dst = jclass|asmJump[base], reg(f[1])
		a.operand(&i, f[2])
		i.Off = int16(a.jump(f[3]))
	case name == "ja":
		i = Insn{Op: OpGoto, Off: int16(a.jump(f[1]))}
	case name == "ja32", name == "gotol":
		i = Insn{Op: OpGotoL, Imm: int64(a.jump(f[1]))}
	case name == "call" && f[1] == "local":
		i = Insn{Op: OpCallK, Src: CallLocal, Imm: int64(a.jump(f[2]))}
	case name == "call":
		i = Insn{Op: OpCallK, Imm: num(f[1])}
	case name == "exit":
		i = Insn{Op: OpExitK}
	case name == "lddw":
		i = Insn{Op: OpLoadImm64, Dst: reg(f[1]), Imm: num(f[2])}
	case name == "ldmap":
		i = Insn{Op: OpLoadImm64, Dst: reg(f[1]), Src: ImmMapFD, Imm: num(f[2])}
	case name == "ldval":
		i = Insn{Op: OpLoadImm64, Dst: reg(f[1]), Src: ImmMapValue, Imm: num(f[2]) | num(f[3])<<32}
	case name == "lock":
		i = a.lock(f[1:])
	case strings.HasPrefix(name, "ldx"):
		size, sx := strings.CutPrefix(name[3:], "s")
		i.Op, i.Dst = ClassLDX|ModeMEM|asmSize[size], reg(f[1])
		if sx {
			i.Op = i.Op&^modeMask | ModeMEMSX
		}
		i.Src, i.Off = mem(f[2])
	case strings.HasPrefix(name, "stx"):
		i.Op, i.Src = ClassSTX|ModeMEM|asmSize[name[3:]], reg(f[2])
		i.Dst, i.Off = mem(f[1])
	case strings.HasPrefix(name, "st"):
		i.Op, i.Imm = ClassST|ModeMEM|asmSize[name[2:]], imm32(f[2])
		i.Dst, i.Off = mem(f[1])
	default:
		err = fmt.Errorf("unknown instruction")
	}
	return i, err
}

func (a *assembler) lock(f []string) Insn {
	if f[0] == "fetch" {
		f = append([]string{"fetch_" + f[1]}, f[2:]...)
	}
	name, is32 := strings.CutSuffix(f[0], "32")
	i := Insn{Op: ClassSTX | ModeATOMIC | SizeDW, Src: reg(f[2])}
	if is32 {
		i.Op = ClassSTX | ModeATOMIC | SizeW
	}
	i.Dst, i.Off = mem(f[1])
	name, fetch := strings.CutPrefix(name, "fetch_")
	i.Imm = map[string]int64{"add": AtomicAdd, "or": AtomicOr, "and": AtomicAnd, "xor": AtomicXor, "xchg": AtomicXchg, "cmpxchg": AtomicCmpXchg}[name]
	if fetch {
		i.Imm |= AtomicFetch
	}
	return i
}

func (a *assembler) operand(i *Insn, s string) {
	if s[0] == 'r' {
		i.Op |= SrcX
		i.Src = reg(s)
		return
	}
	i.Imm = imm32(s)
}

// jump returns the distance to a label or a signed number of slots.
func (a *assembler) jump(s string) int {
	if to, ok := a.labels[s]; ok {
		return to - len(a.out) - 1
	}
	return int(num(s))
}

func reg(s string) Reg {
	n, err := strconv.Atoi(strings.TrimPrefix(s, "r"))
	if err != nil || s[0] != 'r' {
		panic("not a register: " + s)
	}
	return Reg(n)
}

func num(s string) int64 {
	s = strings.TrimPrefix(s, "+")
	if v, err := strconv.ParseInt(s, 0, 64); err == nil {
		return v
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		panic("not a number: " + s)
	}
	return int64(v)
}

func imm32(s string) int64 { return int64(int32(num(s))) }

// mem parses [r1+8].
func mem(s string) (Reg, int16) {
	s = strings.Trim(s, "[]")
	at := strings.IndexAny(s, "+-")
	if at < 0 {
		return reg(s), 0
	}
	return reg(s[:at]), int16(num(s[at:]))
}

func movK(r Reg, v int64) Insn { return Insn{Op: ClassALU64 | OpMov, Dst: r, Imm: v} }
func movX(d, s Reg) Insn       { return Insn{Op: ClassALU64 | OpMov | SrcX, Dst: d, Src: s} }
func callK(h Helper) Insn      { return Insn{Op: OpCallK, Imm: int64(h)} }
func wideImmediate(r, kind Reg, v int64) []Insn {
	return []Insn{{Op: OpLoadImm64, Dst: r, Src: kind, Imm: v}, {}}
}
