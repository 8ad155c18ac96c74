package script

import (
	"math"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// registers are the names accepted by reg, in the order of the context.
var registers = x86.PtNames[:]

// number64 leaves a number in R0, sign- or zero-extended.
func (g *generator) number64(e *expr) {
	if g.tooLong() {
		return
	}
	switch e.kind {
	case exInt, exParam:
		n, _ := g.c.constant(e)
		g.Emit(bpfgen.Const(asm.R0, uint64(n)))
	case exVar:
		g.load(asm.R0, g.vars[e.decl])
	case exMap:
		g.readMap(e)
	case exBuiltin:
		g.builtin(e)
	case exCall:
		g.call(e)
	case exUnary:
		g.unary(e)
	case exBinary:
		g.binary(e)
	case exCond:
		other, done := g.NewLabel(), g.NewLabel()
		if e.short {
			g.number64(e.args[0])
			g.Require(asm.JEq, asm.R0, 0, done)
		} else {
			g.jumpUnless(e.args[0], other)
			g.number64(e.args[1])
			g.GoTo(done)
		}
		g.Place(other)
		g.number64(e.args[2])
		g.Place(done)
	case exCast:
		switch e.args[0].typ.Kind {
		case Array:
			g.loadArray(e)
			return
		case String: // whether it is not empty
			g.runInScope(func() { g.load(asm.R0, g.view(e.args[0])) })
			g.And(asm.R0, 0xff)
			g.convert(typeUint, e.typ)
			return
		}
		g.number64(e.args[0])
		g.convert(e.args[0].typ, e.typ)
	case exBlock:
		g.emitBlock(e, g.number64)
	case exField, exIndex:
		switch {
		case e.isArgument():
			g.argument(e)
		case e.isPlace():
			g.readPlace(e)
		case e.args[0].typ.Kind == Stats:
			m := g.c.byName[e.args[0].name]
			g.runInScope(func() { g.elems.mergeValues(m, g.key(e.args[0]), e.name) })
		default:
			g.runInScope(func() { g.load(asm.R0, g.view(e)) })
		}
	case exIncDec:
		g.incDec(e, false)
	default:
		panic("BUG: no number")
	}
}

// context returns the offset in the context of a simple name's value.
func (g *generator) context(e *expr) (off int, ok bool) {
	if e.kind != exBuiltin {
		return 0, false
	}
	if e.name == "retval" && e.typ.is(Int, Pointer) && e.typ.Size == 8 {
		return x86.PtAX, true
	}
	if number, isArg := argNumber(e.name); isArg {
		if g.p.static != nil {
			g.placed = true
			return staticRegister(&g.p.static.Args[number])
		}
		switch n := g.p.argWord(number); {
		case n >= registerWords:
		case g.p.atReturn():
			return entryArg(n), true
		default:
			return x86.CallArgs[n], true
		}
	}
	return 0, false
}

// simple loads a value that needs no other register, and reports whether it could.
func (g *generator) simple(r asm.Register, e *expr) bool {
	if off, ok := g.context(e); ok {
		g.Emit(bpfgen.Load(8, r, rCtx, off))
		return true
	}
	switch e.kind {
	case exInt, exParam:
		n, _ := g.c.constant(e)
		g.Emit(bpfgen.Const(r, uint64(n)))
	case exVar:
		g.load(r, g.vars[e.decl])
	default:
		return false
	}
	return true
}

// operands leaves two numbers in R0 and R1.
func (g *generator) operands(a, b *expr) {
	switch b.kind {
	case exInt, exParam, exVar, exBuiltin:
		if _, ok := g.context(b); ok || b.kind != exBuiltin {
			g.number64(a)
			g.simple(asm.R1, b)
			return
		}
	}
	g.runInScope(func() {
		tmp := g.alloc(8)
		g.number64(a)
		g.store(tmp, asm.R0)
		g.number64(b)
		g.Emit(asm.Mov.Reg(asm.R1, asm.R0))
		g.load(asm.R0, tmp)
	})
}

// jumps has the jump of each comparison, for unsigned and signed numbers.
var jumps = map[string][2]asm.JumpOp{
	"==": {asm.JEq, asm.JEq}, "!=": {asm.JNE, asm.JNE}, "<": {asm.JLT, asm.JSLT}, "<=": {asm.JLE, asm.JSLE}, ">": {asm.JGT, asm.JSGT}, ">=": {asm.JGE, asm.JSGE},
}

// jumpUnless continues if e is true, and jumps to otherwise if not.
func (g *generator) jumpUnless(e *expr, otherwise bpfgen.Label) {
	if g.tooLong() {
		return
	}
	switch {
	case e.kind == exBinary && e.name == "&&":
		g.jumpUnless(e.args[0], otherwise)
		g.jumpUnless(e.args[1], otherwise)
		return
	case e.kind == exBinary && e.name == "||":
		second, on := g.NewLabel(), g.NewLabel()
		g.jumpUnless(e.args[0], second)
		g.GoTo(on)
		g.Place(second)
		g.jumpUnless(e.args[1], otherwise)
		g.Place(on)
		return
	case e.kind == exUnary && e.name == "!":
		on := g.NewLabel()
		g.jumpUnless(e.args[0], on)
		g.GoTo(otherwise)
		g.Place(on)
		return
	case e.kind == exBinary && isComparison(e.name) && e.args[0].typ.is(String, Tuple, Array, Struct, Buffer):
		if e.name == "==" {
			g.compareValues(e.args[0], e.args[1], otherwise)
			return
		}
		on := g.NewLabel()
		g.compareValues(e.args[0], e.args[1], on)
		g.GoTo(otherwise)
		g.Place(on)
		return
	case e.kind == exBinary && isComparison(e.name):
		on := g.NewLabel()
		op := jumps[e.name][signIndex(signedness(e.args[0], e.args[1]))]
		if n, ok := g.c.constant(e.args[1]); ok && n >= math.MinInt32 && n <= math.MaxInt32 {
			g.number64(e.args[0])
			g.If(op, asm.R0, uint64(n), on)
		} else {
			g.operands(e.args[0], e.args[1])
			g.JumpTo(op.Reg(asm.R0, asm.R1, ""), on)
		}
		g.GoTo(otherwise)
		g.Place(on)
		return
	}
	g.number64(e)
	g.Require(asm.JNE, asm.R0, 0, otherwise)
}

// truth leaves 1 in R0 if e is true, and otherwise 0.
func (g *generator) truth(e *expr) {
	no, done := g.NewLabel(), g.NewLabel()
	g.jumpUnless(e, no)
	g.Emit(asm.Mov.Imm(asm.R0, 1))
	g.GoTo(done)
	g.Place(no)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(done)
}

func (g *generator) unary(e *expr) {
	switch e.name {
	case "!":
		g.truth(e)
		return
	case "*":
		g.readPlace(e)
		return
	case "&":
		switch of := e.args[0]; of.kind {
		case exVar:
			g.address(asm.R0, g.vars[of.decl])
		case exMap:
			g.loadMap(asm.R0, of.name)
		default:
			g.runInScope(func() { g.loadAddress(of) })
		}
		return
	}
	g.number64(e.args[0])
	switch e.name {
	case "-":
		g.Emit(asm.Neg.Imm(asm.R0, 0))
	case "~":
		g.Emit(asm.Xor.Imm(asm.R0, -1))
	}
}

// operations has the operation of each operator, for unsigned and signed numbers.
var operations = map[string][2]asm.ALUOp{
	"+": {asm.Add, asm.Add}, "-": {asm.Sub, asm.Sub}, "*": {asm.Mul, asm.Mul}, "/": {asm.Div, asm.SDiv}, "%": {asm.Mod, asm.SMod},
	"&": {asm.And, asm.And}, "|": {asm.Or, asm.Or}, "^": {asm.Xor, asm.Xor}, "<<": {asm.LSh, asm.LSh}, ">>": {asm.RSh, asm.ArSh},
}

func (g *generator) binary(e *expr) {
	ops, ok := operations[e.name]
	if !ok {
		g.truth(e)
		return
	}
	a, b := e.args[0], e.args[1]
	signed := signIndex(e.typ.Signed && (!divides(e.name) || signedness(a, b)))
	if e.typ.Kind == Pointer {
		pointer := a
		if a.typ.Kind != Pointer {
			pointer = b
		}
		first, second := b, a
		if haveEffects(e.args) { // in the order of the source
			first, second = a, b
		}
		operand := func(x *expr) {
			g.number64(x)
			if x != pointer {
				g.scale(e.typ.Elems[0].sizeInC())
			}
		}
		g.runInScope(func() {
			by := g.alloc(8)
			operand(first)
			g.store(by, asm.R0)
			operand(second)
			g.load(asm.R1, by)
			if e.name == "-" && second != pointer { // POINTER - N, with the pointer first
				g.Emit(asm.Mov.Reg(asm.R2, asm.R0), asm.Mov.Reg(asm.R0, asm.R1), asm.Mov.Reg(asm.R1, asm.R2))
			}
			g.Emit(ops[0].Reg(asm.R0, asm.R1))
		})
		return
	}
	if n, ok := g.c.constant(b); ok && n >= math.MinInt32 && n <= math.MaxInt32 && (n != 0 || !divides(e.name)) && (n >= 0 && n < 64 || e.name != "<<" && e.name != ">>") {
		g.number64(a)
		g.Emit(ops[signed].Imm(asm.R0, int32(n)))
		return
	}
	g.operands(a, b)
	if !divides(e.name) {
		g.Emit(ops[signed].Reg(asm.R0, asm.R1))
		return
	}
	some, done := g.NewLabel(), g.NewLabel()
	g.If(asm.JNE, asm.R1, 0, some)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.countFailure(divideSite(g.c, e))
	g.Emit(asm.Mov.Imm(asm.R0, 1))
	g.GoTo(done)
	g.Place(some)
	g.Emit(ops[signed].Reg(asm.R0, asm.R1))
	g.Place(done)
}

// builtin leaves the value of a name in R0.
func (g *generator) builtin(e *expr) {
	if off, ok := g.context(e); ok {
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, off))
		return
	}
	task := func(h bpf.Helper, high bool) {
		g.Emit(bpfgen.Call(h))
		if high {
			g.Emit(asm.RSh.Imm(asm.R0, 32))
		} else {
			g.Emit(asm.Mov.Reg32(asm.R0, asm.R0))
		}
	}
	if !g.p.hasGuest() {
		switch e.name {
		case "pid", "tid", "uid", "gid", "curtask", "cgroup", "cr3", "usermode", "cpu", "vcpu":
			g.Emit(asm.Mov.Imm(asm.R0, 0))
			return
		}
	}
	switch e.name {
	case "retval":
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, x86.PtAX))
		g.convert(typeUint, e.typ)
	case "pid":
		task(bpf.HelperGetPIDTGID, true)
	case "tid":
		task(bpf.HelperGetPIDTGID, false)
	case "uid":
		task(bpf.HelperGetUIDGID, false)
	case "gid":
		task(bpf.HelperGetUIDGID, true)
	case "cpu", "vcpu":
		g.Emit(bpfgen.Call(bpf.HelperGetCPU))
	case "ncpus":
		g.Emit(bpfgen.Const(asm.R0, uint64(g.cfg.CPUs)))
	case "func": // as a symbol: see checker.symbolicType
		g.Emit(asm.Mov.Reg(asm.R1, rCtx), bpfgen.Call(bpf.HelperGetFuncIP))
	case "nsecs":
		g.Emit(bpfgen.Call(bpf.HelperKtimeGetNS))
	case "elapsed":
		g.Emit(bpfgen.Call(bpf.HelperKtimeGetNS), bpfgen.Const(asm.R1, uint64(g.cfg.Now)), asm.Sub.Reg(asm.R0, asm.R1))
	case "rand":
		g.Emit(bpfgen.Call(bpf.HelperGetRandom))
	case "curtask":
		g.Emit(bpfgen.Call(bpf.HelperGetTask))
	case "cgroup":
		g.Emit(bpfgen.Call(bpf.HelperGetCgroupID))
	case "cr3":
		g.Emit(bpfgen.Call(bpf.HelperGetSpace))
	case "usermode":
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, x86.PtCS), asm.And.Imm(asm.R0, 1))
	case "kstack", "ustack", "dw_ustack":
		g.stack(e)
	case "numaid": // a guest has one node
		g.Emit(asm.Mov.Imm(asm.R0, 0))
	case "jiffies":
		g.Emit(bpfgen.Const(asm.R0, e.num))
		g.readNumber(8, e.site)
	default: // arguments of statically defined probes, or on the stack above the return address
		number, _ := argNumber(e.name)
		if g.p.static != nil {
			g.placed = true
			g.staticArg(&g.p.static.Args[number], e.site)
			return
		}
		g.stackWord(g.p.argWord(number)-registerWords+1, e.site)
	}
}

