package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// stop checks stop() and stop("all"): stop the vCPU at the hit, or all vCPUs.
func (c callChecker) stop(e *expr) error {
	for _, p := range c.points {
		if p.class() != atPlace {
			return c.errorAt(e.Span, "stop() can not be used with '%s' probes", p.provider).hint("a vCPU stops at a hit: kprobe, kretprobe, uprobe, uretprobe, watchpoint")
		}
	}
	if len(e.args) == 0 {
		return nil
	}
	if a := e.args[0]; a.kind != exString || a.text != "all" {
		return c.errorAt(a.Span, `stop() expects nothing, or "all"`).hint(`stop() stops the vCPU of the hit, stop("all") all of them`)
	}
	e.num = 1
	return nil
}

// stop stops the vCPU when the program has ended.
func (g *emitter) stop(e *expr) {
	g.Emit(asm.Mov.Imm(asm.R2, int32(e.num)), asm.Mov.Reg(asm.R1, rCtx), bpfgen.Call(bpf.HelperStop))
}
