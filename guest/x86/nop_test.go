package x86

import (
	"testing"

	"golang.org/x/arch/x86/x86asm"
)

// TestIsNop checks all forms of nop, and instructions that look similar.
func TestIsNop(t *testing.T) {
	for _, c := range []struct {
		code string
		want bool
	}{
		{"\x90", true}, {"\x66\x90", true}, {"\x48\x90", true}, {"\x0f\x1f\x00", true}, {"\x66\x0f\x1f\x00", true}, {"\x0f\x1f\x44\x00\x00", true},
		{"\x66\x2e\x0f\x1f\x84\x00\x00\x00\x00\x00", true}, {"\xf3\x0f\x1e\xfa", true}, {"\xf3\x0f\x1e\xfb", true},
		{"\x41\x90", false}, {"\xf3\x90", false}, {"\x87\xc0", false}, {"\x0f\x0d\x08", false}, {"\x0f\x18\x08", false}, {"\x0f\x1e\xfa", false},
		{"\xf3\x0f\x1e\xc8", false}, {"\xfc", false}, {"\xc3", false}, {"\x0f\x01\xca", false},
	} {
		in, err := Decode([]byte(c.code))
		if err != nil || int(in.Len) != len(c.code) {
			t.Fatalf("% x: %d bytes, %v", c.code, in.Len, err)
		}
		if got := in.IsNop(); got != c.want {
			t.Errorf("% x: %v, want %v", c.code, got, c.want)
		}
		if x, err := x86asm.Decode([]byte(c.code), 64); err == nil && x.Op == x86asm.NOP && !c.want {
			t.Errorf("% x is a nop: %v", c.code, x)
		}
	}
}
