package bpf

import (
	"strconv"
	"testing"
)

// TestCodeSizeOfWalks: the size of a program that walks the kernel's stack is known without
// a guest, at any place.
func TestCodeSizeOfWalks(t *testing.T) {
	for _, kind := range []Kind{Kprobe, Kretprobe} {
		p, err := New(Spec{Kind: kind, Insns: mustAssemble(t, "mov r2, r10\nadd r2, -128\nmov r3, 128\nmov r4, 0\ncall "+strconv.Itoa(int(HelperGetStack))+"\nexit")})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := p.CodeSize(); n == 0 || err != nil {
			t.Errorf("%v: %d bytes, %v", kind, n, err)
		}
	}
}
