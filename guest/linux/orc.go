package linux

import (
	"errors"
	"fmt"
	"math"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// ORC is the table that a kernel, or a module, uses to find the caller of each of its
// instructions (Linux, Documentation/arch/x86/orc-unwinder.rst). It does not change,
// and may be used from any thread.
type ORC struct {
	ips, entries elf.Part
	kinds        *[8]orcKind // of the type field
	numbers      *[16]uint16 // maps numbers of registers to those here; nil: they are equal
}

// ErrNoORC is returned for a kernel built with another unwinder.
var ErrNoORC = errors.New("the kernel has no ORC tables (CONFIG_UNWINDER_ORC)")

// The entries (arch/x86/include/asm/orc_types.h): 2 bytes to add to the register for
// the CFA, 2 bytes for RBP, and from the lowest bit on 4 bits for the register of the
// CFA, 4 for that of RBP, and the type. The type has 2 bits until 6.3, with another
// bit that marks an entry without a register as the end of the stack, and 3 bits
// since.
const orcEntry = 6

type orcKind uint8

const (
	orcEnd     orcKind = iota // or not known
	orcCall                   // the return address is below the CFA
	orcRegs                   // the CFA is the address of a struct pt_regs
	orcPartial                // ... of the frame that an interrupt pushes
)

var (
	orcKinds2 = [8]orcKind{orcCall, orcRegs, orcPartial, orcEnd, orcCall, orcRegs, orcPartial, orcEnd}
	orcKinds3 = [8]orcKind{orcEnd, orcEnd, orcCall, orcRegs, orcPartial}
)

// The register numbers that mean no register.
const (
	orcUndefined  = 0
	orcPrevSP     = 1 // the CFA, of RBP
	orcBP         = 4
	orcSP         = 5
	orcBPIndirect = 8
	orcSPIndirect = 9
	orcNone       = 15
)

// orcNumbers7 are the register numbers of 7.2 and 7.3, inferred from their tables, in
// which each occurs as often as the same register did before. All other numbers are
// unused.
var orcNumbers7 = [16]uint16{2: 2, 3: orcSP, orcBP: orcBP, 5: 3, 6: 6, 7: 7, 8: orcPrevSP, orcSPIndirect: orcSPIndirect, 10: orcBPIndirect,
	1: orcNone, 11: orcNone, 12: orcNone, 13: orcNone, 14: orcNone, 15: orcNone}

var orcRegisters = [16]guest.FrameRegister{2: guest.FrameRDX, 3: guest.FrameRDI, orcBP: guest.FrameRBP, orcSP: guest.FrameRSP, 6: guest.FrameR10, 7: guest.FrameR13,
	orcBPIndirect: guest.FrameRBP, orcSPIndirect: guest.FrameRSP}

// ORC returns the kernel's table, or the module's. Its addresses are the image's.
func (k *Kernel) ORC() (*ORC, error) {
	o := &ORC{ips: k.mem.Table(".orc_unwind_ip", "__start_orc_unwind_ip", "__stop_orc_unwind_ip"),
		entries: k.mem.Table(".orc_unwind", "__start_orc_unwind", "__stop_orc_unwind")}
	n := len(o.ips.Data) / 4
	if n == 0 || len(o.entries.Data) == 0 {
		return nil, ErrNoORC
	}
	if len(o.ips.Data)%4 != 0 || len(o.entries.Data) != n*orcEntry || n > math.MaxInt32 {
		return nil, fmt.Errorf("ORC tables of %d and %d bytes do not belong together", len(o.ips.Data), len(o.entries.Data))
	}
	// Most entries are calls, which are 0 if the type has 2 bits, and 2 if it has 3.
	// Most CFAs are RSP plus a constant.
	calls2, calls3, bySP, by3 := 0, 0, 0, 0
	for i := range n {
		if i > 0 && o.ip(i) < o.ip(i-1) {
			return nil, fmt.Errorf("ORC table: entry %d is not in order", i)
		}
		_, _, flags := o.entry(i)
		switch flags & 15 {
		case orcSP:
			bySP++
		case 3:
			by3++
		}
		switch flags >> 8 & 3 {
		case 0:
			calls2++
		case 2:
			calls3++
		}
	}
	if by3 > bySP {
		o.numbers = &orcNumbers7
	}
	switch {
	case calls2 > n/2:
		o.kinds = &orcKinds2
	case calls3 > n/2:
		o.kinds = &orcKinds3
	default:
		return nil, errors.New("ORC tables of a layout that is not known: most entries are no calls")
	}
	return o, nil
}

func (o *ORC) ip(i int) uint64 { return relativeAddr(&o.ips, 4*i) }

func (o *ORC) entry(i int) (sp, bp int16, flags uint16) {
	e := o.entries.Data[i*orcEntry:][:orcEntry]
	u16 := func(n int) uint16 { return uint16(e[n]) | uint16(e[n+1])<<8 }
	flags = u16(4)
	if t := o.numbers; t != nil {
		flags = flags&^0xff | t[flags&15] | t[flags>>4&15]<<4
	}
	return int16(u16(0)), int16(u16(2)), flags
}

// frameRule returns the rule for the instruction at pc, and false if it is before the
// table's first entry. It allocates nothing.
func (o *ORC) frameRule(pc uint64) (guest.FrameRule, bool) {
	// The last entry at or before pc.
	lo, hi := 0, len(o.ips.Data)/4
	for lo < hi {
		if m := int(uint(lo+hi) / 2); o.ip(m) <= pc {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == 0 {
		return guest.FrameRule{}, false
	}
	return o.rule(lo - 1), true
}

// rule returns the rule of entry i.
func (o *ORC) rule(i int) guest.FrameRule {
	sp, bp, flags := o.entry(i)
	reg, kind := flags&15, o.kinds[flags>>8&7]
	r := guest.FrameRule{Base: orcRegisters[reg], CFA: int32(sp)}
	if kind == orcEnd || reg == orcUndefined || reg == orcPrevSP || reg > orcSPIndirect {
		return guest.FrameRule{Outer: true}
	}
	switch reg {
	case orcBPIndirect:
		r.Indirect, r.Inner, r.CFA = true, int32(sp), 0
	case orcSPIndirect:
		r.Indirect = true
	}
	switch kind {
	case orcCall:
		r.Return = -8
	case orcRegs:
		r.Trap, r.Full, r.Return, r.RBP = true, true, 128, 32
	case orcPartial:
		r.Trap = true
	}
	switch flags >> 4 & 15 {
	case orcUndefined: // the caller's, or with the registers
	case orcPrevSP:
		r.RBP = int32(bp)
	case orcBP:
		r.RBP, r.AtRBP = int32(bp), true
	default:
		r.Outer = true
	}
	return r
}

// FrameRules calls f with each address at which the rule of FrameRule changes,
// ascending in the kernel and then in each of its modules.
func (v *View) FrameRules(f func(at guest.GVA, r guest.FrameRule)) {
	for _, p := range v.now.Load().pieces {
		if p.orc == nil {
			continue
		}
		for i := range len(p.orc.ips.Data) / 4 {
			f(guest.GVA(p.orc.ip(i))+p.slide, p.orc.rule(i))
		}
	}
}
