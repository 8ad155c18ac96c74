package script

import (
	"strings"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// siteOverride is what is said where a function could not be made to return.
const siteOverride = "The function could not be made to return"

// override checks what makes the probed function return e without running: override(e),
// and return(e), which ends the probe, too.
func (c *checker) override(sp Span, name string, e *expr) error {
	if !c.unsafe {
		return c.at(sp, "%s() is an unsafe function being used in safe mode", name).hint("run the script with --unsafe")
	}
	for _, p := range c.points {
		if !p.atFunction() || p.atReturn() || strings.Contains(p.place, "+") {
			return c.at(sp, "%s() can not be used with '%s' probes", name, p.probe).hint("a function returns early at its entry: kprobe:FUNCTION")
		}
	}
	t, err := c.value(e)
	if err == nil && t.Kind != None && !t.isInt() {
		err = c.at(e.Span, "%s() takes a number", name)
	}
	c.addSite(sp, siteOverride)
	return err
}

// override has the probed function return e when the program has ended.
func (g *generator) override(sp Span, e *expr) {
	g.scoped(func() {
		g.number64(e)
		g.Emit(asm.Mov.Reg(asm.R2, asm.R0), asm.Mov.Reg(asm.R1, rCtx), bpfgen.Call(bpf.HelperOverrideReturn))
		g.failedIfNegative(g.c.addSite(sp, siteOverride))
	})
}
