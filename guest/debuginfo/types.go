package debuginfo

import (
	"debug/dwarf"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/types"
)

// Limits of one type.
const (
	maxTypes     = 1 << 14 // entries that are read for it
	maxTypeDepth = 32
)

// Encodings of base types (DWARF 5, 7.8).
const (
	ateBoolean, ateComplex, ateFloat, ateSigned, ateSignedChar, ateDecimal = 2, 3, 4, 5, 6, 15
)

// typeReader converts types to BTF. It reads only the requested members of structures
// or, if it keeps its results, all of them.
type typeReader struct {
	*Info
	left  int // entries that may still be read
	whole map[dwarf.Offset]btf.Type
	later []dwarf.Offset // kept structures whose members were not read yet

	values bool // only the names of pointers' targets are needed
}

// read returns the type at an offset. path has names of members: the first one is for
// the next structure on the way, and so on. A damaged type becomes void.
func (t *typeReader) read(at dwarf.Offset, path []string, depth int) btf.Type {
	void := btf.Type((*btf.Void)(nil))
	if known := t.whole[at]; known != nil {
		return known
	}
	r := t.data.Reader()
	r.Seek(at)
	e, err := r.Next()
	if t.left--; err != nil || e == nil || depth > maxTypeDepth || t.left < 0 {
		return void
	}
	if to, ok := e.Val(dwarf.AttrSignature).(dwarf.Offset); ok && to != at {
		return t.read(to, path, depth+1) // the type is in a unit of its own
	}
	name, _ := e.Val(dwarf.AttrName).(string)
	bytes, _ := e.Val(dwarf.AttrByteSize).(int64)
	size := uint32(min(max(bytes, 0), 1<<31-1))
	of := func(path []string) btf.Type {
		if at, ok := e.Val(dwarf.AttrType).(dwarf.Offset); ok {
			return t.read(at, path, depth+1)
		}
		return void
	}
	switch e.Tag {
	case dwarf.TagBaseType:
		encoding, _ := e.Val(dwarf.AttrEncoding).(int64)
		switch encoding {
		case ateFloat, ateDecimal:
			return &btf.Float{Name: name, Size: size}
		case ateComplex:
			of, named := strings.CutPrefix(name, "complex ")
			if !named { // clang names all of them alike
				of = map[uint32]string{8: "float", 16: "double", 32: "long double"}[size]
			}
			part := &btf.Float{Name: of, Size: size / 2}
			return &btf.Typedef{Name: "complex " + of, Type: &btf.Array{Index: &btf.Int{Name: "int", Size: 4}, Type: part, Nelems: 2}}
		case ateBoolean:
			return &btf.Int{Name: name, Size: size, Encoding: btf.Bool}
		case ateSigned, ateSignedChar:
			return &btf.Int{Name: name, Size: size, Encoding: btf.Signed}
		}
		return &btf.Int{Name: name, Size: size}
	case dwarf.TagTypedef:
		return &btf.Typedef{Name: name, Type: of(path)}
	case dwarf.TagConstType:
		return &btf.Const{Type: of(path)}
	case dwarf.TagVolatileType:
		return &btf.Volatile{Type: of(path)}
	case dwarf.TagRestrictType:
		return &btf.Restrict{Type: of(path)}
	case dwarf.TagPointerType:
		return &btf.Pointer{Target: t.target(of, path)}
	case dwarf.TagReferenceType:
		return types.NewReference(t.target(of, path), false)
	case dwarf.TagRvalueReferenceType:
		return types.NewReference(t.target(of, path), true)
	case dwarf.TagPtrToMemberType:
		return t.memberPointer(e)
	case dwarf.TagUnspecifiedType:
		if strings.Contains(name, "nullptr") { // decltype(nullptr), or nullptr_t: passed as a pointer
			return &btf.Typedef{Name: name, Type: &btf.Pointer{Target: void}}
		}
		return void
	case dwarf.TagEnumerationType:
		enum := &btf.Enum{Name: name, Size: size}
		if t.whole != nil {
			t.whole[at] = enum
			t.enumerators(r, e, enum)
		}
		return enum
	case dwarf.TagArrayType:
		if vector, _ := e.Val(attrGNUVector).(bool); vector {
			return types.NewVector(t.array(r, e, of(nil)))
		}
		return t.array(r, e, of(nil))
	case dwarf.TagSubroutineType:
		return t.function(r, e, of(nil), depth)
	case dwarf.TagStructType, dwarf.TagUnionType, dwarf.TagClassType:
		if _, ok := e.Val(dwarf.AttrDeclaration).(bool); ok {
			kind := btf.FwdStruct
			if e.Tag == dwarf.TagUnionType {
				kind = btf.FwdUnion
			}
			return &btf.Fwd{Name: name, Kind: kind}
		}
		if e.Tag == dwarf.TagUnionType {
			return t.noteStructure(at, &btf.Union{Name: name, Size: size, Members: t.members(r, e, path, depth)})
		}
		return t.noteStructure(at, &btf.Struct{Name: name, Size: size, Members: t.members(r, e, path, depth)})
	}
	return of(path) // as DW_TAG_atomic_type
}

