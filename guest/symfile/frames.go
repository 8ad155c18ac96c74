package symfile

import (
	"encoding/binary"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// Numbers of registers in DWARF (System V ABI for x86-64, figure 3.36).
const (
	dwarfRBP = 6
	dwarfRSP = 7
	dwarfRIP = 16
)

var dwarfRegisters = map[guest.FrameRegister]byte{guest.FrameRSP: dwarfRSP, guest.FrameRBP: dwarfRBP, guest.FrameR10: 10, guest.FrameR13: 13, guest.FrameRDI: 5, guest.FrameRDX: 1}

// ptRegs are the registers of struct pt_regs from its beginning on, up to RDI (Linux,
// arch/x86/include/asm/ptrace.h).
var ptRegs = [...]byte{15, 14, 13, 12, dwarfRBP, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5}

// What an interrupt pushes, from RIP on.
const frameRSP = 24

// Call frame instructions (DWARF 5, 7.24).
const (
	cfaAdvance       = 0x40 // with the distance in the lower bits
	cfaOffset        = 0x80 // with the register
	cfaRestore       = 0xc0 // likewise
	cfaAdvance1      = 0x02
	cfaAdvance2      = 0x03
	cfaAdvance4      = 0x04
	cfaUndefined     = 0x07
	cfaSameValue     = 0x08
	cfaDef           = 0x0c
	cfaDefExpression = 0x0f
	cfaExpression    = 0x10
	cfaOffsetSigned  = 0x11
	cfaDefSigned     = 0x12
)

// Operations of expressions (DWARF 5, 7.7).
const (
	opDeref  = 0x06
	opConst  = 0x11 // of a signed number
	opPlus   = 0x22
	opBase   = 0x70 // with the register, and an offset after it
	dataUnit = -8   // of offsets in cfaOffset
)

// writer writes call frame information.
type writer struct {
	b    []byte
	fde  int       // where the description begins that is not finished, or -1
	from guest.GVA // it begins there,
	at   guest.GVA // and its last row,
	last guest.FrameRule
}

// frames is .debug_frame (DWARF 5, 6.4.1) of the rules, a description for each function.
func frames(c Code, starts []guest.GVA) []byte {
	w := &writer{fde: -1}
	cie := w.writeCommon()
	end := func(at guest.GVA) guest.GVA {
		i, found := slices.BinarySearch(starts, at)
		if found {
			i++
		}
		if i < len(starts) {
			return starts[i]
		}
		return at + guest.PageSize
	}
	var next guest.GVA // the function that the description is of ends there
	var last guest.FrameRule
	open := func(at guest.GVA) {
		w.begin(at, cie, last)
		next = end(at)
	}
	c.FrameRules(func(at guest.GVA, r guest.FrameRule) {
		for w.fde >= 0 && next <= at {
			w.finish(next)
			if next < at && next-w.from < maxGap {
				open(next) // the rule holds on in the next function
			}
		}
		if last = r; w.fde < 0 {
			open(at)
		} else {
			w.row(at, r)
		}
	})
	if w.fde >= 0 {
		w.finish(next)
	}
	return w.b
}

// maxGap is how far a rule is believed that no other one ends.
const maxGap = 1 << 20

// entry appends what an entry begins with, and returns its place.
func (w *writer) entry(id uint32) int {
	at := len(w.b)
	w.b = binary.LittleEndian.AppendUint32(w.b, 0)
	w.b = binary.LittleEndian.AppendUint32(w.b, id)
	return at
}

// close fills an entry up, and its length in.
func (w *writer) close(at int) {
	for (len(w.b)-at)%8 != 4 {
		w.b = append(w.b, 0) // DW_CFA_nop
	}
	binary.LittleEndian.PutUint32(w.b[at:], uint32(len(w.b)-at-4))
}

// writeCommon appends a common information entry, and returns where it is.
//
// It does not say of the kernel's entries that they are signal frames, as GNU's augmentation "S" would: GDB shows no
// names of those. It costs that code is taken for the function before that was interrupted at its first instruction.
func (w *writer) writeCommon() uint32 {
	at := w.entry(^uint32(0))
	w.b = append(w.b, 3, 0, 1) // version, no augmentation, unit of code
	w.writeSigned(dataUnit)
	w.b = append(w.b, dwarfRIP)
	w.close(at)
	return uint32(at)
}

// begin opens the description of what begins at a place.
func (w *writer) begin(at guest.GVA, cie uint32, r guest.FrameRule) {
	w.fde, w.from, w.at, w.last = w.entry(cie), at, at, guest.FrameRule{}
	w.b = binary.LittleEndian.AppendUint64(w.b, uint64(at))
	w.b = binary.LittleEndian.AppendUint64(w.b, 0)
	w.rule(r)
}

// finish closes it.
func (w *writer) finish(end guest.GVA) {
	binary.LittleEndian.PutUint64(w.b[w.fde+16:], uint64(end-w.from))
	w.close(w.fde)
	w.fde = -1
}

// row has a rule hold from a place on.
func (w *writer) row(at guest.GVA, r guest.FrameRule) {
	switch n := uint64(at - w.at); {
	case n == 0:
	case n < 64:
		w.b = append(w.b, cfaAdvance|byte(n))
	case n < 1<<8:
		w.b = append(w.b, cfaAdvance1, byte(n))
	case n < 1<<16:
		w.b = binary.LittleEndian.AppendUint16(append(w.b, cfaAdvance2), uint16(n))
	default:
		w.b = binary.LittleEndian.AppendUint32(append(w.b, cfaAdvance4), uint32(n))
	}
	w.at = at
	w.rule(r)
}

// rule appends a whole row.
func (w *writer) rule(r guest.FrameRule) {
	if w.last.Trap && !r.Trap {
		w.b = append(w.b, cfaRestore|dwarfRSP)
	}
	if w.last.Full && !r.Full {
		for _, reg := range ptRegs {
			w.b = append(w.b, cfaRestore|reg)
		}
	}
	w.last = r
	if r.Outer {
		w.b = append(w.b, cfaDef, dwarfRSP, 8, cfaUndefined, dwarfRIP)
		return
	}
	reg := dwarfRegisters[r.Base]
	switch {
	case r.Indirect:
		w.expression([]byte{cfaDefExpression}, func() {
			w.b = append(w.b, opBase+reg)
			w.writeSigned(int64(r.Inner))
			w.b = append(w.b, opDeref, opConst)
			w.writeSigned(int64(r.CFA))
			w.b = append(w.b, opPlus)
		})
	case r.CFA < 0:
		w.b = append(w.b, cfaDefSigned, reg)
		w.writeSigned(int64(r.CFA) / dataUnit)
	default:
		w.b = append(w.b, cfaDef, reg)
		w.writeUnsigned(uint64(r.CFA))
	}
	w.writeSaved(dwarfRIP, r.Return)
	switch {
	case r.AtRBP:
		w.expression([]byte{cfaExpression, dwarfRBP}, func() {
			w.b = append(w.b, opBase+dwarfRBP)
			w.writeSigned(int64(r.RBP))
		})
	case r.RBP != 0:
		w.writeSaved(dwarfRBP, r.RBP)
	default:
		w.b = append(w.b, cfaSameValue, dwarfRBP)
	}
	if r.Trap {
		w.writeSaved(dwarfRSP, r.Return+frameRSP)
	}
	if r.Full {
		for i, reg := range ptRegs {
			w.writeSaved(reg, int32(8*i))
		}
	}
}

// writeSaved says that a register is saved at an offset from the CFA.
func (w *writer) writeSaved(reg byte, offset int32) {
	if offset <= 0 {
		w.b = append(w.b, cfaOffset|reg)
		w.writeUnsigned(uint64(offset / dataUnit))
		return
	}
	w.b = append(w.b, cfaOffsetSigned, reg)
	w.writeSigned(int64(offset / dataUnit))
}

// expression appends an instruction with an expression, which f appends.
func (w *writer) expression(insn []byte, f func()) {
	w.b = append(append(w.b, insn...), 0)
	at := len(w.b)
	f()
	w.b[at-1] = byte(len(w.b) - at) // it is short
}

func (w *writer) writeUnsigned(v uint64) { w.b = binary.AppendUvarint(w.b, v) } // LEB128 is the same

func (w *writer) writeSigned(v int64) {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			w.b = append(w.b, c)
			return
		}
		w.b = append(w.b, c|0x80)
	}
}
