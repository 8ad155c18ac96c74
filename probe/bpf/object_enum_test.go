package bpf

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestWideEnums: enumerations of 8 bytes have the values that the debug information has, or no names; what a compiler's
// BTF has of them is half of each value.
func TestWideEnums(t *testing.T) {
	var b []byte
	for _, v := range []uint64{1, 0x100000001, math.MaxUint64, math.MaxUint32, math.MaxUint64 - 4, 0x200000002, 2} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, math.MaxUint32)
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(0.1))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(-2.5))
	const rest = `,"word":"MINUS","f":0.1,"d":-2.5}`
	for file, want := range map[string]string{
		"wide.o":          `{"big":["SMALL","BIG","ALL",4294967295],"with_sign":["NEGATIVE","POSITIVE",2]` + rest,
		"wide-stripped.o": `{"big":[1,4294967297,18446744073709551615,4294967295],"with_sign":[18446744073709551611,8589934594,2]` + rest,
	} {
		o, err := LoadObject(readObject(t, file), Selection{})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(o.Maps[0].ValueType.JSON(b)); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// TestWholeValues: only an enumeration with the same names, and one meaning, says what the values are.
func TestWholeValues(t *testing.T) {
	values := func(name string, vs ...uint64) btf.Enum {
		e := btf.Enum{Name: "e", Size: 8}
		for i, v := range vs {
			e.Values = append(e.Values, btf.EnumValue{Name: name[i : i+1], Value: v})
		}
		return e
	}
	narrow := values("ab", 1, 2)
	for _, c := range []struct {
		name string
		from []btf.Enum
		want uint64 // of a, 0: none
	}{
		{"nothing", nil, 0},
		{"one", []btf.Enum{values("ab", 1<<40+1, 2)}, 1<<40 + 1},
		{"other names", []btf.Enum{values("ac", 1<<40+1, 2)}, 0},
		{"other values", []btf.Enum{values("ab", 1<<40+3, 2)}, 0},
		{"fewer", []btf.Enum{values("a", 1<<40+1)}, 0},
		{"twice the same", []btf.Enum{values("ab", 1<<40+1, 2), values("ab", 1<<40+1, 2)}, 1<<40 + 1},
		{"two meanings", []btf.Enum{values("ab", 1<<40+1, 2), values("ab", 1<<41+1, 2)}, 0},
	} {
		got, _ := wholeValues(&narrow, c.from)
		if (len(got) > 0) != (c.want != 0) || c.want != 0 && got[0].Value != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestFloatsAsInts: what BTF without BTF_KIND_FLOAT calls float and double is printed as such.
func TestFloatsAsInts(t *testing.T) {
	s := &btf.Struct{Size: 16, Members: []btf.Member{
		{Name: "d", Type: &btf.Typedef{Name: "real", Type: &btf.Int{Name: "double", Size: 8}}},
		{Name: "f", Type: &btf.Int{Name: "float", Size: 4}, Offset: 64},
		{Name: "i", Type: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}, Offset: 96},
	}}
	b := binary.LittleEndian.AppendUint64(nil, math.Float64bits(1.25))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(0.1))
	b = binary.LittleEndian.AppendUint32(b, 7)
	if got := string((&Type{s}).JSON(b)); got != `{"d":1.25,"f":0.1,"i":7}` {
		t.Error(got)
	}
}