// target returns the type of a pointer's target, which is not kept if only values are
// needed.
func (t *typeReader) target(of func([]string) btf.Type, path []string) btf.Type {
	if !t.values {
		return of(path)
	}
	whole, later := t.whole, t.later
	t.whole, t.later = nil, nil
	to := of(nil)
	t.whole, t.later = whole, later
	return to
}

// valuesOf returns the type at an offset with all members of its values, but only the
// names of pointers' targets.
func (i *Info) valuesOf(at dwarf.Offset) btf.Type {
	t := typeReader{Info: i, left: maxTypes, whole: map[dwarf.Offset]btf.Type{}, values: true}
	out := t.read(at, nil, 0)
	t.finish()
	if t.left < 0 {
		return (*btf.Void)(nil) // not all of it was read
	}
	return out
}

// noteStructure records a structure whose members are read later, because they may
// refer to it again.
func (t *typeReader) noteStructure(at dwarf.Offset, x btf.Type) btf.Type {
	if t.whole != nil {
		t.whole[at], t.later = x, append(t.later, at)
	}
	return x
}

// finish reads the members of all kept structures.
func (t *typeReader) finish() {
	for len(t.later) > 0 {
		at := t.later[0]
		t.later = t.later[1:]
		r := t.data.Reader()
		r.Seek(at)
		e, err := r.Next()
		if err != nil || e == nil {
			continue
		}
		switch x := t.whole[at].(type) {
		case *btf.Struct:
			x.Members = t.allMembers(r, e)
		case *btf.Union:
			x.Members = t.allMembers(r, e)
		}
	}
}

// enumerators reads the names of an enumeration.
func (t *typeReader) enumerators(r *dies.Reader, of *dwarf.Entry, enum *btf.Enum) {
	if !of.Children {
		return
	}
	for e := t.next(r); e != nil; e = t.next(r) {
		name, _ := e.Val(dwarf.AttrName).(string)
		v, _ := e.Val(dwarf.AttrConstValue).(int64)
		enum.Signed = enum.Signed || v < 0
		enum.Values = append(enum.Values, btf.EnumValue{Name: name, Value: uint64(v)})
	}
}

// next returns the children of e one after the other, without theirs, and nil after
// the last.
func (t *typeReader) next(r *dies.Reader) *dwarf.Entry {
	e, err := r.Next()
	if t.left--; err != nil || e == nil || e.Tag == 0 || t.left < 0 {
		return nil
	}
	return e
}

// skip skips the children of e. Entries that are only skipped cost less than those
// that are read.
func (t *typeReader) skip(r *dies.Reader, e *dwarf.Entry) error {
	looked, err := r.Pass(e)
	t.left -= looked / 64
	return err
}

// array returns an array of elements, the innermost of which are of type element.
func (t *typeReader) array(r *dies.Reader, of *dwarf.Entry, element btf.Type) btf.Type {
	var counts []uint32
	if of.Children {
		for e := t.next(r); e != nil; e = t.next(r) {
			n := int64(0)
			if v, ok := e.Val(dwarf.AttrCount).(int64); ok {
				n = v
			} else if v, ok := e.Val(dwarf.AttrUpperBound).(int64); ok {
				n = v + 1
			}
			if e.Tag == dwarf.TagSubrangeType && len(counts) < maxTypeDepth {
				counts = append(counts, uint32(min(max(n, 0), 1<<31-1)))
			}
		}
	}
	for _, n := range slices.Backward(counts) {
		element = &btf.Array{Index: &btf.Int{Name: "int", Size: 4}, Type: element, Nelems: n}
	}
	return element
}

// function returns a function's type.
func (t *typeReader) function(r *dies.Reader, of *dwarf.Entry, returns btf.Type, depth int) btf.Type {
	p := &btf.FuncProto{Return: returns}
	if !of.Children {
		return p
	}
	for e := t.next(r); e != nil; e = t.next(r) {
		x := btf.FuncParam{Type: (*btf.Void)(nil)}
		if at, ok := e.Val(dwarf.AttrType).(dwarf.Offset); ok {
			x.Type = t.read(at, nil, depth+1)
		}
		p.Params = append(p.Params, x)
	}
	return p
}
