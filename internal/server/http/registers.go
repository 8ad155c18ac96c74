package http

import (
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Names of bits, by their numbers (SDM Vol. 1, 3.4.3; Vol. 3, 2.5, 2.6 and 2.2.1, table 13-1 of Vol. 1; the
// vendor's own bits of EFER: APM Vol. 2, 3.1.7).
var (
	flagNames = map[int]string{0: "CF", 2: "PF", 4: "AF", 6: "ZF", 7: "SF", 8: "TF", 9: "IF", 10: "DF", 11: "OF", 14: "NT", 16: "RF", 17: "VM", 18: "AC", 19: "VIF", 20: "VIP", 21: "ID"}
	cr0Names  = map[int]string{0: "PE", 1: "MP", 2: "EM", 3: "TS", 4: "ET", 5: "NE", 16: "WP", 18: "AM", 29: "NW", 30: "CD", 31: "PG"}
	cr4Names  = map[int]string{0: "VME", 1: "PVI", 2: "TSD", 3: "DE", 4: "PSE", 5: "PAE", 6: "MCE", 7: "PGE", 8: "PCE", 9: "OSFXSR", 10: "OSXMMEXCPT", 11: "UMIP",
		12: "LA57", 13: "VMXE", 14: "SMXE", 16: "FSGSBASE", 17: "PCIDE", 18: "OSXSAVE", 19: "KL", 20: "SMEP", 21: "SMAP", 22: "PKE", 23: "CET", 24: "PKS", 25: "UINTR", 28: "LAM_SUP"}
	eferNames = map[int]string{0: "SCE", 8: "LME", 10: "LMA", 11: "NXE", 12: "SVME", 13: "LMSLE", 14: "FFXSR", 15: "TCE", 21: "AIBRSE"}
	xcr0Names = map[int]string{0: "x87", 1: "SSE", 2: "AVX", 3: "BNDREG", 4: "BNDCSR", 5: "opmask", 6: "ZMM_Hi256", 7: "Hi16_ZMM", 9: "PKRU", 17: "TILECFG", 18: "TILEDATA"}
)

// bitNames returns the names of the bits that are set, the lowest first. Bits
// without a name are given as a number.
func bitNames(v uint64, names map[int]string) []string {
	out := []string{}
	for i := range 64 {
		if v>>i&1 == 0 {
			continue
		}
		name := names[i]
		if name == "" {
			name = fmt.Sprintf("bit%d", i)
		}
		out = append(out, name)
	}
	return out
}

// rflagsNames omits bit 1, which is always set, and shows the I/O privilege
// level as a number.
func rflagsNames(v uint64) []string {
	const one, iopl = 1 << 1, 3 << 12
	out := bitNames(v&^(one|iopl), flagNames)
	if n := v & iopl >> 12; n != 0 {
		out = append(out, fmt.Sprintf("IOPL=%d", n))
	}
	return out
}

// wireRegisters is the wire form of the registers of a vCPU.
func (in *inspector) wireRegisters(r *machine.Registers) api.Registers {
	y := &r.System
	out := api.Registers{
		CPU: r.CPU, State: string(r.Activity), CPL: uint8(y.CS.Selector & 3),
		Regs: wireRegs(&r.Regs), Flags: rflagsNames(r.Regs.RFLAGS), Inside: r.Inside,
		Segments: map[string]api.Segment{
			"cs": wireSegment(&y.CS), "ss": wireSegment(&y.SS), "ds": wireSegment(&y.DS), "es": wireSegment(&y.ES),
			"fs": wireSegment(&y.FS), "gs": wireSegment(&y.GS), "tr": wireSegment(&y.TR), "ldt": wireSegment(&y.LDT),
		},
		Tables: map[string]api.Table{"gdt": {Base: api.Hex(y.GDT.Base), Limit: y.GDT.Limit}, "idt": {Base: api.Hex(y.IDT.Base), Limit: y.IDT.Limit}},
		Control: map[string]api.Hex{
			"cr0": api.Hex(y.CR0), "cr2": api.Hex(y.CR2), "cr3": api.Hex(y.CR3), "cr4": api.Hex(y.CR4), "cr8": api.Hex(y.CR8),
			"efer": api.Hex(y.EFER), "apic_base": api.Hex(y.ApicBase), "kernel_gs_base": api.Hex(r.KernelGS), "xcr0": api.Hex(r.XCR0),
		},
		Set: map[string][]string{
			"cr0": bitNames(y.CR0, cr0Names), "cr4": bitNames(y.CR4, cr4Names), "efer": bitNames(y.EFER, eferNames), "xcr0": bitNames(r.XCR0, xcr0Names),
		},
		Debug: map[string]api.Hex{"dr6": api.Hex(r.Debug.DR6), "dr7": api.Hex(r.Debug.DR7)},
	}
	for i, a := range r.Debug.DB {
		out.Debug[fmt.Sprintf("dr%d", i)] = api.Hex(a)
	}
	for _, name := range r.Unknown {
		delete(out.Control, name)
		delete(out.Set, name)
		delete(out.Debug, name)
	}
	out.Unknown = r.Unknown
	if rip := out.Regs["rip"]; api.Hex(r.Live) != rip {
		out.Live = api.Hex(r.Live)
	}
	if y.CR0&1 != 0 { // in real mode, addresses are not the image's
		out.Symbol = in.nearSymbol(guest.GVA(r.Regs.RIP))
	}
	return out
}

// wireSegment describes a segment register (SDM Vol. 3, 3.4.5).
func wireSegment(g *machine.Segment) api.Segment {
	out := api.Segment{Selector: g.Selector, Base: api.Hex(g.Base), Limit: g.Limit, Type: g.Typ, DPL: g.DPL}
	const code, writable = 8, 2
	switch {
	case g.Unusable != 0 || g.Present == 0:
		out.Attr = "unusable"
	case g.S == 0:
		out.Attr = "system"
	case g.Typ&code != 0 && g.L != 0:
		out.Attr = "code64"
	case g.Typ&code != 0 && g.DB != 0:
		out.Attr = "code32"
	case g.Typ&code != 0:
		out.Attr = "code16"
	case g.Typ&writable != 0:
		out.Attr = "data"
	default:
		out.Attr = "data, read-only"
	}
	return out
}

// wireVectors is the wire form of the floating point and vector registers.
func wireVectors(v *machine.Vectors) *api.Vectors {
	number := func(b []byte) string {
		b = slices.Clone(b)
		slices.Reverse(b)
		return fmt.Sprintf("%x", b)
	}
	out := &api.Vectors{
		Control: v.Control, Status: v.Status, Tag: v.Tag, Opcode: v.Opcode, IP: api.Hex(v.IP), DP: api.Hex(v.DP), MXCSR: v.MXCSR,
		Name: vectorNames[v.Width], Width: v.Width,
	}
	for i := range v.ST {
		out.ST = append(out.ST, number(v.ST[i][:]))
	}
	for i := range v.Regs {
		out.Regs = append(out.Regs, number(v.Regs[i][:v.Width]))
	}
	if v.HasMask {
		for _, k := range v.Mask {
			out.Mask = append(out.Mask, api.Hex(k))
		}
	}
	if v.HasPKRU {
		out.PKRU = &v.PKRU
	}
	return out
}
