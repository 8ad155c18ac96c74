package debuginfo

import (
	"debug/dwarf"
	"errors"
	"slices"
	"sort"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// errNotYet says why a parameter is not available in the first instructions of its
// function.
var errNotYet = errors.New("not yet in its place in the function's frame here")

// argumentRegs are the numbers of the registers of integer arguments (System V ABI for AMD64,
// 3.2.3 and figure 3.36): RDI, RSI, RDX, RCX, R8, R9.
var argumentRegs = [...]int{5, 4, 1, 2, 8, 9}

// The numbers of RBP and RSP.
const framePointer, stackPointer = 6, 7

// entryBytes is the distance from a function's first instruction up to which no
// argument's register can have changed: compilers begin with endbr64, or push %rbp
// and mov %rsp,%rbp.
const entryBytes = 4

// passedLocation returns the location at addr of a parameter of the function d.of,
// for which debug information has one place in the function's frame, l, for all of
// its code. Compilers that do not optimize describe parameters in this way that the
// function's first instructions only store there. Until these have been executed the
// parameters are where the prototype puts them.
func (i *Info) passedLocation(n int, d declared, addr uint64, l Location) (Location, []Piece, error) {
	c, err := i.contents(n)
	inFrame := l.Base == BaseCFA || l.Base == BaseRegister && (l.Reg == framePointer || l.Reg == stackPointer)
	if err != nil || !inFrame || addr < d.of.entry || addr >= c.prologueEnd(d.of) {
		return l, nil, err
	}
	bySP := l.Base == BaseRegister && l.Reg == stackPointer // the frame does not exist yet below it
	fromCFA := l.Offsets[0]
	if l.Base == BaseRegister && !bySP {
		fromCFA -= 16 // the base is the frame pointer, which is not set yet either
	}
	if fromCFA >= 0 && !bySP { // the caller has put it on the stack
		return Location{Base: BaseCFA, Offsets: append([]int64{fromCFA}, l.Offsets[1:]...), Memory: true}, nil, nil
	}
	pointed := len(l.Offsets) == 2 && l.Offsets[1] == 0 // a word of the frame points to it
	if len(l.Offsets) > 1 && !pointed {
		return l, nil, errNotYet
	}
	e := i.entryAt(d.of.at)
	if e == nil || e.AttrField(dwarf.AttrAbstractOrigin) != nil {
		return l, nil, errNotYet // a copy need not have all parameters
	}
	p := i.parametersOf(d.of.at)
	if of := i.ownConvention(d.of.at); of != "" && !passedLikeC(of, p.proto) {
		return l, nil, errNotYet
	}
	for k, at := range p.at {
		if at == d.Offset {
			if word := types.Arguments(p.proto)[k]; bySP && word > len(argumentRegs) { // the caller has put it on the stack
				return Location{Base: BaseCFA, Offsets: append([]int64{8 * int64(word-len(argumentRegs)-1)}, l.Offsets[1:]...), Memory: true}, nil, nil
			}
			l, pieces, err := p.location(k, addr-d.of.entry <= entryBytes)
			if pointed && err == nil {
				l.Memory = true
			}
			return l, pieces, err
		}
	}
	return l, nil, errNotYet
}

// prologueEnd returns the end of the first instructions of a function, as in
// debuggers: the instruction marked in the line table, or the second one that begins
// a line.
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
		return of.entry + entryBytes + 1 // the end is not known
	}
	return second
}

// parameters are the parameters of a function, from debug information.
type parameters struct {
	proto *btf.FuncProto
	at    []dwarf.Offset // the entry of each parameter of proto
	lists bool           // some have location lists: the code is optimized
}

// parametersOf reads them. The members of structures determine how they are passed.
func (i *Info) parametersOf(at dwarf.Offset) (p parameters) {
	t := typeReader{Info: i, left: maxTypes}
	p.proto, p.at = t.prototype(at)
	wholly := isStructure(p.proto.Return)
	for _, x := range p.proto.Params {
		wholly = wholly || isStructure(x.Type)
	}
	if wholly {
		t = typeReader{Info: i, left: maxTypes, whole: map[dwarf.Offset]btf.Type{}, values: true}
		p.proto, p.at = t.prototype(at)
		t.finish()
	}
	for k, at := range p.at {
		if e := i.entryAt(at); e != nil && (i.isByReference(e, &t.left) || i.referredTo(e)) {
			p.proto.Params[k].Type = &btf.Pointer{Target: p.proto.Params[k].Type}
		}
	}
	if e := i.entryAt(at); e != nil && i.isByReference(e, &t.left) {
		p.proto.Return = &btf.Struct{Size: 32} // as for all results in memory, the caller passes its address
	}
	for _, at := range p.at {
		if e := i.entryAt(at); e != nil {
			f := i.attribute(e, dwarf.AttrLocation)
			p.lists = p.lists || f == nil || !isConstant(f)
		}
	}
	return p
}

