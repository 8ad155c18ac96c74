package bpf

import "github.com/cilium/ebpf/asm"

// valueKind is what the compiler knows of a register.
type valueKind uint8

const (
	unvisited valueKind = iota // no path comes here
	unknown
	inContext // address in the context
	inFrame   // address relative to the function's frame pointer
	aMap      // handle of a map
)

// value is a kind and the exact offset, or the map's number.
type value struct {
	kind valueKind
	off  int32
}

type values [numRegs]value

// join returns what is known where two paths meet, and whether the context's
// address gets out of sight.
func (v *values) join(o *values) (changed, escapes bool) {
	for i := range v {
		switch {
		case v[i].kind == unvisited:
			changed = changed || o[i].kind != unvisited
			v[i] = o[i]
		case v[i] != o[i]:
			escapes = escapes || v[i].kind == inContext || o[i].kind == inContext
			changed = changed || v[i].kind != unknown
			v[i] = value{kind: unknown}
		}
	}
	return changed, escapes
}

// infer finds out, for every slot, what its registers certainly hold there. The
// compiler leaves out a bounds check only where base and exact offset are known
// that way; everything else is checked as the program runs. escapes is false
// when no other register or memory than those known to can hold the context's
// address.
func infer(p *Program) (known []values, escapes bool) {
	known = make([]values, len(p.ops))
	var todo []int
	reach := func(pc int, v *values) {
		changed, esc := known[pc].join(v)
		escapes = escapes || esc
		if changed {
			todo = append(todo, pc)
		}
	}
	for _, start := range p.fns.starts {
		var v values
		for i := range v {
			v[i].kind = unknown
		}
		if start == 0 {
			v[R1] = value{kind: inContext}
		}
		v[R10] = value{kind: inFrame}
		reach(start, &v)
	}
	for len(todo) > 0 {
		pc := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		o := &p.ops[pc]
		v := known[pc]
		escapes = escapes || v.escapes(o, p.slots[pc])
		v.step(o, p.slots[pc])
		if o.code == opExit {
			continue
		}
		if o.code == opJa {
			reach(int(o.off), &v)
			continue
		}
		if isJump(p.slots[pc]) {
			reach(int(o.off), &v)
		}
		next := pc + 1
		if o.code == opLoadImm {
			next++
		}
		reach(next, &v)
	}
	return known, escapes
}

// escapes reports whether an operation puts the context's address, or what is
// computed from it, where it is not followed. Arguments of helpers do not
// count: what a helper does with them is the compiler's own code.
func (v *values) escapes(o *op, i *asm.Instruction) bool {
	switch o.code {
	case opStoreX, opAtomic:
		return v[o.src].kind == inContext
	case opCallLocal:
		for r := R1; r <= R5; r++ {
			if v[r].kind == inContext {
				return true
			}
		}
		return false
	case opMov + form64X, opMov + form64K, opMov + form32K, opLoadImm, opCall, opExit, opStoreK, opJa, opNop:
		return false
	case opAdd + form64K:
		sum := int64(v[o.dst].off) + o.imm
		return v[o.dst].kind == inContext && sum != int64(int16(sum))
	}
	if isJump(i) || o.code >= opLoad8 && o.code <= opLoads32 {
		return false
	}
	return v[o.dst].kind == inContext || v[o.src].kind == inContext && i.OpCode&asm.OpCode(asm.RegSource) != 0
}

// step is the effect of one operation on what is known.
func (v *values) step(o *op, i *asm.Instruction) {
	switch o.code {
	case opMov + form64X:
		v[o.dst] = v[o.src]
		return
	case opAdd + form64K:
		if d := &v[o.dst]; d.kind == inContext || d.kind == inFrame {
			if sum := int64(d.off) + o.imm; sum == int64(int16(sum)) {
				d.off = int32(sum)
				return
			}
		}
	case opLoadImm:
		v[o.dst] = value{kind: unknown}
		if n, value1, _, ok := mapImm(i); ok && !value1 {
			v[o.dst] = value{kind: aMap, off: int32(n)}
		}
		return
	case opCall, opCallLocal:
		for r := R0; r <= R5; r++ {
			v[r] = value{kind: unknown}
		}
		return
	case opAtomic:
		if o.imm&atomicFetch != 0 {
			v[o.src] = value{kind: unknown}
			if o.imm == atomicCmpXchg {
				v[R0] = value{kind: unknown}
			}
		}
		return
	case opStoreK, opStoreX, opJa, opExit, opNop:
		return
	}
	if !isJump(i) {
		v[o.dst] = value{kind: unknown}
	}
}
