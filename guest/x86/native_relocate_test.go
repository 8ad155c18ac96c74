//go:build linux && amd64

package x86

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// movable are instructions whose copies need changes, with the operand or
// target left open: the test puts it where it has memory.
var movable = []string{
	"488b0500000000", "678b0500000000", "488d0500000000", "67488d0500000000", "48ff0500000000", "480fb60500000000",
	"c60500000000aa", "66c705000000001234", "48c7050000000012345678", "48813d0000000012345678", "f0480fc10500000000",
	"ff3500000000", "8f0500000000", "0f100d00000000", "660f6f1500000000", "0fb62d00000000", "486b3d0000000007",
	"7000", "7100", "7200", "7300", "7400", "7500", "7600", "7700", "7800", "7900", "7a00", "7b00", "7c00", "7d00", "7e00", "7f00",
	"2e7400", "3e7500", "0f8000000000", "0f8500000000", "0f8f00000000", "2e0f8600000000", "e000", "e100", "e200", "e300",
	"67e000", "67e100", "67e200", "67e300", "3ee200", "48e200", "eb00", "e900000000", "2eeb00", "48e900000000", "f2e900000000",
}

// TestNativeRelocate runs instructions and their relocated copies on this CPU:
// from the same state they leave the same state.
func TestNativeRelocate(t *testing.T) {
	n := newNative(t)
	rnd := rand.New(rand.NewPCG(*nativeSeed, 2))
	t.Logf("-native.seed=%d", *nativeSeed)
	base := n.base + arenaOff
	slot := n.base + slotOff
	for _, s := range movable {
		for range 40 {
			code := unhex(t, s)
			i := mustDecode(t, s)
			r := randomState(rnd, base)
			if i.Class() == ClassLoop {
				r.RCX = r.RCX&^7 | uint64(rnd.IntN(3))
			}
			switch {
			case i.RIPRelative():
				at := base + 16*uint64(rnd.IntN(arenaSize/16))
				put32(code[i.dispOff:], uint32(at-i.RIPTarget(n.test)))
			case i.immLen == 1:
				code[i.immOff] = byte(n.near - (n.test + uint64(i.Len)))
			default:
				put32(code[i.immOff:], uint32(n.pad-(n.test+uint64(i.Len))))
			}
			i, err := Decode(code)
			if err != nil {
				t.Fatal(err)
			}
			var mem [arenaSize]byte
			for k := range mem {
				mem[k] = byte(rnd.Uint32())
			}
			n.load(code)
			n.start(n.test)
			want := n.runUse(r, &mem)

			var copied [MaxRelocated]byte
			size, err := Relocate(copied[:], &i, n.test, slot)
			if err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			if slices.Equal(copied[:size], code) {
				t.Errorf("%s: nothing was changed", s)
			}
			n.place(slotOff, copied[:size])
			n.start(slot)
			if got := n.runUse(r, &mem); got != want {
				t.Errorf("% x, copy % x: from %+v\ngot  %+v\nwant %+v", code, copied[:size], r, got.regs, want.regs)
			}
		}
	}
}
