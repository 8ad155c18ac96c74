package http

import (
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/server/gdb"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// gdbOrder are the general registers in the order of gdb.Registers.General.
func gdbOrder(r *probe.Regs) (fields [len(x86.DebuggerRegs)]*uint64) {
	for i, n := range x86.DebuggerRegs {
		fields[i] = r.Reg(n)
	}
	return fields
}

// quickToGDB converts the registers that are available without asking KVM; toGDB
// converts all.
func quickToGDB(g *gdb.Registers, r *probe.Regs, y *machine.System) {
	for i, p := range gdbOrder(r) {
		g.General[i] = *p
	}
	g.RIP, g.Flags = r.RIP, uint32(r.RFLAGS)
	g.Segments = [...]uint16{y.CS.Selector, y.SS.Selector, y.DS.Selector, y.ES.Selector, y.FS.Selector, y.GS.Selector}
}

func toGDB(r *machine.Registers, v *machine.Vectors) (g gdb.Registers) {
	y := &r.System
	quickToGDB(&g, &r.Regs, y)
	g.FSBase, g.GSBase, g.KernelGSBase = y.FS.Base, y.GS.Base, r.KernelGS
	g.CR0, g.CR2, g.CR3, g.CR4, g.CR8, g.EFER = y.CR0, y.CR2, y.CR3, y.CR4, y.CR8, y.EFER
	g.DR, g.DR6, g.DR7 = r.Debug.DB, r.Debug.DR6, r.Debug.DR7
	g.GDT, g.IDT, g.LDTR, g.TR = y.GDT.Base, y.IDT.Base, y.LDT.Selector, y.TR.Selector

	g.X87, g.MXCSR = v.ST, v.MXCSR
	// As FSAVE has them in 64-bit mode, where the selectors are not kept (SDM Vol. 1, 8.1.8).
	g.Control = [...]uint32{uint32(v.Control), uint32(v.Status), fullTag(v), uint32(v.IP >> 32), uint32(v.IP), uint32(v.DP >> 32), uint32(v.DP), uint32(v.Opcode)}
	for i, b := range v.Regs {
		copy(g.XMM[i][:], b[:16])
		copy(g.YMMH[i][:], b[16:32])
		copy(g.ZMMH[i][:], b[32:])
	}
	g.K, g.PKRU = v.Mask, v.PKRU
	switch {
	case v.Width == 64 && v.HasPKRU:
		g.Vector = gdb.AVX512PKU
	case v.Width == 64:
		g.Vector = gdb.AVX512
	case v.Width == 32:
		g.Vector = gdb.AVX
	}
	return g
}

// fullTag returns the x87 unit's tag word, with two bits for each physical
// register. They are computed from the one bit that is saved (SDM Vol. 1,
// 10.5.1.1).
func fullTag(v *machine.Vectors) (tag uint32) {
	const valid, zero, special, empty = 0, 1, 2, 3
	top := int(v.Status >> 11 & 7)
	for phys := range 8 {
		kind := uint32(empty)
		if v.Tag>>phys&1 != 0 {
			st := v.ST[(phys-top)&7]
			mantissa, exp := binary.LittleEndian.Uint64(st[:8]), binary.LittleEndian.Uint16(st[8:])&0x7fff
			switch {
			case exp == 0 && mantissa == 0:
				kind = zero
			case exp == 0 || exp == 0x7fff || mantissa>>63 == 0:
				kind = special
			default:
				kind = valid
			}
		}
		tag |= kind << (2 * phys)
	}
	return tag
}

// fromGDB converts a debugger's registers.
func fromGDB(g *gdb.Registers, r *machine.Registers, v *machine.Vectors) error {
	is := toGDB(r, v)
	if g.Segments != is.Segments || g.GDT != is.GDT || g.IDT != is.IDT || g.LDTR != is.LDTR || g.TR != is.TR {
		return fmt.Errorf("selectors and the places of tables stay what they are: a processor has more of them than that")
	}
	for _, c := range []struct {
		name string
		at   int // of Registers.Control
		bits int
	}{{"fctrl", 0, 16}, {"fstat", 1, 16}, {"ftag", 2, 16}, {"fop", 7, 11}} {
		if g.Control[c.at]>>c.bits != 0 {
			return fmt.Errorf("%s: %w: it has %d bits", c.name, machine.ErrBadRegister, c.bits)
		}
	}
	for i, p := range gdbOrder(&r.Regs) {
		*p = g.General[i]
	}
	r.Regs.RIP, r.Regs.RFLAGS = g.RIP, r.Regs.RFLAGS&^0xffffffff|uint64(g.Flags)
	y := &r.System
	y.FS.Base, y.GS.Base, r.KernelGS = g.FSBase, g.GSBase, g.KernelGSBase
	y.CR0, y.CR2, y.CR3, y.CR4, y.CR8, y.EFER = g.CR0, g.CR2, g.CR3, g.CR4, g.CR8, g.EFER
	r.Debug.DB, r.Debug.DR6, r.Debug.DR7 = g.DR, g.DR6, g.DR7

	c := g.Control
	v.ST, v.MXCSR, v.Control, v.Status, v.Opcode = g.X87, g.MXCSR, uint16(c[0]), uint16(c[1]), uint16(c[7])
	v.IP, v.DP = uint64(c[3])<<32|uint64(c[4]), uint64(c[5])<<32|uint64(c[6])
	if c[2] != is.Control[2] {
		v.Tag = 0
		for phys := range 8 {
			if c[2]>>(2*phys)&3 != 3 {
				v.Tag |= 1 << phys
			}
		}
	}
	for i := range v.Regs {
		b := &v.Regs[i]
		copy(b[:16], g.XMM[i][:])
		if v.Width > 16 {
			copy(b[16:32], g.YMMH[i][:])
		}
		if v.Width > 32 {
			copy(b[32:], g.ZMMH[i][:])
		}
	}
	v.Mask, v.PKRU = g.K, g.PKRU
	return nil
}
