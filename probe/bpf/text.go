package bpf

import "fmt"

var aluNames = map[Opcode]string{
	OpAdd: "+=", OpSub: "-=", OpMul: "*=", OpDiv: "/=", OpOr: "|=", OpAnd: "&=", OpLsh: "<<=",
	OpRsh: ">>=", OpMod: "%=", OpXor: "^=", OpMov: "=", OpArsh: "s>>=",
}

var jumpNames = map[Opcode]string{
	OpJEQ: "==", OpJGT: ">", OpJGE: ">=", OpJSET: "&", OpJNE: "!=", OpJSGT: "s>", OpJSGE: "s>=",
	OpJLT: "<", OpJLE: "<=", OpJSLT: "s<", OpJSLE: "s<=",
}

// String returns the instruction in the notation that clang's disassembler
// uses, for messages. What is not an instruction shows as its raw bytes.
func (i Insn) String() string {
	switch i.Class() {
	case ClassALU, ClassALU64:
		return i.aluString()
	case ClassJMP, ClassJMP32:
		return i.jumpString()
	case ClassLD:
		if i.wide() {
			return i.imm64String()
		}
	case ClassLDX:
		switch i.Op & modeMask {
		case ModeMEM:
			return fmt.Sprintf("r%d = *(u%d *)(r%d %+d)", i.Dst, 8*i.size(), i.Src, i.Off)
		case ModeMEMSX:
			return fmt.Sprintf("r%d = *(s%d *)(r%d %+d)", i.Dst, 8*i.size(), i.Src, i.Off)
		}
	case ClassST:
		if i.Op&modeMask == ModeMEM {
			return fmt.Sprintf("*(u%d *)(r%d %+d) = %d", 8*i.size(), i.Dst, i.Off, i.Imm)
		}
	case ClassSTX:
		switch i.Op & modeMask {
		case ModeMEM:
			return fmt.Sprintf("*(u%d *)(r%d %+d) = r%d", 8*i.size(), i.Dst, i.Off, i.Src)
		case ModeATOMIC:
			return fmt.Sprintf("lock *(u%d *)(r%d %+d) op %#x r%d", 8*i.size(), i.Dst, i.Off, i.Imm, i.Src)
		}
	}
	return i.raw()
}

func (i Insn) raw() string {
	return fmt.Sprintf("%02x dst %d src %d off %d imm %#x", uint8(i.Op), i.Dst, i.Src, i.Off, i.Imm)
}

// letter is clang's register letter: r for 64 bits, w for the lower 32.
func (i Insn) letter() string {
	if c := i.Class(); c == ClassALU || c == ClassJMP32 {
		return "w"
	}
	return "r"
}

func (i Insn) operand() string {
	if i.Op&SrcX != 0 {
		return fmt.Sprintf("%s%d", i.letter(), i.Src)
	}
	return fmt.Sprint(i.Imm)
}

func (i Insn) aluString() string {
	op := i.Op & opMask
	switch {
	case op == OpNeg:
		return fmt.Sprintf("%s%d = -%[1]s%[2]d", i.letter(), i.Dst)
	case op == OpEnd:
		kind := "le"
		if i.Class() == ClassALU64 {
			kind = "bswap"
		} else if i.Op&SrcX != 0 {
			kind = "be"
		}
		return fmt.Sprintf("r%d = %s%d r%[1]d", i.Dst, kind, i.Imm)
	case op == OpMov && i.Off != 0:
		return fmt.Sprintf("%s%d = (s%d)%[1]s%[4]d", i.letter(), i.Dst, i.Off, i.Src)
	case aluNames[op] == "":
		return i.raw()
	}
	sign := ""
	if i.Off == 1 && (op == OpDiv || op == OpMod) {
		sign = "s"
	}
	return fmt.Sprintf("%s%d %s%s %s", i.letter(), i.Dst, sign, aluNames[op], i.operand())
}

func (i Insn) jumpString() string {
	switch op := i.Op & opMask; {
	case i.Op == OpGoto:
		return fmt.Sprintf("goto %+d", i.Off)
	case i.Op == OpGotoL:
		return fmt.Sprintf("gotol %+d", i.Imm)
	case i.Op == OpExitK:
		return "exit"
	case i.Op == OpCallK && i.Src == CallLocal:
		return fmt.Sprintf("call pc%+d", i.Imm)
	case i.Op == OpCallK:
		return fmt.Sprintf("call %d", i.Imm)
	case jumpNames[op] != "":
		return fmt.Sprintf("if %s%d %s %s goto %+d", i.letter(), i.Dst, jumpNames[op], i.operand(), i.Off)
	}
	return i.raw()
}

func (i Insn) imm64String() string {
	switch i.Src {
	case ImmMapFD, ImmMapIdx:
		return fmt.Sprintf("r%d = map %d", i.Dst, uint32(i.Imm))
	case ImmMapValue, ImmMapValIdx:
		return fmt.Sprintf("r%d = value of map %d + %d", i.Dst, uint32(i.Imm), uint64(i.Imm)>>32)
	case ImmConst:
		return fmt.Sprintf("r%d = %#x ll", i.Dst, uint64(i.Imm))
	}
	return i.raw()
}
