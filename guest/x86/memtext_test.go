package x86

import (
	"fmt"
	"strconv"
	"strings"
)

// regNames are the general registers of addresses, as objdump writes them.
var regNames = func() map[string]Reg64 {
	m := make(map[string]Reg64)
	for k, n := range []string{"ax", "cx", "dx", "bx", "sp", "bp", "si", "di"} {
		m["r"+n], m["e"+n] = Reg64(k), Reg64(k)
	}
	for k := 8; k < 16; k++ {
		m[fmt.Sprintf("r%d", k)], m[fmt.Sprintf("r%dd", k)] = Reg64(k), Reg64(k)
	}
	for k := range 32 {
		for _, c := range "xyz" {
			m[fmt.Sprintf("%cmm%d", c, k)] = Reg64(k)
		}
	}
	return m
}()

// memOf parses the memory operand in objdump's text (Intel syntax); ok is false if it
// has none. Access is not in the text.
func memOf(text string) (m Mem, ok bool) {
	text, _, _ = strings.Cut(text, " #")
	text, _, _ = strings.Cut(text, " <")
	m = Mem{Base: NoReg, Index: NoReg, Scale: 1}
	open := strings.IndexByte(text, '[')
	if open < 0 {
		return m, m.absolute(text)
	}
	if before := text[:open]; strings.HasSuffix(before, "fs:") {
		m.Segment = SegFS
	} else if strings.HasSuffix(before, "gs:") {
		m.Segment = SegGS
	}
	inside, _, _ := strings.Cut(text[open+1:], "]")
	inside = strings.ReplaceAll(inside, "-", "+-")
	for _, term := range strings.Split(inside, "+") {
		name, scale, scaled := strings.Cut(term, "*")
		r, isReg := regNames[name]
		switch {
		case name == "rip", name == "eip":
			m.RIP = true
		case name == "riz", name == "eiz", term == "":
		case isReg && !scaled:
			m.Base = r
		case isReg:
			m.Index = r
			m.Scale = scale[0] - '0'
			m.Vector = name[1] == 'm'
		default:
			v, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimPrefix(term, "-"), "0x"), 16, 64)
			if err != nil {
				return m, false
			}
			m.Disp = int64(v)
			if term[0] == '-' {
				m.Disp = -m.Disp
			}
		}
	}
	m.Size = sizeOf(text[:open])
	return m, true
}

// absolute parses "ds:0x1234" and the like: no register at all.
func (m *Mem) absolute(text string) bool {
	for _, s := range []string{"ds:0x", "fs:0x", "gs:0x", "cs:0x", "ss:0x", "es:0x"} {
		before, after, ok := strings.Cut(text, s)
		if !ok {
			continue
		}
		after, _, _ = strings.Cut(after, ",")
		after, _, _ = strings.Cut(after, "{")
		v, err := strconv.ParseUint(strings.TrimSpace(after), 16, 64)
		if err != nil {
			return false
		}
		m.Disp, m.Size = int64(v), sizeOf(before)
		m.Segment = map[byte]Segment{'f': SegFS, 'g': SegGS}[s[0]]
		return true
	}
	return false
}

// sizeOf returns the size that objdump gives before an operand, 0 for none.
func sizeOf(s string) uint16 {
	for _, p := range []struct {
		name string
		size uint16
	}{
		{"ZMMWORD", 64}, {"YMMWORD", 32}, {"XMMWORD", 16}, {"OWORD", 16}, {"TBYTE", 10}, {"QWORD", 8},
		{"FWORD", 6}, {"DWORD", 4}, {"WORD", 2}, {"BYTE", 1},
	} {
		if strings.Contains(s, p.name+" PTR") || strings.Contains(s, p.name+" BCST") {
			return p.size
		}
	}
	return 0
}

// compareMem says how Mem differs from objdump's text, or "".
func compareMem(i *Inst, text string) string {
	want, ok := memOf(text)
	got, has := i.Mem()
	if implied(i) {
		return ""
	}
	if ok != has {
		return fmt.Sprintf("memory operand %v", has)
	}
	if !ok {
		return ""
	}
	if want.Size == 0 || got.Size == 0 || got.Access == AccessNone {
		got.Size, want.Size = 0, 0 // one of them has no size: lea, fxsave
	}
	if want.Size == 6 || want.Size == 4 && got.Size == 10 {
		want.Size = 2 + uint16(i.opSize()) // a far pointer, see compare
	}
	if i.Prefix&PrefixAddrSize != 0 { // objdump prints the displacement either way
		got.Disp, want.Disp = int64(uint32(got.Disp)), int64(uint32(want.Disp))
	}
	got.Access = 0
	if got != want {
		return fmt.Sprintf("operand %+v, want %+v", got, want)
	}
	return ""
}

// implied reports whether the operand that objdump prints is one that the
// instruction does not name: string instructions, xlat, maskmov.
func implied(i *Inst) bool {
	switch {
	case i.legacy(Map0):
		return i.Opcode >= 0x6c && i.Opcode <= 0x6f || i.Opcode >= 0xa4 && i.Opcode <= 0xa7 || i.Opcode >= 0xaa && i.Opcode <= 0xaf || i.Opcode == 0xd7
	case i.Map == Map0F && i.Enc != EVEX:
		return i.Opcode == 0xf7 || i.Opcode == 0x01 && i.Mod() == 3
	}
	return false
}
