package text

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// takeSegments takes the prefixes of segments out of x, those that have an effect only if all, and returns those that have none.
func takeSegments(x *x86asm.Inst, all bool) (text string) {
	var left x86asm.Prefixes
	n := 0
	for _, p := range x.Prefix {
		switch p & 0xff {
		case 0x26, 0x2e, 0x36, 0x3e:
			text += map[x86asm.Prefix]string{0x26: "es ", 0x2e: "cs ", 0x36: "ss ", 0x3e: "ds "}[p&0xff]
			continue
		case 0x64, 0x65:
			if all {
				continue
			}
		}
		left[n] = p
		n++
	}
	x.Prefix = left
	return text
}

// gnuNames are objdump's names of what x86asm calls otherwise in 64-bit code. Both have a suffix where the size of an
// operand says nothing else, and x86asm where it goes without saying.
var gnuNames = map[string]string{
	"callq": "call", "jmpq": "jmp", "lcallq": "lcall", "ljmpq": "ljmp", "retq": "ret", "pushq": "push", "popq": "pop", "pushfq": "pushf", "popfq": "popf",
	"leaveq": "leave", "enterq": "enter", "xbeginq": "xbegin", "icebp": "int1", "cdqe": "cltq",
	"lgdtl": "lgdt", "lidtl": "lidt", "sgdtl": "sgdt", "sidtl": "sidt", "lgdtq": "lgdt", "lidtq": "lidt", "sgdtq": "sgdt", "sidtq": "sidt",
}

var negative = regexp.MustCompile(`\$-0x[0-9a-f]+`)

// names brings x86asm's text to objdump's names of instructions, prefixes and immediate operands. What it returns is ""
// where x86asm has read a prefix as one that could be part of the opcode of another instruction.
func names(i *x86.Inst, x *x86asm.Inst, segments, text string) string {
	f := strings.Split(text, " ")
	k := 0 // of the name
	for k < len(f)-1 && isPrefix(f[k]) {
		k++
	}
	if name := gnuNames[f[k]]; name != "" {
		f[k] = name
	}
	w := i.Has(x86.PrefixREXW)
	switch x.Op {
	case x86asm.MONITOR:
		f = append(f[:k+1], register(i.Has(x86.PrefixAddrSize), "ax")+",%ecx,%edx")
	case x86asm.MWAIT:
		f = append(f[:k+1], "%eax,%ecx")
	case x86asm.RDRAND:
		if w {
			return "" // the register is missing
		}
	case x86asm.PCMPESTRM, x86asm.PCMPESTRI:
		if w {
			return ""
		}
	case x86asm.CRC32:
		if i.Mod() == 3 {
			f[k] = "crc32"
		}
	case x86asm.NOP:
		if n := slices.Index(f[:k], "data16"); n >= 0 && i.Map == x86.Map0 {
			f[k] = "xchg %ax,%ax"
			f, k = slices.Delete(f, n, n+1), k-1
		}
	case x86asm.SYSRET, x86asm.SYSEXIT, x86asm.SIDT, x86asm.SGDT, x86asm.LIDT, x86asm.LGDT:
		if i.Has(x86.PrefixOpSize) {
			return ""
		}
		if x.Op != x86asm.SYSRET && x.Op != x86asm.SYSEXIT {
			break
		}
		f[k] = strings.TrimSuffix(f[k], "q") + map[bool]string{false: "l", true: "q"}[w]
	case x86asm.LOOP, x86asm.LOOPE, x86asm.LOOPNE:
		if i.Has(x86.PrefixAddrSize) {
			f[k] += "l"
		}
	case x86asm.RDFSBASE, x86asm.RDGSBASE, x86asm.WRFSBASE, x86asm.WRGSBASE:
		if i.Mod() != 3 {
			return ""
		}
	case x86asm.LCALL, x86asm.LJMP:
		if i.Has(x86.PrefixOpSize) {
			return ""
		}
	case x86asm.JMP, x86asm.CALL:
		segments = strings.Replace(segments, "ds ", "notrack ", 1)
		if k > 0 && f[0] == "ds" && i.HasModRM {
			f[0] = "notrack"
		}
	case x86asm.LRET:
		if !w {
			f[k] = strings.TrimSuffix(f[k], "q")
		}
	case x86asm.MOVSXD:
		if w {
			f[k] = "movslq"
		}
	case x86asm.ANDN, x86asm.BEXTR, x86asm.BLSI, x86asm.BLSMSK, x86asm.BLSR, x86asm.BZHI, x86asm.MULX, x86asm.PDEP, x86asm.PEXT,
		x86asm.RORX, x86asm.SARX, x86asm.SHLX, x86asm.SHRX:
		f[k] = strings.ToLower(x.Op.String())
	case x86asm.FIADD, x86asm.FICOM, x86asm.FICOMP, x86asm.FIDIV, x86asm.FIDIVR, x86asm.FILD, x86asm.FIMUL, x86asm.FIST, x86asm.FISTP,
		x86asm.FISTTP, x86asm.FISUB, x86asm.FISUBR:
		if x.MemBytes == 2 {
			f[k] += "s"
		}
	}
	if i.Enc == x86.Legacy && i.Map == x86.Map0 {
		switch {
		case i.Opcode>>2 == 0xa0>>2 && !i.Has(x86.PrefixAddrSize), i.Opcode>>3 == 0xb8>>3 && w:
			f[k] = "movabs"
		case i.Opcode >= 0xd8 && i.Opcode <= 0xdf && i.Mod() != 3 && i.Has(x86.PrefixOpSize):
			return "" // of the state, perhaps, in its short form
		case i.Opcode >= 0xd8 && i.Opcode <= 0xdf && i.Mod() == 3:
			f[len(f)-1] = stack(i, f[len(f)-1])
		}
	}
	if last := f[len(f)-1]; last[0] == ',' || last[len(last)-1] == ',' {
		return "" // a register that there is not
	}
	if n := i.Prefix & (x86.PrefixRep | x86.PrefixRepNE); n != 0 && (i.Map != x86.Map0 && i.Has(x86.PrefixOpSize) || strings.Count(text, "rep") > 1) {
		return "" // which of them counts is not what x86asm thinks
	}
	if strings.HasPrefix(f[k], "vpcmp") && strings.HasSuffix(f[k], "64") {
		return ""
	}
	for n := range k {
		switch f[n] {
		case "repn":
			f[n] = "repnz"
		case "rep":
			if !repeats(x.Op) {
				f[n] = "repz"
			}
		case "data32":
			f[n] = "data16"
		case "addr64":
			f[n] = "addr32"
		}
		if s := f[n]; i.Map != x86.Map0 && (s == "repz" || s == "repnz" || s == "data16" && x.Op != x86asm.NOP) {
			return ""
		}
	}
	if segments != "" {
		if first := i.Bytes()[0]; first == 0x26 || first == 0x2e || first == 0x36 || first == 0x3e {
			k = 0
		}
		f[k] = segments + f[k]
	}
	return negative.ReplaceAllStringFunc(strings.Join(f, " "), func(s string) string {
		v, err := strconv.ParseInt(s[1:], 0, 64)
		if err != nil {
			return s
		}
		return fmt.Sprintf("$%#x", uint64(v)&(1<<(8*width(x))-1))
	})
}

