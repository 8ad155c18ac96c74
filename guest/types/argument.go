package types

import (
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Registers of the first integer and floating point arguments (System V ABI, AMD64
// supplement, 3.2.3).
const (
	integerRegs = 6
	vectorRegs  = 8
)

// class is how a value is passed (3.2.3, "Classification"): the classes of up to two
// words or, if nil, memory.
type class []word

type word uint8

const (
	vector  word = iota // only floating point numbers
	integer             // anything else
)

// passedAs is the place of a parameter: registers or memory.
type passedAs struct {
	class class // nil: in memory
	first int   // the number of the first register of integer arguments, from 1, that is available to it
	slot  uint64
}

// Words returns, for each parameter of p that is passed in registers, the number of the register of integer arguments of each of its words,
// 0 for one in a vector register; nil for a parameter in memory or without a value.
func Words(p *btf.FuncProto) [][]int {
	out := make([][]int, len(p.Params))
	for i, x := range placeParams(p) {
		n := x.first
		for _, w := range x.class {
			if w == integer {
				out[i] = append(out[i], n)
				n++
			} else {
				out[i] = append(out[i], 0)
			}
		}
	}
	return out
}

// Arguments returns, for each parameter of p, the number of the word in which it is
// passed, or begins, by the System V ABI: 1 to 6 for the registers of integer
// arguments, from 7 on for the words of the stack above the return address. It is 0
// for a parameter that is in a vector register or has no size.
func Arguments(p *btf.FuncProto) []int {
	numbers := make([]int, len(p.Params))
	for i, x := range placeParams(p) {
		switch {
		case x.class != nil && x.class[0] == integer:
			numbers[i] = x.first
		case x.class == nil && x.first > 0:
			numbers[i] = integerRegs + 1 + int(x.slot)
		}
	}
	return numbers
}

// placeParams returns the place of each parameter; first is 0 for one without size.
func placeParams(p *btf.FuncProto) []passedAs {
	out := make([]passedAs, len(p.Params))
	regs, vectors, slot := 0, 0, uint64(0)
	if size, ok := Size(p.Return); ok && size > 0 && returnedInMemory(p.Return, size) {
		regs++ // the caller passes the address for the result
	}
	for i := range p.Params {
		t := p.Params[i].Type
		size, ok := Size(t)
		if !ok || size == 0 {
			continue
		}
		c := classify(t, size)
		if hasTag(t, indirectTag) {
			c, size = class{integer}, 8
		}
		ints := 0
		for _, w := range c {
			ints += int(w)
		}
		if c != nil && regs+ints <= integerRegs && vectors+len(c)-ints <= vectorRegs {
			out[i] = passedAs{class: c, first: regs + 1}
			regs, vectors = regs+ints, vectors+len(c)-ints
			continue
		}
		if budget := maxMembers; aligned(t, size, &budget) {
			slot = (slot + 1) &^ 1
		}
		out[i] = passedAs{first: integerRegs + 1, slot: slot}
		slot += (size + 7) / 8
	}
	return out
}

// returnedInMemory reports whether a function with a result of type t, of size bytes,
// gets a pointer to the memory for it.
func returnedInMemory(t btf.Type, size uint64) bool {
	switch {
	case hasTag(t, indirectTag):
		return true
	case onlyX87(t, size):
		return false // in ST(0), and the imaginary part in ST(1)
	}
	return classify(t, size) == nil
}

// isX87 reports whether a floating point number is an x87 number, as opposed to one
// of 16 bytes in a vector register: only the name distinguishes them.
func isX87(t *btf.Float) bool {
	switch t.Name {
	case "long double", "_Float64x", "real(kind=10)":
		return true
	}
	return t.Size > 8 && t.Size < 16
}

// onlyX87 reports whether a value is one x87 number, possibly alone in a structure,
// or the two of a complex number, which is a typedef here.
func onlyX87(t btf.Type, size uint64) bool {
	for range maxDepth {
		switch x := Strip(t).(type) {
		case *btf.Float:
			return isX87(x)
		case *btf.Array:
			_, structure := Members(t)
			part, ok := Strip(x.Type).(*btf.Float)
			return ok && !structure && x.Nelems == 2 && isX87(part) && isComplex(t)
		case *btf.Struct:
			if len(x.Members) != 1 || size > 16 {
				return false
			}
			t = x.Members[0].Type
		default:
			return false
		}
	}
	return false
}

// isComplex reports whether t is a complex number, which is a typedef of an array of its parts.
func isComplex(t btf.Type) bool {
	for range maxDepth {
		switch x := t.(type) {
		case *btf.Typedef:
			if a, ok := x.Type.(*btf.Array); ok {
				return a.Nelems == 2 && strings.HasPrefix(x.Name, "complex ")
			}
			t = x.Type
		case *btf.Const:
			t = x.Type
		case *btf.Volatile:
			t = x.Type
		default:
			return false
		}
	}
	return false
}

// aligned reports whether a value that is passed on the stack begins at a multiple of 16 bytes.
func aligned(t btf.Type, size uint64, budget *int) bool {
	if *budget--; *budget < 0 || size <= 8 || hasTag(t, indirectTag) {
		return false
	}
	if hasTag(t, vectorTag) {
		return true
	}
	switch x := Strip(t).(type) {
	case *btf.Int, *btf.Float:
		return true
	case *btf.Array:
		return aligned(x.Type, size/uint64(max(x.Nelems, 1)), budget)
	case *btf.Struct, *btf.Union:
		members, _ := Members(t)
		for _, m := range members {
			if n, ok := Size(m.Type); ok && aligned(m.Type, n, budget) {
				return true
			}
			if *budget < 0 {
				break
			}
		}
	}
	return false
}

// maxMembers bounds the types within one that are examined for its alignment.
const maxMembers = 256

// classify returns how a value of t, of size bytes, is passed.
func classify(t btf.Type, size uint64) class {
	if hasTag(t, vectorTag) && size >= 8 {
		return class{vector} // one register holds all of it
	}
	if size > 16 {
		return nil
	}
	if f, ok := Strip(t).(*btf.Float); ok && size == 16 && !isX87(f) {
		return class{vector}
	}
	c := make(class, (size+7)/8)
	budget := 256
	if !c.add(t, 0, &budget) {
		return nil
	}
	return c
}

// add records that a value of type t is at bit offset at; false: it is passed in
// memory.
func (c class) add(t btf.Type, at uint64, budget *int) bool {
	if *budget--; *budget < 0 {
		return false
	}
	if n, ok := Size(t); ok && hasTag(t, vectorTag) && n >= 8 {
		return at%min(8*n, 128) == 0
	}
	switch t := Strip(t).(type) {
	case *btf.Float:
		return t.Size > 0 && !isX87(t) && at%(8*uint64(t.Size)) == 0 // an unaligned x87 number is in memory
	case *btf.Array:
		n, ok := Size(t.Type)
		if !ok {
			return false
		}
		for i := range uint64(t.Nelems) {
			if !c.add(t.Type, at+8*n*i, budget) {
				return false
			}
		}
		return true
	case *btf.Struct, *btf.Union:
		members, _ := Members(t)
		for _, m := range members {
			if m.BitfieldSize > 0 {
				if !c.mark(at+uint64(m.Offset), uint64(m.BitfieldSize)) {
					return false
				}
			} else if !c.add(m.Type, at+uint64(m.Offset), budget) {
				return false
			}
		}
		return true
	}
	n, ok := Size(t)
	return ok && n > 0 && at%(8*min(n, 8)) == 0 && c.mark(at, 8*n)
}

// mark makes the words with bits [at, at+n) integer words.
func (c class) mark(at, n uint64) bool {
	if at+n > 64*uint64(len(c)) {
		return false
	}
	for w := at / 64; w*64 < at+n; w++ {
		c[w] = integer
	}
	return true
}
