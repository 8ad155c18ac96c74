package cli

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// mkunoptimizedMain is the program mkunoptimized, which writes a guest with debug information but without BTF, like the output of a
// compiler without optimization. Its main calls, for n from 5 down to 1,
//
//	u64 fact(u64 n, char c, u64 *p) { n++; }
//
// with c = 'x' and p = 0x200000, the address of the code. fact stores its parameters in the frame, where the debug information has
// them, and then reuses the registers.
func mkunoptimizedMain(args []string) int {
	const base = guest.GVA(0x200000)
	a := x86.NewAsm(uint64(base))
	fact, again := a.NewLabel(), a.NewLabel()
	a.Mov(8, x86.RBX, x86.Imm(5))
	a.Place(again)
	a.Mov(8, x86.RDI, x86.RBX)
	a.Mov(8, x86.RSI, x86.Imm('x'))
	a.Mov(8, x86.RDX, x86.Imm(int64(base)))
	a.Call(fact)
	a.Dec(8, x86.RBX)
	a.Jcc(x86.CondNE, again)
	a.Append([]byte{0xb0, 0, 0xe6, 0xf4}) // mov $0,%al; out %al,$0xf4: exit
	at := a.Len()
	a.Place(fact)
	a.Push(x86.RBP)
	a.Mov(8, x86.RBP, x86.RSP)
	a.Mov(8, x86.At(x86.RBP, -24), x86.RDI)
	a.Mov(8, x86.RAX, x86.RSI)
	a.Mov(8, x86.At(x86.RBP, -40), x86.RDX)
	a.Mov(8, x86.At(x86.RBP, -32), x86.RAX)
	line := a.Len()
	a.Mov(8, x86.RDI, x86.Imm(99)) // the registers are reused
	a.Add(8, x86.RDI, x86.At(x86.RBP, -24))
	a.Pop(x86.RBP)
	a.Ret()
	code, err := a.Link()
	if err == nil && len(args) == 1 {
		function := func(name string, from, to int) elfbuild.Symbol {
			return elfbuild.Symbol{Name: name, Addr: base + guest.GVA(from), Size: uint64(to - from), Type: elf.STT_FUNC}
		}
		f := elfbuild.File{
			Entry:    base,
			Segments: []elfbuild.Segment{{Section: ".text", VAddr: base, PAddr: guest.GPA(base), Flags: elf.PF_R | elf.PF_X, Data: code}},
			Symbols:  []elfbuild.Symbol{function("main", 0, at), function("fact", at, len(code))},
			Extra:    unoptimizedDebug(uint64(base)+uint64(at), uint64(line-at), uint64(len(code)-at)),
		}
		err = os.WriteFile(args[0], f.Bytes(), 0o600)
	}
	if err != nil || len(args) != 1 {
		fmt.Fprintln(os.Stderr, "mkunoptimized FILE:", err)
		return 1
	}
	return 0
}

// unoptimizedDebug returns debug information (DWARF 4) for fact, at an address, with the start of its second line and its size.
func unoptimizedDebug(fact, line, size uint64) []elfbuild.Extra {
	le := binary.LittleEndian
	text := func(s string) []byte { return append([]byte(s), 0) }
	const unit, function, parameter, number, pointer = 1, 2, 3, 4, 5
	abbrev := []byte{
		unit, 0x11, 1, 0x10, 0x17, 0x11, 0x01, 0x12, 0x06, 0, 0, // DW_AT_stmt_list, low_pc, high_pc
		function, 0x2e, 1, 0x03, 0x08, 0x11, 0x01, 0x12, 0x06, 0x40, 0x18, 0x49, 0x13, 0, 0, // name, low_pc, high_pc, frame_base, type
		parameter, 0x05, 0, 0x03, 0x08, 0x49, 0x13, 0x02, 0x18, 0, 0, // name, type, location
		number, 0x24, 0, 0x03, 0x08, 0x0b, 0x0b, 0x3e, 0x0b, 0, 0, // name, byte_size, encoding
		pointer, 0x0f, 0, 0x0b, 0x0b, 0x49, 0x13, 0, 0, // byte_size, type
		0,
	}
	place := func(b []byte) []byte { return le.AppendUint32(le.AppendUint64(b, fact), uint32(size)) }
	ref := func(n int) []byte { return le.AppendUint32(nil, uint32(n)) }
	body := place([]byte{unit, 0, 0, 0, 0})
	const header = 11
	u64 := header + len(body)
	body = append(slices.Concat(body, []byte{number}, text("u64")), 8, 7)
	char := header + len(body)
	body = append(slices.Concat(body, []byte{number}, text("char")), 1, 6)
	toU64 := header + len(body)
	body = slices.Concat(body, []byte{pointer, 8}, ref(u64))
	body = slices.Concat(place(slices.Concat(body, []byte{function}, text("fact"))), []byte{1, 0x56}, ref(u64)) // DW_OP_reg6: rbp
	for _, p := range []struct {
		name  string
		typ   int
		fbreg byte // one byte of SLEB128: 0x68 is -24
	}{{"n", u64, 0x68}, {"c", char, 0x60}, {"p", toU64, 0x58}} {
		body = slices.Concat(body, []byte{parameter}, text(p.name), ref(p.typ), []byte{2, 0x91, p.fbreg})
	}
	body = append(body, 0, 0)
	info := slices.Concat(ref(header-4+len(body)), []byte{4, 0, 0, 0, 0, 0, 8}, body)

	head := slices.Concat([]byte{1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0}, text("fact.c"), []byte{0, 0, 0, 0})
	program := slices.Concat(le.AppendUint64([]byte{0, 9, 2}, fact), []byte{3, 9, 1, 2, byte(line), 3, 1, 1, 2, byte(size - line), 0, 1, 1})
	lines := slices.Concat([]byte{4, 0}, ref(len(head)), head, program)
	return []elfbuild.Extra{{Name: ".debug_abbrev", Data: abbrev}, {Name: ".debug_info", Data: info}, {Name: ".debug_line", Data: slices.Concat(ref(len(lines)), lines)}}
}
