package bpf

import "fmt"

// Unproven returns the accesses to memory, of instructions and of helpers for their
// arguments, that the verifier cannot prove to be in bounds, in the order of the
// instructions. Each is checked whenever it is made; one that is out of bounds ends the
// run with a fault. Linux's verifier rejects a program with such an access, unless it
// can prove more.
func (p *Program) Unproven() (out []Warning) {
	a := verify(p, false)
	add := func(pc int, what string, acc *access) {
		how := "its address is not known before"
		switch {
		case acc.base.kind == aMap:
			how = "its address is that of a map"
		case acc.base.kind != noBase && acc.base.null:
			how = fmt.Sprintf("the %s may be 0", a.name(acc.base))
		case acc.base.kind != noBase:
			how = fmt.Sprintf("it may be outside the %s", a.name(acc.base))
		}
		out = append(out, Warning{Index: pc, Text: textOf(p.slots[pc]), What: what + ": " + how + ", which is checked when it is made", Source: p.sourceOf(pc)})
	}
	for pc := range a.facts {
		f := &a.facts[pc]
		if !f.reached || p.slots[pc] == nil {
			continue
		}
		o := &p.ops[pc]
		switch {
		case o.code == opCall && f.call != nil:
			h := helperByID[Helper(o.imm)]
			for i := range h.args {
				if acc := &f.call.args[int(R1)+i]; acc.ptr != 0 && acc.class != direct {
					add(pc, fmt.Sprintf("argument %d of %s", i+1, h.Name), acc)
				}
			}
		case f.mem.size > 0 && f.mem.class != direct:
			add(pc, "an access", &f.mem)
		}
	}
	return out
}
