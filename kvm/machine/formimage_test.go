package machine

import (
	"debug/elf"
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
)

// The forms image is the built-in guest with one more pair of segments per
// privilege level: code (an entry and exit stub, then one function per
// instruction form) and data (a block of registers, and an arena).
const (
	formsUserCode   = 0x0000_1000_0080_0000
	formsKernelCode = 0xffff_ffff_9000_0000
	formsDataOff    = 0x20_0000 // of the data from the code, at both levels
	formsPhys       = 0x200_0000
	formsArena      = 0x1000 // offset of the arena in the data
	formsArenaSize  = 0x1000
	formsDataSize   = formsArena + 3*formsArenaSize // unmapped nowhere: strays show in the compared bytes
	formSlot        = 64                            // bytes per form
	formPad         = 40                            // offset of a form's branch target
	formsFirst      = 0x400                         // offset of the first form
)

// Offsets in the block of registers.
const (
	blkIn     = 0    // 16 registers in the order of their numbers
	blkFlags  = 128  // RFLAGS
	blkTarget = 136  // the form
	blkSaved  = 144  // RSP of the stub
	blkOut    = 256  // 16 registers
	blkOutFl  = 384  // RFLAGS
	blkTaken  = 392  // 1: the branch was taken
	blkXIn    = 1024 // 16 vector registers, 32 bytes each
	blkXOut   = 1536 // 16 vector registers
	blkEnd    = 2048 // of what is used
)

// stub is the entry and exit code: at offset 0 enter(block ignored), at
// takenFrom and fall the two ways out.
type stub struct {
	code            []byte
	fall, takenFrom int
}

// rip appends an instruction with a RIP-relative operand: op bytes, a ModRM with
// register field reg, a displacement to off in the block, and trailing
// immediate bytes.
func (s *stub) rip(op []byte, reg byte, off int, imm ...byte) {
	s.code = append(s.code, op...)
	s.code = append(s.code, reg<<3|5)
	end := len(s.code) + 4 + len(imm)
	s.code = binary.LittleEndian.AppendUint32(s.code, uint32(int32(formsDataOff+off-end)))
	s.code = append(s.code, imm...)
}

func (s *stub) bytes(b ...byte) { s.code = append(s.code, b...) }

// gpr appends mov between register n and the block: 8b loads, 89 stores.
func (s *stub) gpr(op byte, n int, off int) {
	rex := byte(0x48)
	if n >= 8 {
		rex |= 4
	}
	s.rip([]byte{rex, op}, byte(n&7), off)
}

// vector appends a move between vector register x and the block: 6f loads, 7f
// stores. It is vmovdqu of 32 bytes, or movdqu of 16.
func (s *stub) vector(v vectors, op byte, x, off int) {
	switch high := byte(x >> 3); v {
	case vectorAVX:
		s.rip([]byte{0xc5, 0xfe &^ (high << 7), op}, byte(x&7), off+32*x)
	case vectorSSE:
		s.rip([]byte{0xf3, 0x40 | high<<2, 0x0f, op}, byte(x&7), off+32*x)
	}
}

// vectors says which vector registers the stub loads and stores.
type vectors int

const (
	vectorNone vectors = iota
	vectorSSE
	vectorAVX
)

func newStub(v vectors) *stub {
	s := &stub{}
	s.bytes(0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x9c) // push rbx rbp r12-r15; pushfq
	s.gpr(0x89, 4, blkSaved)
	if v != vectorNone {
		s.bytes(0xdb, 0xe3) // fninit
		for x := range 16 {
			s.vector(v, 0x6f, x, blkXIn)
		}
	}
	s.rip([]byte{0xff}, 6, blkFlags) // push flags; popfq
	s.bytes(0x9d)
	for n := range 16 {
		s.gpr(0x8b, n, blkIn+8*n)
	}
	s.rip([]byte{0xff}, 4, blkTarget) // jmp *target
	s.takenFrom = len(s.code)
	s.rip([]byte{0xc6}, 0, blkTaken, 1) // movb $1, taken
	s.fall = len(s.code)
	for n := range 16 {
		s.gpr(0x89, n, blkOut+8*n)
	}
	s.gpr(0x8b, 4, blkSaved)
	s.bytes(0x9c) // pushfq; pop flags
	s.rip([]byte{0x8f}, 0, blkOutFl)
	if v != vectorNone {
		for x := range 16 {
			s.vector(v, 0x7f, x, blkXOut)
		}
	}
	s.bytes(0x9d, 0xfc, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3)
	return s
}