// For DW_AT_calling_convention of a class (DWARF 5, 7.16): C++ passes and returns it
// by a pointer, whatever its size.
const passByReference = 4

// isByReference reports whether the type of e is a class that is passed so. left is
// the number of entries it may examine.
func (i *Info) isByReference(e *dwarf.Entry, left *int) bool {
	for range maxLinks {
		f := i.attribute(e, dwarf.AttrType)
		if f == nil {
			return false
		}
		at, _ := f.Val.(dwarf.Offset)
		if e = i.entryAt(at); e == nil {
			return false
		}
		switch e.Tag {
		case dwarf.TagTypedef, dwarf.TagConstType, dwarf.TagVolatileType:
			continue
		case dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType:
			how, _ := e.Val(dwarf.AttrCalling).(int64)
			return how == passByReference || i.hasDestructor(e, left)
		}
		return false
	}
	return false
}

// referredTo reports whether a parameter's place is the target of a word of the
// frame, or of the register of an argument.
func (i *Info) referredTo(e *dwarf.Entry) bool {
	f := i.attribute(e, dwarf.AttrLocation)
	if f == nil {
		return false
	}
	code, _ := f.Val.([]byte)
	if len(code) == 0 {
		return false
	}
	if code[0] == opFbreg {
		return code[len(code)-1] == opDeref
	}
	return slices.ContainsFunc(argumentRegs[:], func(r int) bool { return int(code[0]) == opBreg0+r })
}

// hasDestructor reports whether a class has a destructor of its own: compilers
// without DW_AT_calling_convention leave no other sign of how they pass it.
func (i *Info) hasDestructor(of *dwarf.Entry, left *int) bool {
	r := i.data.Reader()
	r.Seek(of.Offset)
	if e, err := r.Next(); err != nil || e == nil || !e.Children {
		return false
	}
	t := typeReader{Info: i, left: min(*left, maxTypes)}
	defer func(before int) { *left -= before - t.left }(t.left)
	for e := t.next(r); e != nil; e = t.next(r) {
		if name, _ := e.Val(dwarf.AttrName).(string); e.Tag == dwarf.TagSubprogram && strings.HasPrefix(name, "~") && e.AttrField(dwarf.AttrDefaulted) == nil {
			return true
		}
		if t.skip(r, e) != nil {
			return false
		}
	}
	return false
}

// isConstant reports whether a location is the same in all code.
func isConstant(f *dwarf.Field) bool {
	_, one := f.Val.([]byte)
	return one
}

// isStructure reports whether t is a structure: how it is passed, and what follows it
// on the stack, depends on its members.
func isStructure(t btf.Type) bool {
	_, structure := types.Members(t)
	return structure
}

// location returns the place of parameter k according to the prototype. After the
// entry a register may have been reused, and optimized code, or code that copies a
// narrow or wide parameter, may have done so early.
func (p *parameters) location(k int, entry bool) (Location, []Piece, error) {
	for _, x := range p.proto.Params {
		if !entry && (p.lists || !plain(x.Type)) {
			return Location{}, nil, errNotYet
		}
	}
	word := types.Arguments(p.proto)[k]
	size, ok := types.Size(p.proto.Params[k].Type)
	switch types.Strip(p.proto.Params[k].Type).(type) {
	case *btf.Int, *btf.Enum, *btf.Pointer:
		if ok && size <= 8 && word > 0 && word <= len(argumentRegs) {
			return argumentLocation(word), nil, nil
		}
	case *btf.Struct, *btf.Union:
		return p.structure(k, size)
	}
	return Location{}, nil, errNotYet
}

// structure returns the place of a structure that is passed in registers.
func (p *parameters) structure(k int, size uint64) (Location, []Piece, error) {
	words := types.Words(p.proto)[k]
	var pieces []Piece
	for n, w := range words {
		if w == 0 || w > len(argumentRegs) {
			return Location{}, nil, errVector
		}
		pieces = append(pieces, Piece{Size: min(8, size-8*uint64(n)), Where: argumentLocation(w)})
	}
	switch len(pieces) {
	case 0:
		return Location{}, nil, errNotYet
	case 1:
		return pieces[0].Where, nil, nil
	}
	return Location{}, pieces, errPieces
}

// errVector says why a parameter's value is not known.
var errVector = errors.New("in a vector register, which is not read")

// argumentLocation is the contents of an argument's register, by its number from 1.
func argumentLocation(n int) Location {
	return Location{Base: BaseRegister, Reg: argumentRegs[n-1], Offsets: []int64{0}}
}

// plain reports whether unoptimized code stores a parameter directly from the
// register that it is passed in.
func plain(t btf.Type) bool {
	size, ok := types.Size(t)
	switch types.Strip(t).(type) {
	case *btf.Int, *btf.Enum, *btf.Pointer, *btf.Float:
		return ok && (size == 4 || size == 8)
	case *btf.Void: // the rest of a variable argument list
		return true
	}
	return false
}
