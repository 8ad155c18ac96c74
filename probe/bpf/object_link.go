package bpf

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// link resolves the references of a program's instructions to types, externs and maps;
// those to functions are labels.
func (p *ObjectProgram) link(in asm.Instructions, x *externs) (err error) {
	in = slices.Clone(in)
	if in, err = p.relocateTypes(in, x); err != nil {
		return err
	}
	bodies := map[int]asm.Instructions{} // in place of single instructions
	for it := in.Iterate(); it.Next(); {
		ins, at := it.Ins, it.Offset
		name := ins.Reference()
		_, extern := x.refs[name]
		switch {
		case at >= MaxSlots:
			return ErrTooLong
		case extern && x.isKfunc(name):
			body, err := p.linkKfunc(ins, name)
			if err != nil {
				body = missingInstead(ins, err.Error())
			}
			if body != nil {
				bodies[it.Index] = body
			}
		case extern && name != "":
			address, err := x.resolve(ins, name, p.mapNumber)
			if err != nil {
				bodies[it.Index] = missingInstead(ins, err.Error())
			}
			p.follows = p.follows || address
		case ins.IsKfuncCall():
			return fmt.Errorf("instruction %d calls a kernel function, which is not supported", at)
		case ins.IsLoadFromMap() && name != "":
			// The lower half names the map; the upper one is the offset in the value.
			ins.Constant = int64(uint64(ins.Constant)&^0xffffffff | uint64(p.mapNumber(name)))
			*ins = ins.WithReference("")
		case ins.IsBuiltinCall() && linkedHelpers[Helper(ins.Constant)] != nil:
			body, err := p.linkHelper(ins, x.kernel)
			if err != nil {
				body = missingInstead(ins, fmt.Sprintf("it calls %v: %v", Helper(ins.Constant), err))
			}
			bodies[it.Index] = body
		case ins.IsBuiltinCall() && ins.Constant == missingCall && missingReason(ins) == "":
			replaceMissing(ins, "it is a mark of the object's for code that no path may reach (call 0xbad2310)")
		case ins.IsBuiltinCall() && Helper(ins.Constant) == HelperGetTaskBTF:
			p.follows = true
		case name != "" && !ins.IsFunctionCall() && !ins.IsLoadOfFunctionPointer():
			return fmt.Errorf("instruction %d refers to %q in a way that is not supported", at, name)
		}
	}
	p.insns, err = expand(in, bodies)
	return err
}

// mapNumber returns the number of a map in the program.
func (p *ObjectProgram) mapNumber(name string) int {
	n := slices.Index(p.maps, name)
	if n < 0 {
		n = len(p.maps)
		p.maps = append(p.maps, name)
	}
	return n
}
