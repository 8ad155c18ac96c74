package script

import (
	"strings"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// siteOverride is the warning if a function could not be made to return.
const siteOverride = "The function could not be made to return"

// sitePoke is a write to the guest's memory, with the reason as its warning.
const sitePoke = "poke"

// checkAllowed rejects a call that changes the guest, unless the script may do that.
func (c callChecker) checkAllowed(sp Span, name string) error {
	if c.unsafe {
		return nil
	}
	return c.errorAt(sp, "%s() is an unsafe function being used in safe mode", name).hint("run the script with --unsafe")
}

// override checks calls that make the probed function return e without running:
// override(e), and return(e), which also ends the probe.
func (c callChecker) override(sp Span, name string, e *expr) error {
	if err := c.checkAllowed(sp, name); err != nil {
		return err
	}
	for _, p := range c.points {
		if !p.atFunction() || p.atReturn() || p.atTracepoint() || p.atEvent() || p.atStatic() || strings.Contains(p.place, "+") {
			return c.errorAt(sp, "%s() can not be used with '%s' probes", name, p.probe).hint("a function returns early at its entry: kprobe:FUNCTION")
		}
	}
	c.addSite(failureAt(sp, siteOverride))
	_, err := c.number(&expr{name: name}, e)
	return err
}

// override makes the probed function return e when the program has ended.
func (g *generator) override(sp Span, e *expr) {
	g.runInScope(func() {
		g.number64(e)
		g.Emit(asm.Mov.Reg(asm.R2, asm.R0), asm.Mov.Reg(asm.R1, rCtx), bpfgen.Call(bpf.HelperOverrideReturn))
		g.countFailureIfNegative(g.c.addSite(failureAt(sp, siteOverride)))
	})
}

// setReg checks setreg("ax", n): it sets a register of the guest.
func (c callChecker) setReg(e *expr) error {
	if err := c.checkAllowed(e.Span, e.name); err != nil {
		return err
	}
	for _, p := range c.points {
		if !p.atFunction() {
			return c.errorAt(e.Span, "setreg() can not be used with '%s' probes", p.provider).hint("registers are those that an instruction finds, or a caller: kprobe, kretprobe, uprobe, uretprobe")
		}
	}
	a := e.args[0]
	if a.kind != exString {
		return c.errorAt(a.Span, "setreg() expects a string literal")
	}
	i, ok := x86.FindPtReg(a.text)
	switch {
	case !ok:
		err := c.errorAt(a.Span, "'%s' is not a valid register on this architecture (x86_64)", a.text)
		if m := nearestName(a.text, registers); m != "" {
			return err.hint("did you mean %s?", m)
		}
		return err
	case !bpf.SettableReg(uint64(i)):
		return c.errorAt(a.Span, "setreg() cannot set '%s'", a.text).hint("the general registers except sp, and flags; override(N) leaves a function")
	}
	e.num = uint64(i)
	_, err := c.number(e, e.args[1])
	return err
}

// poke checks poke(addr, e): it writes the bytes of e to the guest's memory.
func (c callChecker) poke(e *expr) error {
	if err := c.checkAllowed(e.Span, e.name); err != nil {
		return err
	}
	for _, p := range c.points {
		if !p.hasGuest() {
			return c.errorAt(e.Span, "poke() can not be used with '%s' probes", p.provider).hint("memory is written as the code that was hit could, so there has to be a hit")
		}
	}
	if _, err := c.number(e, e.args[0]); err != nil {
		return err
	}
	v := e.args[1]
	t, err := c.value(v)
	if err != nil {
		return err
	}
	if _, plain := c.constant(v); plain && v.kind != exCast {
		return c.errorAt(v.Span, "poke() of a number of no certain size").hint("write (uint32), or how wide it is, before it")
	}
	if t.Kind != None && !t.isInt() && !t.is(String, Buffer, Array, Struct) {
		return c.errorAt(v.Span, "poke() takes a number, a string, a buffer, an array or a structure (%s provided)", t)
	}
	e.site = c.addSite(failureAt(e.Span, sitePoke))
	return nil
}

// setReg sets a register of the guest.
func (g *generator) setReg(e *expr) {
	g.runInScope(func() {
		g.number64(e.args[1])
		g.Emit(asm.Mov.Reg(asm.R3, asm.R0), asm.Mov.Imm(asm.R2, int32(e.num)), asm.Mov.Reg(asm.R1, rCtx), bpfgen.Call(bpf.HelperSetReg))
	})
}

// poke writes the guest's memory: of a string up to and including its final zero.
func (g *generator) poke(e *expr) {
	g.runInScope(func() {
		addr := g.alloc(8)
		g.number64(e.args[0])
		g.store(addr, asm.R0)
		t := e.args[1].typ
		from := g.view(e.args[1])
		switch t.Kind {
		case String:
			g.textLength(from, t.Size)
			whole := g.NewLabel()
			g.If(asm.JGE, asm.R0, uint64(t.Size), whole)
			g.Emit(asm.Add.Imm(asm.R0, 1))
			g.Place(whole)
			g.Emit(asm.Mov.Reg(asm.R3, asm.R0))
		case Buffer:
			g.load(asm.R3, from)
			from = from.offset(8)
		case Bool:
			g.Emit(asm.Mov.Imm(asm.R3, 1))
		default:
			g.Emit(asm.Mov.Imm(asm.R3, int32(t.Size)))
		}
		g.load(asm.R1, addr)
		g.address(asm.R2, from)
		g.Emit(bpfgen.Call(bpf.HelperPoke))
		g.countFailureIfNegative(e.site)
	})
}
