package debuginfo

import (
	"debug/dwarf"
	"errors"
	"sort"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// errNotYet says why a parameter is not to be had in the first instructions of its function.
var errNotYet = errors.New("not yet in its place in the function's frame here")

// argumentRegs are the numbers of the registers of integer arguments (System V ABI for AMD64,
// 3.2.3 and figure 3.36): RDI, RSI, RDX, RCX, R8, R9.
var argumentRegs = [...]int{5, 4, 1, 2, 8, 9}

// entryBytes is how far from a function's first instruction nothing can have changed an argument's
// register: compilers begin with endbr64, or push %rbp and mov %rsp,%rbp.
const entryBytes = 4

// passed returns where a parameter of the function d.of is at addr, which debug information has
// at one place in the function's frame, l, for all of its code. Compilers that do not optimize
// write so of parameters which the function's first instructions only put there. Until these
// have been executed they are where the prototype says.
func (i *Info) passed(n int, d declared, addr uint64, l Location) (Location, error) {
	c, err := i.contents(n)
	if err != nil || l.Base != BaseCFA && l.Base != BaseRegister || addr < d.of.entry || addr >= c.prologueEnd(d.of) {
		return l, err
	}
	fromCFA := l.Offsets[0]
	if l.Base == BaseRegister {
		fromCFA -= 16 // it is the frame pointer, which is not set yet either
	}
	if fromCFA >= 0 { // the caller has put it on the stack
		return Location{Base: BaseCFA, Offsets: append([]int64{fromCFA}, l.Offsets[1:]...), Memory: true}, nil
	}
	if len(l.Offsets) > 1 {
		return l, errNotYet
	}
	e := i.at(d.of.at)
	if e == nil || e.AttrField(dwarf.AttrAbstractOrigin) != nil {
		return l, errNotYet // a copy need not have all parameters
	}
	p := i.parametersOf(d.of.at)
	for k, at := range p.at {
		if at == d.Offset {
			return p.location(k, addr-d.of.entry <= entryBytes)
		}
	}
	return l, errNotYet
}

// prologueEnd returns where the first instructions of a function end, as debuggers see it: at the
// instruction that the lines say so of, or at the second one that a line begins at.
func (c *contents) prologueEnd(of *instance) uint64 {
	second := uint64(0)
	from := sort.Search(len(c.rows), func(n int) bool { return c.rows[n].addr > of.entry })
	for _, r := range c.rows[from:] {
		if r.end || !within(of.ranges, r.addr) {
			break
		}
		if r.prologue {
			return r.addr
		}
		if second == 0 && r.stmt {
			second = r.addr
		}
	}
	if second == 0 {
		return of.entry + entryBytes + 1 // nothing is known but that
	}
	return second
}

// parameters are those of a function that debug information describes.
type parameters struct {
	proto *btf.FuncProto
	at    []dwarf.Offset // of each parameter of proto
	lists bool           // some have several places: the code is optimized
}

// parametersOf reads them. The members of structures count only where one is passed in registers.
func (i *Info) parametersOf(at dwarf.Offset) (p parameters) {
	t := typeReader{Info: i, left: maxTypes}
	p.proto, p.at = t.prototype(at)
	wholly := small(p.proto.Return)
	for _, x := range p.proto.Params {
		wholly = wholly || small(x.Type)
	}
	if wholly {
		t = typeReader{Info: i, left: maxTypes, whole: map[dwarf.Offset]btf.Type{}}
		p.proto, p.at = t.prototype(at)
		t.finish()
	}
	for _, at := range p.at {
		if e := i.at(at); e != nil {
			f := i.attribute(e, dwarf.AttrLocation)
			p.lists = p.lists || f == nil || !everywhere(f)
		}
	}
	return p
}

// everywhere reports whether a location is the same in all code.
func everywhere(f *dwarf.Field) bool {
	_, one := f.Val.([]byte)
	return one
}

// small reports whether t is a structure that may be passed in registers.
func small(t btf.Type) bool {
	size, ok := types.Size(t)
	_, structure := types.Members(t)
	return structure && ok && size <= 16
}

// location returns where the prototype has parameter k. Behind the entry a register may have been
// used again, where optimization or a copy of a narrow or wide parameter may have come first.
func (p *parameters) location(k int, entry bool) (Location, error) {
	for _, x := range p.proto.Params {
		if !entry && (p.lists || !plain(x.Type)) {
			return Location{}, errNotYet
		}
	}
	word := types.Arguments(p.proto)[k]
	size, ok := types.Size(p.proto.Params[k].Type)
	switch types.Strip(p.proto.Params[k].Type).(type) {
	case *btf.Int, *btf.Enum, *btf.Pointer:
		if ok && size <= 8 && word > 0 && word <= len(argumentRegs) {
			return Location{Base: BaseRegister, Reg: argumentRegs[word-1], Offsets: []int64{0}}, nil
		}
	}
	return Location{}, errNotYet
}

// plain reports whether code that is not optimized stores a parameter from the very register that
// it is passed in.
func plain(t btf.Type) bool {
	size, ok := types.Size(t)
	switch types.Strip(t).(type) {
	case *btf.Int, *btf.Enum, *btf.Pointer, *btf.Float:
		return ok && (size == 4 || size == 8)
	case *btf.Void: // what follows in a list of any length
		return true
	}
	return false
}