// repeats reports whether a rep is one, and no repz.
func repeats(op x86asm.Op) bool {
	switch op {
	case x86asm.MOVSB, x86asm.MOVSW, x86asm.MOVSD, x86asm.MOVSQ, x86asm.STOSB, x86asm.STOSW, x86asm.STOSD, x86asm.STOSQ, x86asm.LODSB, x86asm.LODSW,
		x86asm.LODSD, x86asm.LODSQ, x86asm.INSB, x86asm.INSW, x86asm.INSD, x86asm.OUTSB, x86asm.OUTSW, x86asm.OUTSD:
		return true
	}
	return false
}

// stack names the register of the x87's stack that the instruction has in its ModRM.
func stack(i *x86.Inst, text string) string {
	if i.RM() != 0 {
		return text
	}
	switch {
	case text == "%st":
		return "%st(0)"
	case text != "%st,%st":
		return text
	case i.Opcode == 0xdc, i.Opcode == 0xde:
		return "%st,%st(0)"
	}
	return "%st(0),%st"
}

func isPrefix(s string) bool {
	switch s {
	case "rep", "repn", "repz", "repnz", "lock", "data16", "data32", "addr16", "addr32", "addr64", "cs", "ds", "es", "ss", "fs", "gs", "bnd",
		"xacquire", "xrelease", "notrack":
		return true
	}
	return s == "rex" || strings.HasPrefix(s, "rex.")
}

// width is the size in bytes of what an immediate operand goes to.
func width(x *x86asm.Inst) uint {
	switch a := x.Args[0].(type) {
	case x86asm.Reg:
		switch {
		case a <= x86asm.R15B:
			return 1
		case a <= x86asm.R15W:
			return 2
		case a <= x86asm.R15L:
			return 4
		}
	case x86asm.Mem:
		if x.MemBytes != 0 {
			return uint(x.MemBytes)
		}
	case x86asm.Imm:
		if x.DataSize == 16 {
			return 2
		}
	}
	return 8
}
