package debuginfo

import (
	"debug/dwarf"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/dies"
)

// Tags and attributes without names in debug/dwarf.
const (
	tagVariant          dwarf.Tag  = 0x19
	tagVariantPart      dwarf.Tag  = 0x33
	tagGNUParameterPack dwarf.Tag  = 0x4107
	attrGNUVector       dwarf.Attr = 0x2107
)

// discriminant is our name for the unnamed member that says which variant a value of
// a Rust enumeration has.
const discriminant = "discriminant"

// part is an entry that describes a part of the values of a structure.
type part struct {
	*dwarf.Entry
	name   string
	typeAt dwarf.Offset
}

// parts returns the parts of the entry that r has just read: its members; the members
// of all variants, which may overlap, as in a union; and last its base classes, as
// unnamed members, so that a member of a base is hidden by one with the same name.
func (t *typeReader) parts(r *dies.Reader, of *dwarf.Entry) (out []part) {
	if !of.Children {
		return nil
	}
	var bases []part
	for depth := 0; ; {
		e, err := r.Next()
		if t.left--; err != nil || e == nil || t.left < 0 {
			break
		}
		if e.Tag == 0 {
			if depth--; depth < 0 {
				break
			}
			continue
		}
		if (e.Tag == tagVariantPart || e.Tag == tagVariant) && e.Children && depth < maxTypeDepth {
			depth++
			continue
		}
		if t.skip(r, e) != nil {
			break
		}
		at, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
		name, named := e.Val(dwarf.AttrName).(string)
		switch {
		case !ok:
		case e.Tag == dwarf.TagInheritance && isPlaced(e):
			bases = append(bases, part{e, "", at})
		case e.Tag != dwarf.TagMember || isStatic(e):
		case depth > 0 && !named && e.Val(dwarf.AttrArtificial) == true:
			out = append(out, part{e, discriminant, at})
		default:
			out = append(out, part{e, name, at})
		}
	}
	return append(out, bases...)
}

// isStatic reports whether a member is not part of the values: C++ has one of it for
// the whole program.
func isStatic(e *dwarf.Entry) bool {
	return e.Val(dwarf.AttrExternal) == true || e.Val(dwarf.AttrDeclaration) == true
}

// isPlaced reports whether a base class has the same offset in all values. The offset
// of a virtual base is in the table of the value's class.
func isPlaced(e *dwarf.Entry) bool {
	if virtuality, _ := e.Val(dwarf.AttrVirtuality).(int64); virtuality != 0 {
		return false
	}
	code, computed := e.Val(dwarf.AttrDataMemberLoc).([]byte)
	return !computed || len(code) > 0 && code[0] == opPlusUconst
}

// member makes a member from a part.
func (p part) member(of btf.Type) btf.Member {
	m := btf.Member{Name: p.name, Type: of}
	m.Offset, m.BitfieldSize = placeOf(p.Entry)
	return m
}

// allMembers returns all members of an entry.
func (t *typeReader) allMembers(r *dies.Reader, of *dwarf.Entry) (out []btf.Member) {
	for _, p := range t.parts(r, of) {
		out = append(out, p.member(t.read(p.typeAt, nil, 0)))
	}
	return out
}

// members returns the first member of path, and unnamed structures, which may contain
// it.
func (t *typeReader) members(r *dies.Reader, of *dwarf.Entry, path []string, depth int) (out []btf.Member) {
	if len(path) == 0 {
		return nil
	}
	for _, p := range t.parts(r, of) {
		rest := path
		switch p.name {
		case "":
		case path[0]:
			rest = path[1:]
		default:
			continue
		}
		out = append(out, p.member(t.read(p.typeAt, rest, depth+1)))
	}
	return out
}

// placeOf returns a member's offset and width in bits; the width is 0 if it is not a
// bit field (DWARF 5, 5.7.6).
func placeOf(e *dwarf.Entry) (offset, width btf.Bits) {
	number := func(a dwarf.Attr) int64 {
		n, _ := e.Val(a).(int64)
		return n
	}
	begin := number(dwarf.AttrDataMemberLoc)
	if code, ok := e.Val(dwarf.AttrDataMemberLoc).([]byte); ok && len(code) > 0 && code[0] == opPlusUconst { // of DWARF 2
		x := expression{code: code[1:]}
		begin = int64(x.uleb())
	}
	offset, width = btf.Bits(8*begin), btf.Bits(number(dwarf.AttrBitSize))
	switch {
	case e.AttrField(dwarf.AttrDataBitOffset) != nil:
		offset = btf.Bits(number(dwarf.AttrDataBitOffset))
	case width > 0: // from the highest bit of the number that contains it (DWARF 3)
		offset += btf.Bits(8*number(dwarf.AttrByteSize) - number(dwarf.AttrBitOffset) - int64(width))
	}
	return offset, width
}

// memberPointer returns the type of a pointer to a member of a class (Itanium C++ ABI, 2.3): an offset, or for a member function a pair.
func (t *typeReader) memberPointer(e *dwarf.Entry) btf.Type {
	number := &btf.Int{Name: "ptrdiff_t", Size: 8, Encoding: btf.Signed}
	at, _ := e.Val(dwarf.AttrType).(dwarf.Offset)
	for range maxLinks {
		to := t.entryAt(at)
		if to == nil {
			break
		}
		if to.Tag == dwarf.TagSubroutineType {
			return &btf.Typedef{Name: "member_function_pointer", Type: &btf.Struct{Size: 16, Members: []btf.Member{
				{Name: "__pfn", Type: number}, {Name: "__delta", Type: number, Offset: 64},
			}}}
		}
		next, ok := to.Val(dwarf.AttrType).(dwarf.Offset)
		if !ok || to.Tag == dwarf.TagPointerType {
			break
		}
		at = next
	}
	return number
}
