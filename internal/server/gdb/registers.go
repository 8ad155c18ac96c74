package gdb

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Registers are the registers of a vCPU.
type Registers struct {
	General [16]uint64 // RAX RBX RCX RDX RSI RDI RBP RSP R8 to R15: the protocol's order, not the CPU's
	RIP     uint64
	Flags   uint32

	Segments                     [6]uint16 // CS SS DS ES FS GS
	FSBase, GSBase, KernelGSBase uint64

	X87     [8][10]byte // ST0 to ST7
	Control [8]uint32   // of the x87: FCTRL FSTAT FTAG FISEG FIOFF FOSEG FOOFF FOP
	XMM     [32][16]byte
	MXCSR   uint32

	Vector Vector       // which of the following exist
	YMMH   [32][16]byte // upper halves
	ZMMH   [32][32]byte
	K      [8]uint64
	PKRU   uint32

	CR0, CR2, CR3, CR4, CR8, EFER uint64
	DR                            [4]uint64 // DR0 to DR3
	DR6, DR7                      uint64
	GDT, IDT                      uint64 // bases
	LDTR, TR                      uint16 // selectors
}

// Vector is the width of the vector registers.
type Vector uint8

// The vector extensions; each includes the earlier ones.
const (
	SSE Vector = iota
	AVX
	AVX512
	AVX512PKU // with PKRU
)

// register is a register in the protocol's numbering, which is the order of
// descriptions.
type register struct {
	name, typ, group string
	size             int // bytes
	at               func(*Registers) any
}

// feature is a part of a target description (GDB manual, appendix G.5.10). GDB
// knows the first ones by their names. It shows the registers of guestprobe's
// own feature as the description says.
type feature struct {
	name  string
	needs Vector
	types string
	regs  []register
}

// The numbers of the registers that a stop reply includes, and how many
// registers are available without a further read when a guest stops: general
// registers, rip, eflags and segments.
const (
	numRBP, numRSP, numRIP = 6, 7, 16
	numAtHand              = 24
)

