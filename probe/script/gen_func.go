package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// function leaves the result of a call of checker.function in R0, and reports whether
// e is such a call.
func (g *generator) function(e *expr) bool {
	switch e.name {
	case "pid", "tid":
		g.builtin(&expr{kind: exBuiltin, name: e.name})
	case "nsecs":
		g.Emit(bpfgen.Call(bpf.HelperKtimeGetNS))
		if mode := e.args[0].name; mode == "tai" || mode == "sw_tai" {
			g.Add(asm.R0, g.cfg.Epoch+taiOffset)
		}
	case "strftime":
		g.number64(e.args[1])
		if at := e.args[1]; at.kind == exCall && at.name == "nsecs" && (at.args[0].name == "tai" || at.args[0].name == "sw_tai") {
			g.Add(asm.R0, -g.cfg.Epoch-taiOffset)
		}
	case "strncmp", "memcmp":
		g.compareBytes(e.args[0], e.args[1], int(e.num), e.name == "memcmp")
	case "strcontains":
		g.find(e.args[0], e.args[1])
		g.Emit(asm.RSh.Imm(asm.R0, 63), asm.Xor.Imm(asm.R0, 1))
	case "strstr":
		g.find(e.args[0], e.args[1])
	case "strcap", "is_ptr", "is_str", "is_integer", "is_unsigned_integer", "is_literal", "is_array", "is_scalar":
		g.Emit(bpfgen.Const(asm.R0, e.num))
	case "bswap":
		g.number64(e.args[0])
		if n := e.typ.Size; n > 1 {
			g.Emit(asm.HostTo(asm.BE, asm.R0, map[int]asm.Size{2: asm.Half, 4: asm.Word, 8: asm.DWord}[n]))
		} else {
			g.Emit(asm.And.Imm(asm.R0, 0xff))
		}
	case "is_err": // MAX_ERRNO, include/linux/err.h
		g.number64(e.args[0])
		yes, done := g.NewLabel(), g.NewLabel()
		g.JumpTo(asm.JGE.Imm(asm.R0, -4095, ""), yes)
		g.Emit(asm.Mov.Imm(asm.R0, 0))
		g.GoTo(done)
		g.Place(yes)
		g.Emit(asm.Mov.Imm(asm.R0, 1))
		g.Place(done)
	case "kptr", "uptr":
		g.number64(e.args[0])
	case "macaddr":
		if a := e.args[0]; a.octets() == 6 {
			g.runInScope(func() {
				to := g.alloc(8)
				g.octets(a, to, e.site)
				g.load(asm.R0, to)
			})
			break
		}
		g.number64(e.args[0])
		g.readNumber(6, e.site)
	default:
		return false
	}
	return true
}

// compareBytes leaves 0 in R0 if the first n bytes of two strings are equal, and
// otherwise 1, or with difference the difference of the first two bytes that differ, as
// signed ones.
func (g *generator) compareBytes(a, b *expr, n int, difference bool) {
	differ, first, done := g.NewLabel(), g.NewLabel(), g.NewLabel()
	g.runInScope(func() {
		x := g.stableView(a, b)
		y := g.view(b)
		word := func(r asm.Register, e *expr, m mem, i int) {
			if i >= e.typ.bytes() {
				g.Emit(asm.Mov.Imm(r, 0))
				return
			}
			g.load(r, m.offset(i))
			if n-i < 8 {
				g.And(r, 1<<(8*(n-i))-1)
			}
		}
		for i := 0; i < min(n, max(a.typ.bytes(), b.typ.bytes())); i += 8 {
			same := g.NewLabel()
			word(asm.R0, a, x, i)
			word(asm.R1, b, y, i)
			g.JumpTo(asm.JEq.Reg(asm.R0, asm.R1, ""), same)
			g.GoTo(differ)
			g.Place(same)
		}
	})
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	if !g.Used(differ) {
		return
	}
	g.GoTo(done)
	g.Place(differ)
	if !difference {
		g.Emit(asm.Mov.Imm(asm.R0, 1))
		g.Place(done)
		return
	}
	again := g.NewLabel()
	g.Place(again)
	g.Emit(asm.Mov.Reg(asm.R2, asm.R0), asm.Xor.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, 0xff))
	g.If(asm.JNE, asm.R2, 0, first)
	g.Emit(asm.RSh.Imm(asm.R0, 8), asm.RSh.Imm(asm.R1, 8))
	g.GoTo(again)
	g.Place(first)
	g.Emit(asm.MovSX8.Reg(asm.R0, asm.R0), asm.MovSX8.Reg(asm.R1, asm.R1), asm.Sub.Reg(asm.R0, asm.R1))
	g.Place(done)
}