// incDec generates x++ and so on; if discard is set the value is not used.
func (g *generator) incDec(e *expr, discard bool) {
	of, d := e.args[0], int32(1)
	if of.typ.Kind == Pointer {
		d = int32(min(of.typ.Elems[0].sizeInC(), math.MaxInt32))
	}
	if e.name == "--" {
		d = -d
	}
	if of.kind == exVar {
		v := g.vars[of.decl]
		g.load(asm.R0, v)
		if e.post && !discard {
			g.Emit(asm.Mov.Reg(asm.R3, asm.R0))
		}
		g.Emit(asm.Add.Imm(asm.R0, d))
		g.convert(typeInt, of.decl.typ)
		g.store(v, asm.R0)
		if e.post && !discard {
			g.Emit(asm.Mov.Reg(asm.R0, asm.R3))
		}
		return
	}
	fail := g.NewLabel()
	g.runInScope(func() {
		g.pointer(of, fail)
		g.Emit(asm.Mov.Imm(asm.R1, d))
		if discard {
			g.Emit(asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, 0))
			return
		}
		g.Emit(asm.FetchAdd.Mem(rValue, asm.R1, asm.DWord, 0), asm.Mov.Reg(asm.R0, asm.R1))
		if !e.post {
			g.Emit(asm.Add.Imm(asm.R0, d))
		}
	})
	g.Place(fail)
}

// call leaves the number returned by a function in R0.
func (g *generator) call(e *expr) {
	if g.function(e) {
		return
	}
	switch e.name {
	case "sizeof", "offsetof", "kaddr", "uaddr":
		if e.inFile {
			g.fileVariable(e.num)
			return
		}
		g.Emit(bpfgen.Const(asm.R0, e.num))
	case "reg":
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, int(e.num)))
	case "kstack", "ustack", "dw_ustack":
		g.stack(e)
	case "strerror", "signal_name", "syscall_name", "ksym", "usym":
		g.number64(e.args[0])
		if e.name == "usym" && g.c.files {
			g.Emit(asm.Mov.Reg(asm.R1, asm.R0), bpfgen.Call(bpf.HelperFileCode))
		}
	case "delete":
		g.deleteKey(e.args[0])
	case "has_key":
		g.truthOfKey(e.args[0])
	case "find":
		g.findElement(e)
	case "len":
		if e.args[0].typ.is(KStack, UStack) {
			g.stackLength(e.args[0])
			return
		}
		g.elems.length64(g.c.byName[e.args[0].name])
	case "strlen":
		g.strlen(e.args[0])
	default:
		panic("BUG: " + e.name + " has no number")
	}
}
