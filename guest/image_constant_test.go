package guest

import (
	"bytes"
	"testing"
)

func TestConstant(t *testing.T) {
	img, err := ParseELF(soundELF().build())
	if err != nil {
		t.Fatal(err)
	}
	s := &img.Segments[0]
	n := len(s.Data)
	for _, tt := range []struct {
		name string
		addr GVA
		n    int
		want []byte
	}{
		{"all", s.VAddr, n, s.Data},
		{"the last byte", s.VAddr + GVA(n-1), 1, s.Data[n-1:]},
		{"none", s.VAddr, 0, s.Data[:0]},
		{"one too many", s.VAddr + 1, n, nil},
		{"before it", s.VAddr - 1, 1, nil},
		{"a negative number", s.VAddr, -1, nil},
	} {
		if got := img.Constant(tt.addr, tt.n); !bytes.Equal(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("%s: % x", tt.name, got)
		}
	}
}
