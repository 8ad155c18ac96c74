package bpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// showType is a type of the guest's kernel as snprintf_btf prints its values. It is made
// when a program that asks for the type's number is linked: hits only read it.
type showType struct {
	kind     showKind
	size     uint32
	signed   bool            // of numbers and enumerations
	names    []btf.EnumValue // of an enumeration
	members  []showPlace     // of structures and unions
	elem     *showPlace      // of arrays, with the number of elements
	elements uint32
	number   uint32 // of the kind in BTF, of kinds that are not printed
}

type showKind uint8

const (
	showOther showKind = iota
	showInt
	showEnum
	showPointer
	showStruct
	showArray
)

// showPlace is a member of a structure, the element of an array, or the whole value.
type showPlace struct {
	name  string // what precedes the value: ".member = (type)", and the bracket that opens it
	open  string // the bracket
	off   uint32
	shift uint8 // of a bit field, in bits
	bits  uint8 // of a bit field, else 0
	t     *showType
}

// Limits of names (BTF_SHOW_MAX_ITER and BTF_SHOW_NAME_SIZE in Linux).
const (
	showNesting = 10
	showNameMax = 79
)

// showPlaces makes the places of types, each once.
type showPlaces map[btf.Type]*showType

// place describes a value of the type, named if it is a member.
func (s showPlaces) place(member string, t btf.Type) showPlace {
	p := showPlace{t: s.plan(t)}
	p.name, p.open = showName(member, t)
	return p
}

func (s showPlaces) plan(t btf.Type) *showType {
	t = btf.UnderlyingType(t)
	if x := s[t]; x != nil {
		return x
	}
	x := &showType{}
	s[t] = x
	if n, err := btf.Sizeof(t); err == nil && n >= 0 {
		x.size = uint32(n)
	}
	switch t := t.(type) {
	case *btf.Int:
		x.kind, x.signed = showInt, t.Encoding&btf.Signed != 0
	case *btf.Enum:
		x.kind, x.signed, x.names = showEnum, t.Signed, t.Values
	case *btf.Pointer:
		x.kind = showPointer
	case *btf.Struct:
		x.kind, x.members = showStruct, s.members(t.Members)
	case *btf.Union:
		x.kind, x.members = showStruct, s.members(t.Members)
	case *btf.Array:
		elem := s.place("", t.Type)
		x.kind, x.elem, x.elements = showArray, &elem, t.Nelems
	case *btf.Fwd:
		x.number = 7
	case *btf.Func:
		x.number = 12
	case *btf.FuncProto:
		x.number = 13
	case *btf.Float:
		x.number = 16
	}
	return x
}

func (s showPlaces) members(ms []btf.Member) (out []showPlace) {
	for _, m := range ms {
		p := s.place(m.Name, m.Type)
		p.off, p.shift, p.bits = uint32(m.Offset/8), uint8(m.Offset%8), uint8(min(m.BitfieldSize, 64))
		out = append(out, p)
	}
	return out
}

// showName returns what Linux prints before a value, and the bracket at its end: a type
// that begins with a qualifier has no name there, and members of structures in arrays
// have none either.
func showName(member string, t btf.Type) (name, open string) {
	typ, prefix, pointers, arrays := "", "", "", ""
	named, pointer, array := false, false, false
	for i := 0; ; i++ {
		if i == showNesting {
			return "", ""
		}
		var next btf.Type
		switch t := t.(type) {
		case *btf.Typedef:
			if !named {
				typ, named = t.Name, true
			}
			next = t.Type
		case *btf.Array:
			arrays, array, open = arrays+"[]", true, "["
			next = t.Type
		case *btf.Pointer:
			pointers, pointer = pointers+"*", true
			next = t.Target
		}
		if next == nil {
			break
		}
		t = withoutQualifiers(next)
	}
	switch x := t.(type) {
	case *btf.Struct:
		prefix, typ = "struct", orName(named, typ, x.Name)
	case *btf.Union:
		prefix, typ = "union", orName(named, typ, x.Name)
	case *btf.Enum:
		prefix, typ = "enum", orName(named, typ, x.Name)
	default:
		typ = orName(named, typ, t.TypeName())
	}
	if (prefix == "struct" || prefix == "union") && !array {
		open = "{"
	}
	if pointer {
		open = ""
	}
	if named {
		prefix = ""
	}
	if prefix != "" && typ != "" {
		prefix += " "
	}
	if pointers != "" {
		pointers = " " + pointers
	}
	if member != "" {
		member = "." + member + " = "
	}
	name = fmt.Sprintf("%s(%s%s%s%s)%s", member, prefix, typ, pointers, arrays, open)
	return name[:min(len(name), showNameMax)], open
}

func orName(named bool, typ, name string) string {
	if named {
		return typ
	}
	return name
}

// withoutQualifiers returns the type that const, volatile and the like qualify.
func withoutQualifiers(t btf.Type) btf.Type {
	for range showNesting {
		switch q := t.(type) {
		case *btf.Const:
			t = q.Type
		case *btf.Volatile:
			t = q.Type
		case *btf.Restrict:
			t = q.Type
		case *btf.TypeTag:
			t = q.Type
		default:
			return t
		}
	}
	return t
}

// addShows finds the types of the kernel whose numbers an instruction of a program that
// prints values was given by its relocation.
func (p *ObjectProgram) addShows(relo *btf.CORERelocation, id uint32, k *Kernel) {
	if !strings.Contains(relo.String(), "(target_type_id,") || k == nil || len(k.Types) == 0 || p.shows[id] != nil {
		return
	}
	if t, err := k.Types[0].TypeByID(btf.TypeID(id)); err == nil {
		if p.shows == nil {
			p.shows = map[uint32]*showPlace{}
		}
		place := showPlaces{}.place("", t)
		p.shows[id] = &place
	}
}

// printsTypes reports whether instructions print values by their types.
func printsTypes(in asm.Instructions) bool {
	return slices.ContainsFunc(in, func(i asm.Instruction) bool {
		return i.IsBuiltinCall() && Helper(i.Constant) == HelperSnprintfBTF
	})
}