// layout returns the code segment that holds the stub and forms.
func layout(base uint64, v vectors, forms [][]byte) []byte {
	s := newStub(v)
	if len(s.code) > formsFirst {
		panic("BUG: the stub is too long")
	}
	out := make([]byte, formsFirst+len(forms)*formSlot)
	for i := range out {
		out[i] = 0x90
	}
	copy(out, s.code)
	jmp := func(at, to int) {
		out[at] = 0xe9
		binary.LittleEndian.PutUint32(out[at+1:], uint32(int32(to-at-5)))
	}
	for i, f := range forms {
		at := formsFirst + i*formSlot
		copy(out[at:], f)
		jmp(at+len(f), s.fall)
		jmp(at+formPad, s.takenFrom)
	}
	return out
}

// formsImage appends segments and symbols to the built-in guest. Each form is a
// function of its own, named names[i].
func formsImage(t testing.TB, cpl int, code []byte, names []string) *guest.Image {
	return formsImageOf(t, cpl, code, names, elf.PF_R|elf.PF_X)
}

// formsImageOf is formsImage with the code in a segment that may be writable.
func formsImageOf(t testing.TB, cpl int, code []byte, names []string, access elf.ProgFlag) *guest.Image {
	t.Helper()
	file := builtin.ELF()
	le := binary.LittleEndian
	base, flags := uint64(formsKernelCode), uint32(0)
	if cpl == 3 {
		base, flags = formsUserCode, guest.PFUser
	}
	align := func() {
		for len(file)%4096 != 0 {
			file = append(file, 0)
		}
	}
	align()
	codeOff := uint64(len(file))
	file = append(file, code...)
	align()
	phOff, phNum := le.Uint64(file[32:]), int(le.Uint16(file[56:]))
	phs := append([]byte(nil), file[phOff:phOff+uint64(phNum)*56]...)
	load := func(fl uint32, off, vaddr, paddr, filesz, memsz uint64) {
		phs = le.AppendUint32(phs, uint32(elf.PT_LOAD))
		phs = le.AppendUint32(phs, fl|flags)
		for _, v := range []uint64{off, vaddr, paddr, filesz, memsz, 4096} {
			phs = le.AppendUint64(phs, v)
		}
	}
	load(uint32(access), codeOff, base, formsPhys, uint64(len(code)), uint64(len(code)))
	load(uint32(elf.PF_R|elf.PF_W), codeOff, base+formsDataOff, formsPhys+formsDataOff, 0, formsDataSize)
	le.PutUint64(file[32:], uint64(len(file)))
	le.PutUint16(file[56:], uint16(phNum+2))
	file = append(file, phs...)

	shOff, shNum := le.Uint64(file[40:]), int(le.Uint16(file[60:]))
	shs := append([]byte(nil), file[shOff:shOff+uint64(shNum)*64]...)
	for i := range shNum {
		sh := shs[i*64:]
		if elf.SectionType(le.Uint32(sh[4:])) != elf.SHT_SYMTAB {
			continue
		}
		str := shs[le.Uint32(sh[40:])*64:]
		strs := append([]byte(nil), file[le.Uint64(str[24:]):][:le.Uint64(str[32:])]...)
		syms := append([]byte(nil), file[le.Uint64(sh[24:]):][:le.Uint64(sh[32:])]...)
		sym := func(name string, addr, size uint64) {
			e := make([]byte, 24)
			le.PutUint32(e, uint32(len(strs)))
			strs = append(append(strs, name...), 0)
			e[4] = byte(elf.STB_GLOBAL)<<4 | byte(elf.STT_FUNC)
			le.PutUint16(e[6:], uint16(shNum))
			le.PutUint64(e[8:], addr)
			le.PutUint64(e[16:], size)
			syms = append(syms, e...)
		}
		sym("form_enter", base, formsFirst)
		for k, n := range names {
			sym(n, base+formsFirst+uint64(k)*formSlot, formSlot)
		}
		put := func(sh, b []byte) {
			for len(file)%8 != 0 {
				file = append(file, 0)
			}
			le.PutUint64(sh[24:], uint64(len(file)))
			le.PutUint64(sh[32:], uint64(len(b)))
			file = append(file, b...)
		}
		put(sh, syms)
		put(str, strs)
	}
	text := make([]byte, 64)
	le.PutUint32(text[4:], uint32(elf.SHT_PROGBITS))
	le.PutUint64(text[8:], uint64(elf.SHF_ALLOC|elf.SHF_EXECINSTR))
	for i, v := range []uint64{base, codeOff, uint64(len(code))} {
		le.PutUint64(text[16+8*i:], v)
	}
	le.PutUint64(text[48:], 1)
	for len(file)%8 != 0 {
		file = append(file, 0)
	}
	le.PutUint64(file[40:], uint64(len(file)))
	le.PutUint16(file[60:], uint16(shNum+1))
	file = append(append(file, shs...), text...)
	img, err := guest.ParseELF(file)
	if err != nil {
		t.Fatalf("forms image: %v", err)
	}
	return img
}
