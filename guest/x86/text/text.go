// Package text writes instructions as GNU objdump does (AT&T syntax).
package text

import (
	"fmt"
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Symbols returns the name and the start of the symbol at an address, or "".
type Symbols func(addr uint64) (name string, start uint64)

// placeholder takes the place of an operand in memory in x86asm: a displacement that it prints and nothing else has.
var placeholder = x86asm.Mem{Base: x86asm.RAX, Disp: 0x5a5a5a5a5a5a5a}

const placeholderText = "0x5a5a5a5a5a5a5a(%rax)"

// Format returns the text of the instruction i at address at, or "" when it is not known. x86asm knows the names; lengths,
// operands in memory and targets are our decoder's, for x86asm's are wrong in places. What objdump prints as the number of
// a target is the name of a symbol here, where one starts there. syms may be nil.
func Format(i *x86.Inst, at uint64, syms Symbols) string {
	if i.IsEndbr() {
		return map[uint8]string{0xfa: "endbr64", 0xfb: "endbr32"}[i.ModRM]
	}
	if i.Enc != x86.Legacy && i.Enc != x86.VEX {
		return "" // x86asm takes some of EVEX for others
	}
	x, err := x86asm.Decode(i.Bytes(), 64)
	if err != nil || x.Len != int(i.Len) || x.Op == 0 || i.VendorDependent() {
		return ""
	}
	if syms == nil {
		syms = func(uint64) (string, uint64) { return "", 0 }
	}
	target, m, mem, segments := "", x86.Mem{}, false, ""
	for k, a := range x.Args {
		switch a.(type) {
		case x86asm.Mem:
			if moffs := i.Enc == x86.Legacy && i.Map == x86.Map0 && i.Opcode>>2 == 0xa0>>2; !moffs && (!i.HasModRM || i.Mod() == 3) {
				takeSegments(&x, false) // of a string
				continue
			}
			if m, mem = i.Mem(); !mem || m.Vector {
				return ""
			}
			segments = takeSegments(&x, true)
			o := placeholder
			o.Segment = map[x86.Segment]x86asm.Reg{x86.SegFS: x86asm.FS, x86.SegGS: x86asm.GS}[m.Segment]
			x.Args[k] = o
		case x86asm.Rel:
			t, ok := i.Target(at)
			if !ok {
				return ""
			}
			target = fmt.Sprintf("%#x", t)
			if name, start := syms(t); name != "" && start == t {
				target = name
			}
		}
	}
	text := names(i, &x, segments, x86asm.GNUSyntax(x, 1, func(a uint64) (string, uint64) { return target, a }))
	if mem {
		text = strings.Replace(text, placeholderText, memory(i, &m), 1)
	}
	if m.RIP && text != "" {
		text += " # " + place(i.RIPTarget(at), syms)
	}
	return text
}

// place returns an address, with its symbol if it has one.
func place(a uint64, syms Symbols) string {
	name, start := syms(a)
	switch {
	case name == "":
		return fmt.Sprintf("%#x", a)
	case a == start:
		return fmt.Sprintf("%#x <%s>", a, name)
	}
	return fmt.Sprintf("%#x <%s+%#x>", a, name, a-start)
}

// memory returns the text of the operand in memory that ModRM says, without a segment.
func memory(i *x86.Inst, m *x86.Mem) string {
	short := i.Has(x86.PrefixAddrSize)
	if m.RIP {
		return fmt.Sprintf("%#x(%s)", m.Disp, register(short, "ip"))
	}
	base, index := "", ""
	if m.Base != x86.NoReg {
		base = addressReg(short, m.Base)
	}
	scale := uint8(1)
	if i.HasSIB {
		scale = 1 << (i.SIB >> 6)
	}
	switch {
	case m.Index != x86.NoReg:
		index = addressReg(short, m.Index)
	case scale != 1, i.HasSIB && m.Base != x86.NoReg && m.Base&7 != x86.RSP:
		index = register(short, "iz") // the assemblers' name for no index
	}
	if base == "" && index == "" {
		if short {
			return fmt.Sprintf("%#x", uint32(m.Disp))
		}
		return fmt.Sprintf("%#x", uint64(m.Disp))
	}
	text := ""
	if i.Mod() != 0 || base == "" {
		text = fmt.Sprintf("%#x", m.Disp)
	}
	if index == "" {
		return text + "(" + base + ")"
	}
	return fmt.Sprintf("%s(%s,%s,%d)", text, base, index, scale)
}

func register(short bool, name string) string {
	if short {
		return "%e" + name
	}
	return "%r" + name
}

// addressReg returns the name of a general register, 32 bits wide or 64.
func addressReg(short bool, r x86.Reg64) string {
	if r < x86.R8 {
		return register(short, [...]string{"ax", "cx", "dx", "bx", "sp", "bp", "si", "di"}[r])
	}
	text := fmt.Sprintf("%%r%d", uint8(r))
	if short {
		text += "d"
	}
	return text
}