// find leaves the offset of a string in another one in R0, or -1.
func (g *generator) find(in, what *expr) {
	g.runInScope(func() {
		x := g.stableView(in, what)
		y := g.view(what)
		start, next, none, found, done := g.NewLabel(), g.NewLabel(), g.NewLabel(), g.NewLabel(), g.NewLabel()
		g.Emit(asm.Mov.Imm(asm.R3, 0)) // the candidate offset
		g.Place(start)
		g.Emit(asm.Mov.Imm(asm.R4, 0)) // the number of matching bytes
		g.Place(next)
		g.address(asm.R1, y)
		g.Emit(asm.Add.Reg(asm.R1, asm.R4), bpfgen.Load(1, asm.R2, asm.R1, 0))
		g.If(asm.JEq, asm.R2, 0, found)
		g.Emit(asm.Mov.Reg(asm.R5, asm.R3), asm.Add.Reg(asm.R5, asm.R4))
		g.If(asm.JGE, asm.R5, uint64(in.typ.bytes()), none)
		g.address(asm.R1, x)
		g.Emit(asm.Add.Reg(asm.R1, asm.R5), bpfgen.Load(1, asm.R1, asm.R1, 0))
		g.If(asm.JEq, asm.R1, 0, none)
		g.Emit(asm.Add.Imm(asm.R4, 1))
		longer := g.NewLabel()
		g.JumpTo(asm.JEq.Reg(asm.R1, asm.R2, ""), longer)
		g.Emit(asm.Add.Imm(asm.R3, 1))
		g.GoTo(start)
		g.Place(longer)
		g.If(asm.JLT, asm.R4, uint64(what.typ.bytes()), next)
		g.Place(found)
		g.Emit(asm.Mov.Reg(asm.R0, asm.R3))
		g.GoTo(done)
		g.Place(none)
		g.Emit(asm.Mov.Imm(asm.R0, -1))
		g.Place(done)
	})
}

// putConcat stores a string followed by another one.
func (g *generator) putConcat(e *expr, t Type, to mem) {
	a, b := e.args[0], e.args[1]
	g.put(a, t, to)
	g.runInScope(func() {
		from := g.view(b)
		next, again, done := g.NewLabel(), g.NewLabel(), g.NewLabel()
		g.Emit(asm.Mov.Imm(asm.R3, 0)) // the end of the first one
		g.Place(next)
		g.address(asm.R1, to)
		g.Emit(asm.Add.Reg(asm.R1, asm.R3), bpfgen.Load(1, asm.R1, asm.R1, 0))
		ends := g.NewLabel()
		g.If(asm.JEq, asm.R1, 0, ends)
		g.Emit(asm.Add.Imm(asm.R3, 1))
		g.If(asm.JLT, asm.R3, uint64(t.Size), next)
		g.GoTo(done)
		g.Place(ends)
		g.Emit(asm.Mov.Imm(asm.R4, 0))
		g.Place(again)
		g.address(asm.R1, from)
		g.Emit(asm.Add.Reg(asm.R1, asm.R4), bpfgen.Load(1, asm.R2, asm.R1, 0))
		g.If(asm.JEq, asm.R2, 0, done)
		room := g.NewLabel()
		g.If(asm.JLT, asm.R3, uint64(t.Size-1), room)
		if e.typ.Size == maxConcat {
			g.Emit(asm.Mov.Imm(asm.R0, 0))
			g.countFailure(g.c.addSite(failureAt(e.Span, siteCut)))
		}
		g.GoTo(done)
		g.Place(room)
		g.address(asm.R1, to)
		g.Emit(asm.Add.Reg(asm.R1, asm.R3), bpfgen.Store(1, asm.R1, 0, asm.R2), asm.Add.Imm(asm.R3, 1), asm.Add.Imm(asm.R4, 1))
		g.If(asm.JLT, asm.R4, uint64(b.typ.Size), again)
		g.Place(done)
	})
}

// putInet stores an internet address.
func (g *generator) putInet(e *expr, to mem) {
	addr := e.args[len(e.args)-1]
	if len(e.args) == 2 && e.args[0].hasEffects() { // the address determines the family
		g.runInScope(func() { g.number64(e.args[0]) })
	}
	g.putWord(e.num, to)
	g.putWord(0, to.offset(16))
	if addr.octets() > 0 {
		g.octets(addr, to.offset(8), e.site)
		return
	}
	g.number64(addr)
	g.Emit(asm.Mov.Reg32(asm.R0, asm.R0))
	g.store(to.offset(8), asm.R0)
}

// octets stores the bytes of an array, with zeros up to a multiple of 8.
func (g *generator) octets(e *expr, to mem, site int) {
	n := e.octets()
	if !e.isPlace() {
		g.runInScope(func() { g.copy(to, g.view(e), roundUp8(n)) })
		return
	}
	g.runInScope(func() {
		g.loadAddress(e)
		g.clear(to, roundUp8(n))
		g.Emit(asm.Mov.Reg(asm.R3, asm.R0))
		g.address(asm.R1, to)
		g.Emit(asm.Mov.Imm(asm.R2, int32(n)), bpfgen.Call(bpf.HelperReadKernel))
		g.countFailureIfNegative(site)
	})
}
