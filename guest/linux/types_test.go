package linux

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/types"
)

func TestField(t *testing.T) {
	inner := structOf("", "a", tInt, "b", tLong)
	union := &btf.Union{Size: 12, Members: []btf.Member{{Name: "", Type: inner}, {Name: "c", Type: tShort}}}
	s := structOf("s", "x", tLong, "", union, "named", structOf("other", "pad", tInt, "d", tInt), "bits", tInt)
	s.Members = append(s.Members[:3],
		btf.Member{Name: "low", Type: tInt, Offset: 28 * 8, BitfieldSize: 3}, btf.Member{Name: "high", Type: tInt, Offset: 28*8 + 11, BitfieldSize: 5})
	types := typesOf(t, s, &btf.Typedef{Name: "s_t", Type: s})
	for _, c := range []struct {
		path             string
		off, size, at, n uint32
	}{
		{"s", 0, 32, 0, 0},
		{"s.x", 0, 8, 0, 0},
		{"s.a", 8, 4, 0, 0},
		{"s.b", 12, 8, 0, 0},
		{"s.c", 8, 2, 0, 0},
		{"s.named", 20, 8, 0, 0},
		{"s.named.d", 24, 4, 0, 0},
		{"s.low", 28, 4, 0, 3},
		{"s.high", 29, 4, 3, 5},
	} {
		f, err := types.field(c.path)
		if err != nil || f.Off != c.off || f.Size != c.size || f.Shift != c.at || f.Bits != c.n {
			t.Errorf("%s: %+v, %v; want %+v", c.path, f, err, c)
		}
	}
	for path, want := range map[string]string{
		"t":         "the kernel's types have no struct t",
		"s_t.x":     "the kernel's types have no struct s_t",
		"s.d":       "the kernel's types have no s.d: no member d",
		"s.x.y":     "the kernel's types have no s.x.y: no member y",
		"s.named.x": "the kernel's types have no s.named.x: no member x",
	} {
		if _, err := types.field(path); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

// rawTypes are types with their strings, after a struct btf_header.
func rawTypes(types, strings []byte) []byte {
	b := le.AppendUint32([]byte{0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0}, uint32(len(types)))
	b = le.AppendUint32(b, uint32(len(types)))
	b = le.AppendUint32(b, uint32(len(strings)))
	return append(append(b, types...), strings...)
}

// words are little-endian.
func words(w ...uint32) (b []byte) {
	for _, x := range w {
		b = le.AppendUint32(b, x)
	}
	return b
}

var le = binary.LittleEndian

// TestTypesOfModule: a module's types continue the kernel's.
func TestTypesOfModule(t *testing.T) {
	kernels := structOf("kernels", "pad", tInt, "x", tLong)
	raw := marshal(t, kernels)
	base, err := readTypes(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	var in *btf.Struct
	if err := base.Spec.TypeByName("kernels", &in); err != nil {
		t.Fatal(err)
	}
	id, err := base.Spec.TypeID(in)
	if err != nil {
		t.Fatal(err)
	}
	// struct mine { struct kernels k; } at 32 bits from its beginning. Strings count on, too.
	at := le.Uint32(raw[20:])
	module, err := readTypes(rawTypes(words(at, 4<<24|1, 16, at+5, uint32(id), 32), []byte("mine\x00k\x00")), base)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := module.field("mine.k.x"); err != nil || f.Off != 8 || f.Size != 8 {
		t.Errorf("mine.k.x: %+v, %v", f, err)
	}
}

// TestHostileTypes: data that is not BTF, or exceeds the limits, is an error.
func TestHostileTypes(t *testing.T) {
	raw := marshal(t, structOf("s", "x", tLong))
	for n := range len(raw) {
		if _, err := readTypes(raw[:n], nil); err == nil {
			t.Fatalf("%d of %d bytes were taken", n, len(raw))
		}
	}
	// Pointers to pointers, as deep as they are read.
	base := typesOf(t, tInt)
	deep := func(n int) []byte {
		var chain []byte
		for i := range n {
			chain = append(chain, words(0, 2<<24, uint32(i+3))...)
		}
		return rawTypes(chain, []byte{0})
	}
	if read, err := readTypes(deep(types.MaxModuleTypes), base); err != nil {
		t.Error(err)
	} else if _, err := read.Spec.TypeByID(2); !errors.Is(err, btf.ErrNotFound) {
		t.Errorf("a chain that leads nowhere: %v", err)
	}
	if _, err := readTypes(deep(types.MaxModuleTypes+1), base); err == nil {
		t.Error("one type too many was read")
	}
	if _, err := readTypes(deep(types.MaxTypes+1), nil); err == nil {
		t.Error("one type too many was read")
	}
	// A structure of which each member is, without a name, the structure itself.
	self := &btf.Struct{Name: "self", Size: 8}
	for range 64 {
		self.Members = append(self.Members, btf.Member{Type: self})
	}
	if _, err := typesOf(t, self).field("self.x"); err == nil {
		t.Error("self.x was found")
	}
}

// FuzzTypes: anything at all costs an error.
func FuzzTypes(f *testing.F) {
	f.Add(marshal(f, structOf("task_struct", "pid", tInt, "", &btf.Union{Size: 4, Members: []btf.Member{{Name: "u", Type: tInt}}})))
	f.Fuzz(func(t *testing.T, b []byte) {
		types, err := readTypes(b, nil)
		if err != nil {
			return
		}
		if x, err := types.field("task_struct.pid"); err == nil && x.Type == nil {
			t.Error("a field without a type")
		}
		newTasks(types, func(string) (guest.GVA, bool) { return 0, true })
	})
}
