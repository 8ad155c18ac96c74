package types

import "github.com/cilium/ebpf/btf"

// Strip returns what t is behind qualifiers and the names of typedefs.
func Strip(t btf.Type) btf.Type { return btf.UnderlyingType(t) }

// Members returns the members of a structure or union, which t is behind qualifiers and
// typedefs; ok is false for all else.
func Members(t btf.Type) (m []btf.Member, ok bool) {
	switch t := Strip(t).(type) {
	case *btf.Struct:
		return t.Members, true
	case *btf.Union:
		return t.Members, true
	}
	return nil, false
}

// maxAnonymous is how many structures without a name are looked into for a member.
const maxAnonymous = 256

// Field is a member as its structure has it, or one of an anonymous structure within.
type Field struct {
	Type   btf.Type
	Offset uint64 // bits from the beginning of the structure that was asked
	Width  uint64 // bits of a bit field; 0: it is none
}

// Member returns the member of that name of the structure or union t, which may be one
// of an anonymous structure or union within t. ok is false where t is neither; found,
// where it has no such member.
func Member(t btf.Type, name string) (f Field, found, ok bool) {
	members, ok := Members(t)
	if !ok || name == "" {
		return Field{}, false, ok
	}
	type part struct {
		members []btf.Member
		offset  uint64
	}
	parts := []part{{members, 0}}
	for i := 0; i < len(parts); i++ {
		for _, m := range parts[i].members {
			at := parts[i].offset + uint64(m.Offset)
			switch {
			case m.Name == name:
				return Field{Type: m.Type, Offset: at, Width: uint64(m.BitfieldSize)}, true, true
			case m.Name == "" && len(parts) < maxAnonymous:
				if inner, ok := Members(m.Type); ok {
					parts = append(parts, part{inner, at})
				}
			}
		}
	}
	return Field{}, false, true
}

// IsChar reports whether t is char: an integer of 8 bits without sign, or with that
// name, whose sign is the compiler's choice.
func IsChar(t btf.Type) bool {
	i, ok := Strip(t).(*btf.Int)
	return ok && i.Size == 1 && (i.Encoding != btf.Signed && i.Encoding != btf.Bool || i.Name == "char")
}

// IsCharPointer reports whether t points to a char, IsCharArray whether it is an array
// of them.
func IsCharPointer(t btf.Type) bool {
	p, ok := Strip(t).(*btf.Pointer)
	return ok && IsChar(p.Target)
}

// IsCharArray is described with IsCharPointer.
func IsCharArray(t btf.Type) bool {
	a, ok := Strip(t).(*btf.Array)
	return ok && IsChar(a.Type)
}

// Kinds of references of C++, as the values of type tags, which a pointer to what is referred to has here.
const (
	referenceTag       = "&"
	rvalueReferenceTag = "&&"
)

// NewReference returns the type of a reference to t, of C++; with rvalue of one to a temporary.
func NewReference(t btf.Type, rvalue bool) btf.Type {
	tag := referenceTag
	if rvalue {
		tag = rvalueReferenceTag
	}
	return &btf.Pointer{Target: &btf.TypeTag{Value: tag, Type: t}}
}

// Reference returns what t refers to; ok is false where it is no reference.
func Reference(t btf.Type) (to btf.Type, ok bool) {
	if p, pointer := Strip(t).(*btf.Pointer); pointer && referenceOf(p) != "" {
		return p.Target.(*btf.TypeTag).Type, true
	}
	return nil, false
}

// referenceOf returns how C++ writes the reference that a pointer is, or "".
func referenceOf(p *btf.Pointer) string {
	if tag, ok := p.Target.(*btf.TypeTag); ok && (tag.Value == referenceTag || tag.Value == rvalueReferenceTag) {
		return tag.Value
	}
	return ""
}

// How values are passed where their type alone does not say it, as the values of type tags.
const (
	indirectTag = "by pointer"
	vectorTag   = "vector"
)

// NewIndirect returns t as the type of a parameter of which a pointer is passed, or of a result that is returned in the
// caller's memory, whatever its size: so C++ does with classes that cannot be copied bit by bit.
func NewIndirect(t btf.Type) btf.Type { return &btf.TypeTag{Value: indirectTag, Type: t} }

// NewVector returns the array t as a type of vectors, which are passed in vector registers.
func NewVector(t btf.Type) btf.Type { return &btf.TypeTag{Value: vectorTag, Type: t} }

// hasTag reports whether t has the tag, alone or before qualifiers and names.
func hasTag(t btf.Type, tag string) bool {
	for range maxDepth {
		switch x := t.(type) {
		case *btf.TypeTag:
			if x.Value == tag {
				return true
			}
			t = x.Type
		case *btf.Const:
			t = x.Type
		case *btf.Volatile:
			t = x.Type
		case *btf.Restrict:
			t = x.Type
		case *btf.Typedef:
			t = x.Type
		default:
			return false
		}
	}
	return false
}

// IsVoid reports whether there is no value of type t.
func IsVoid(t btf.Type) bool {
	_, ok := Strip(t).(*btf.Void)
	return ok
}
