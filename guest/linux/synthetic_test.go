package linux

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
)

// A kernel that no version of Linux ever was: its structures have the members of
// Linux, at other places.
var (
	tInt   = &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	tLong  = &btf.Int{Name: "long unsigned int", Size: 8}
	tShort = &btf.Int{Name: "short int", Size: 2, Encoding: btf.Signed}
	tChar  = &btf.Int{Name: "char", Size: 1}
	tPtr   = &btf.Pointer{Target: (*btf.Void)(nil)}
	tList  = structOf("list_head", "next", tPtr, "prev", tPtr)
)

// structOf returns a structure with these members: a name, then a type.
func structOf(name string, members ...any) *btf.Struct {
	s := &btf.Struct{Name: name}
	for i := 0; i < len(members); i += 2 {
		typ := members[i+1].(btf.Type)
		s.Members = append(s.Members, btf.Member{Name: members[i].(string), Type: typ, Offset: btf.Bits(s.Size * 8)})
		n, err := btf.Sizeof(typ)
		if err != nil {
			panic(err)
		}
		s.Size += uint32(n)
	}
	return s
}

func array(of btf.Type, n uint32) btf.Type { return &btf.Array{Index: tInt, Type: of, Nelems: n} }

// typesOf returns the types as a kernel has them.
func typesOf(t testing.TB, types ...btf.Type) *Types {
	t.Helper()
	out, err := readTypes(marshal(t, types...), nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func marshal(t testing.TB, types ...btf.Type) []byte {
	t.Helper()
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, btf.KernelMarshalOptions())
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// memory is guest memory from base on.
type memory struct {
	t     testing.TB
	types *Types
	base  guest.GVA
	b     []byte
}

var errNoMemory = errors.New("no memory")

func (m *memory) read(addr guest.GVA, p []byte) error {
	off := uint64(addr - m.base)
	if off > uint64(len(m.b)) || uint64(len(p)) > uint64(len(m.b))-off {
		return errNoMemory
	}
	copy(p, m.b[off:])
	return nil
}

// put sets the bytes at addr.
func (m *memory) put(addr guest.GVA, b []byte) { copy(m.b[addr-m.base:], b) }

// set sets members of the structure at addr: a path, then a number or a string.
func (m *memory) set(addr guest.GVA, members ...any) {
	m.t.Helper()
	for i := 0; i < len(members); i += 2 {
		f, err := m.types.field(members[i].(string))
		if err != nil {
			m.t.Fatal(err)
		}
		b := make([]byte, max(f.Size, 8))
		switch v := members[i+1].(type) {
		case string:
			copy(b, v)
		case guest.GVA:
			le.PutUint64(b, uint64(v))
		case int:
			le.PutUint64(b, uint64(v))
		}
		m.put(addr+guest.GVA(f.Off), b[:f.Size])
	}
}

// link makes a list of head and of the structures' members link.
func (m *memory) link(head guest.GVA, link string, at ...guest.GVA) {
	f, err := m.types.field(link)
	if err != nil {
		m.t.Fatal(err)
	}
	last := head
	for _, a := range at {
		m.put(last, le.AppendUint64(nil, uint64(a)+uint64(f.Off)))
		last = a + guest.GVA(f.Off)
	}
	m.put(last, le.AppendUint64(nil, uint64(head)))
}
