package bpf

import "encoding/binary"

// Kinds of BTF types (linux/btf.h).
const (
	btfInt, btfPtr, btfArray, btfStruct, btfUnion, btfEnum = 1, 2, 3, 4, 5, 6
	btfTypedef, btfVolatile, btfConst, btfRestrict         = 8, 9, 10, 11
	btfFuncProto, btfVar, btfDatasec, btfDeclTag           = 13, 14, 15, 17
	btfEnum64                                              = 19
)

// Sizes in a file's BTF: the header, the fixed part of a type, a member, and a variable
// of a data section.
const (
	btfHeader, btfFixed, btfMember, btfSecVar = 24, 12, 12, 12
)

// rawType is one type in a file's BTF, which may be changed in place.
type rawType []byte

func (t rawType) word(at int) uint32       { return binary.LittleEndian.Uint32(t[at:]) }
func (t rawType) put(at int, value uint32) { binary.LittleEndian.PutUint32(t[at:], value) }
func (t rawType) kind() uint32             { return t.word(4) >> 24 & 0x1f }
func (t rawType) size() uint32             { return t.word(8) }
func (t rawType) target() uint32           { return t.word(8) }

// parts returns the members of a structure, or the variables of a data section.
func (t rawType) parts() (out []rawType) {
	for rest := t[btfFixed:]; len(rest) >= btfMember; rest = rest[btfMember:] {
		out = append(out, rest[:btfMember])
	}
	return out
}

// rawTypes are the types in a file's BTF; type number 1 is the first.
type rawTypes struct {
	all   []rawType
	names []byte
}

// readRawTypes finds the types in BTF, as far as it makes sense.
func readRawTypes(b []byte) (r rawTypes) {
	if len(b) < btfHeader {
		return r
	}
	le := binary.LittleEndian
	part := func(off, size uint32) []byte {
		from := uint64(le.Uint32(b[4:])) + uint64(off)
		if to := from + uint64(size); to <= uint64(len(b)) {
			return b[from:to]
		}
		return nil
	}
	types := part(le.Uint32(b[8:]), le.Uint32(b[12:]))
	r.names = part(le.Uint32(b[16:]), le.Uint32(b[20:]))
	for len(types) >= btfFixed {
		info := le.Uint32(types[4:])
		n := int(info & 0xffff)
		size := btfFixed + map[uint32]int{btfInt: 4, btfArray: 12, btfStruct: btfMember * n, btfUnion: btfMember * n, btfEnum: 8 * n, btfFuncProto: 8 * n,
			btfVar: 4, btfDatasec: btfSecVar * n, btfDeclTag: 4, btfEnum64: 12 * n}[info>>24&0x1f]
		if size > len(types) {
			break
		}
		r.all = append(r.all, types[:size])
		types = types[size:]
	}
	return r
}

// get returns a type by its number, nil if it does not exist.
func (r *rawTypes) get(id uint32) rawType {
	if id == 0 || uint64(id) > uint64(len(r.all)) {
		return nil
	}
	return r.all[id-1]
}

// skip returns the number of the type that id has without typedefs and qualifiers.
func (r *rawTypes) skip(id uint32) uint32 {
	for range len(r.all) {
		t := r.get(id)
		if t == nil {
			return 0
		}
		switch t.kind() {
		case btfTypedef, btfVolatile, btfConst, btfRestrict:
			id = t.target()
		default:
			return id
		}
	}
	return 0
}

// name returns the name that begins at an offset.
func (r *rawTypes) name(at uint32) string {
	if uint64(at) >= uint64(len(r.names)) {
		return ""
	}
	rest := r.names[at:]
	for i, c := range rest {
		if c == 0 {
			return string(rest[:i])
		}
	}
	return ""
}

// correctMapTypes changes the definitions of maps to the form that the parser expects.
func correctMapTypes(b []byte) {
	r := readRawTypes(b)
	for _, t := range r.all {
		if t.kind() != btfDatasec || r.name(t.word(0)) != ".maps" {
			continue
		}
		for _, v := range t.parts() {
			if x := r.get(v.word(0)); x != nil && x.kind() == btfVar {
				r.correctMap(x.target(), 0)
			}
		}
	}
}

// correctMap changes the definition of one map. Its inner map may be declared by a
// typedef, which the parser does not know. The node of its memory (numa_node) is of no
// interest here, and the parser rejects it: the type of the map takes its place, which it
// then reads twice.
func (r *rawTypes) correctMap(id uint32, nested int) {
	def := r.get(r.skip(id))
	if def == nil || def.kind() != btfStruct || nested > 1 {
		return
	}
	var kind rawType
	for _, m := range def.parts() {
		if r.name(m.word(0)) == "type" {
			kind = m
		}
	}
	for _, m := range def.parts() {
		switch r.name(m.word(0)) {
		case "numa_node":
			if kind != nil {
				copy(m, kind)
			}
		case "values":
			if array := r.get(m.word(4)); array != nil && array.kind() == btfArray {
				if p := r.get(array.word(btfFixed)); p != nil && p.kind() == btfPtr {
					if to := r.skip(p.target()); to != 0 {
						p.put(8, to)
						r.correctMap(to, nested+1)
					}
				}
			}
		}
	}
}