func flagsType(id string, size int, bits string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<flags id=%q size="%d">`, id, size)
	for f := range strings.FieldsSeq(bits) {
		var name string
		lo := 0
		name, at, _ := strings.Cut(f, "=")
		if _, err := fmt.Sscanf(at, "%d", &lo); err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, `<field name=%q start="%d" end="%d"/>`, name, lo, lo)
	}
	return b.String() + "</flags>"
}

// appendRegisters appends n registers, named by a format.
func appendRegisters(regs []register, n, from int, name, typ, group string, size int, at func(r *Registers, i int) any) []register {
	for i := range n {
		regs = append(regs, register{fmt.Sprintf(name, from+i), typ, group, size, func(r *Registers) any { return at(r, i) }})
	}
	return regs
}

// features returns the descriptions of all kinds of registers.
var features = sync.OnceValue(func() []feature {
	var core []register
	for i, reg := range x86.DebuggerRegs {
		typ := "int64"
		if i == numRBP || i == numRSP {
			typ = "data_ptr"
		}
		core = append(core, register{reg.String(), typ, "general", 8, func(r *Registers) any { return &r.General[i] }})
	}
	core = append(core,
		register{"rip", "code_ptr", "general", 8, func(r *Registers) any { return &r.RIP }},
		register{"eflags", "i386_eflags", "general", 4, func(r *Registers) any { return &r.Flags }})
	for i, name := range strings.Fields("cs ss ds es fs gs") {
		core = append(core, register{name, "int32", "general", 4, func(r *Registers) any { return &r.Segments[i] }})
	}
	core = appendRegisters(core, 8, 0, "st%d", "i387_ext", "float", 10, func(r *Registers, i int) any { return r.X87[i][:] })
	for i, name := range strings.Fields("fctrl fstat ftag fiseg fioff foseg fooff fop") {
		core = append(core, register{name, "int", "float", 4, func(r *Registers) any { return &r.Control[i] }})
	}
	sse := appendRegisters(nil, 16, 0, "xmm%d", "vec128", "vector", 16, func(r *Registers, i int) any { return r.XMM[i][:] })
	sse = append(sse, register{"mxcsr", "i386_mxcsr", "vector", 4, func(r *Registers) any { return &r.MXCSR }})
	wide := appendRegisters(nil, 16, 16, "xmm%d", "vec128", "vector", 16, func(r *Registers, i int) any { return r.XMM[16+i][:] })
	wide = appendRegisters(wide, 16, 16, "ymm%dh", "uint128", "vector", 16, func(r *Registers, i int) any { return r.YMMH[16+i][:] })
	wide = appendRegisters(wide, 8, 0, "k%d", "uint64", "vector", 8, func(r *Registers, i int) any { return &r.K[i] })
	wide = appendRegisters(wide, 32, 0, "zmm%dh", "v2ui128", "vector", 32, func(r *Registers, i int) any { return r.ZMMH[i][:] })
	system := []register{
		{"k_gs_base", "int64", "system", 8, func(r *Registers) any { return &r.KernelGSBase }},
		{"cr0", "guest_cr0", "system", 8, func(r *Registers) any { return &r.CR0 }},
		{"cr2", "data_ptr", "system", 8, func(r *Registers) any { return &r.CR2 }},
		{"cr3", "int64", "system", 8, func(r *Registers) any { return &r.CR3 }},
		{"cr4", "guest_cr4", "system", 8, func(r *Registers) any { return &r.CR4 }},
		{"cr8", "int64", "system", 8, func(r *Registers) any { return &r.CR8 }},
		{"efer", "guest_efer", "system", 8, func(r *Registers) any { return &r.EFER }},
	}
	system = appendRegisters(system, 4, 0, "dr%d", "data_ptr", "system", 8, func(r *Registers, i int) any { return &r.DR[i] })
	system = append(system,
		register{"dr6", "int64", "system", 8, func(r *Registers) any { return &r.DR6 }},
		register{"dr7", "int64", "system", 8, func(r *Registers) any { return &r.DR7 }},
		register{"gdt_base", "data_ptr", "system", 8, func(r *Registers) any { return &r.GDT }},
		register{"idt_base", "data_ptr", "system", 8, func(r *Registers) any { return &r.IDT }},
		register{"ldtr", "int32", "system", 4, func(r *Registers) any { return &r.LDTR }},
		register{"tr", "int32", "system", 4, func(r *Registers) any { return &r.TR }})
	return []feature{
		{name: "org.gnu.gdb.i386.core", regs: core,
			types: flagsType("i386_eflags", 4, "CF=0 =1 PF=2 AF=4 ZF=6 SF=7 TF=8 IF=9 DF=10 OF=11 NT=14 RF=16 VM=17 AC=18 VIF=19 VIP=20 ID=21")},
		{name: "org.gnu.gdb.i386.sse", regs: sse,
			types: vec128 + flagsType("i386_mxcsr", 4, "IE=0 DE=1 ZE=2 OE=3 UE=4 PE=5 DAZ=6 IM=7 DM=8 ZM=9 OM=10 UM=11 PM=12 FZ=15")},
		{name: "org.gnu.gdb.i386.segments", regs: []register{
			{"fs_base", "int64", "general", 8, func(r *Registers) any { return &r.FSBase }},
			{"gs_base", "int64", "general", 8, func(r *Registers) any { return &r.GSBase }}}},
		{name: "org.gnu.gdb.i386.avx", needs: AVX,
			regs: appendRegisters(nil, 16, 0, "ymm%dh", "uint128", "vector", 16, func(r *Registers, i int) any { return r.YMMH[i][:] })},
		{name: "org.gnu.gdb.i386.avx512", needs: AVX512, regs: wide, types: vec128 + `<vector id="v2ui128" type="uint128" count="2"/>`},
		{name: "org.gnu.gdb.i386.pkeys", needs: AVX512PKU,
			regs: []register{{"pkru", "uint32", "", 4, func(r *Registers) any { return &r.PKRU }}}},
		{name: "org.guestprobe.system", regs: system,
			types: flagsType("guest_cr0", 8, "PE=0 MP=1 EM=2 TS=3 ET=4 NE=5 WP=16 AM=18 NW=29 CD=30 PG=31") +
				flagsType("guest_cr4", 8, "VME=0 PVI=1 TSD=2 DE=3 PSE=4 PAE=5 MCE=6 PGE=7 PCE=8 OSFXSR=9 OSXMMEXCPT=10 UMIP=11 LA57=12 VMXE=13 SMXE=14 FSGSBASE=16 PCIDE=17 OSXSAVE=18 SMEP=20 SMAP=21 PKE=22 CET=23") +
				flagsType("guest_efer", 8, "SCE=0 LME=8 LMA=10 NXE=11 SVME=12 LMSLE=13 FFXSR=14 TCE=15")},
	}
})

const vec128 = `<vector id="v4f" type="ieee_single" count="4"/><vector id="v2d" type="ieee_double" count="2"/>` +
	`<vector id="v16i8" type="int8" count="16"/><vector id="v8i16" type="int16" count="8"/>` +
	`<vector id="v4i32" type="int32" count="4"/><vector id="v2i64" type="int64" count="2"/>` +
	`<union id="vec128"><field name="v4_float" type="v4f"/><field name="v2_double" type="v2d"/>` +
	`<field name="v16_int8" type="v16i8"/><field name="v8_int16" type="v8i16"/><field name="v4_int32" type="v4i32"/>` +
	`<field name="v2_int64" type="v2i64"/><field name="uint128" type="uint128"/></union>`

// description returns the registers that a vCPU with v has, and the XML that
// describes them to a debugger.
func description(v Vector) ([]register, string) {
	var regs []register
	var b strings.Builder
	b.WriteString(`<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd"><target><architecture>i386:x86-64</architecture>`)
	for _, f := range features() {
		if f.needs > v {
			continue
		}
		fmt.Fprintf(&b, "<feature name=%q>%s", f.name, f.types)
		for _, r := range f.regs {
			fmt.Fprintf(&b, `<reg name=%q bitsize="%d" type=%q`, r.name, 8*r.size, r.typ)
			if r.group != "" {
				fmt.Fprintf(&b, " group=%q", r.group)
			}
			fmt.Fprintf(&b, ` regnum="%d"/>`, len(regs))
			regs = append(regs, r)
		}
		b.WriteString("</feature>")
	}
	return regs, b.String() + "</target>"
}

// get appends the bytes of g in r, little-endian.
func (g *register) get(b []byte, r *Registers) []byte {
	switch p := g.at(r).(type) {
	case *uint64:
		return binary.LittleEndian.AppendUint64(b, *p)
	case *uint32:
		return binary.LittleEndian.AppendUint32(b, *p)
	case *uint16:
		return binary.LittleEndian.AppendUint32(b, uint32(*p))
	case []byte:
		return append(b, p...)
	default:
		panic(fmt.Sprintf("register %s is a %T", g.name, p))
	}
}

// set sets g in r to the value of b, which is as long as g. It fails for a
// selector of more than 16 bits.
func (g *register) set(b []byte, r *Registers) bool {
	switch p := g.at(r).(type) {
	case *uint64:
		*p = binary.LittleEndian.Uint64(b)
	case *uint32:
		*p = binary.LittleEndian.Uint32(b)
	case *uint16:
		n := binary.LittleEndian.Uint32(b)
		if n > math.MaxUint16 {
			return false
		}
		*p = uint16(n)
	case []byte:
		copy(p, b)
	}
	return true
}
