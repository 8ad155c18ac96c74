package types

import "github.com/cilium/ebpf/btf"

// Strip removes qualifiers and typedefs from t.
func Strip(t btf.Type) btf.Type { return btf.UnderlyingType(t) }

// Members returns the members of a structure or union, after removing qualifiers and
// typedefs; ok is false for other types.
func Members(t btf.Type) (m []btf.Member, ok bool) {
	switch t := Strip(t).(type) {
	case *btf.Struct:
		return t.Members, true
	case *btf.Union:
		return t.Members, true
	}
	return nil, false
}

// maxAnonymous bounds the unnamed structures that are searched for a member.
const maxAnonymous = 256

// Field is a member of a structure, or of an anonymous structure within it.
type Field struct {
	Type   btf.Type
	Offset uint64 // bits from the beginning of the outer structure
	Width  uint64 // bits of a bit field; 0: not a bit field
}

// Member returns the member of that name of the structure or union t, which may be
// one of an anonymous structure or union within t. ok is false if t is neither; found
// is false if it has no such member.
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

// isChar reports whether t is char: an unsigned integer of 8 bits, or one with that
// name, whose sign is the compiler's choice.
func isChar(t btf.Type) bool {
	i, ok := Strip(t).(*btf.Int)
	return ok && i.Size == 1 && (i.Encoding != btf.Signed && i.Encoding != btf.Bool || i.Name == "char")
}

// IsCharPointer reports whether t points to a char, IsCharArray whether it is an array
// of them.
func IsCharPointer(t btf.Type) bool {
	p, ok := Strip(t).(*btf.Pointer)
	return ok && isChar(p.Target)
}

// IsCharArray is described with IsCharPointer.
func IsCharArray(t btf.Type) bool {
	a, ok := Strip(t).(*btf.Array)
	return ok && isChar(a.Type)
}

// Kinds of C++ references, as the values of type tags on a pointer to the target.
const (
	referenceTag       = "&"
	rvalueReferenceTag = "&&"
)

// NewReference returns the type of a C++ reference to t; if rvalue is set, of a
// reference to a temporary.
func NewReference(t btf.Type, rvalue bool) btf.Type {
	tag := referenceTag
	if rvalue {
		tag = rvalueReferenceTag
	}
	return &btf.Pointer{Target: &btf.TypeTag{Value: tag, Type: t}}
}

// Reference returns the target type of a reference; ok is false if t is not a
// reference.
func Reference(t btf.Type) (to btf.Type, ok bool) {
	if p, pointer := Strip(t).(*btf.Pointer); pointer && referenceOf(p) != "" {
		return p.Target.(*btf.TypeTag).Type, true
	}
	return nil, false
}

// referenceOf returns the C++ syntax of the reference that a pointer represents, or
// "".
func referenceOf(p *btf.Pointer) string {
	if tag, ok := p.Target.(*btf.TypeTag); ok && (tag.Value == referenceTag || tag.Value == rvalueReferenceTag) {
		return tag.Value
	}
	return ""
}

// How values are passed if their type alone does not determine it, as the values of
// type tags.
const (
	indirectTag = "by pointer"
	vectorTag   = "vector"
)

// NewIndirect returns t as the type of a parameter that is passed by a pointer, or of
// a result that is returned in the caller's memory, whatever its size: C++ does so
// with classes that cannot be copied bit by bit.
func NewIndirect(t btf.Type) btf.Type { return &btf.TypeTag{Value: indirectTag, Type: t} }

// NewVector returns the array t as a type of vectors, which are passed in vector registers.
func NewVector(t btf.Type) btf.Type { return &btf.TypeTag{Value: vectorTag, Type: t} }

// hasTag reports whether t has the tag, possibly below qualifiers and typedefs.
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

// IsVoid reports whether type t has no values.
func IsVoid(t btf.Type) bool {
	_, ok := Strip(t).(*btf.Void)
	return ok
}
