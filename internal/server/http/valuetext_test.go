package http

import (
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestValueText: values are printed in one line, including structures in arrays.
func TestValueText(t *testing.T) {
	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	point := &btf.Struct{Name: "point", Size: 8, Members: []btf.Member{{Name: "x", Type: number}, {Name: "y", Type: number, Offset: 32}}}
	data := []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}
	for _, x := range []struct {
		t    btf.Type
		want string
	}{
		{number, "1"},
		{point, "{ .x = 1, .y = 2 }"},
		{&btf.Array{Type: point, Nelems: 2}, "[{ .x = 1, .y = 2 },{ .x = 3, .y = -1 }]"},
		{&btf.Array{Type: number, Nelems: 2}, "[1,2]"},
	} {
		if got := valueText(x.t, data); got != x.want {
			t.Errorf("%v: %q, want %q", x.t, got, x.want)
		}
	}
}
