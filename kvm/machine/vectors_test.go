package machine

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"reflect"
	"testing"

	"github.com/guestprobe/guestprobe/kvm"
)

// TestVectors reads an image of xsave with all components, with some in their initial state, and
// with components that CPUID puts elsewhere than the image reaches.
func TestVectors(t *testing.T) {
	const avx, mask, zmm, hi16, pkru = 576, 832, 896, 1408, 2432
	cpuid := []kvm.CPUIDEntry{{Function: 0xd, Index: 2, Eax: 256, Ebx: avx}, {Function: 0xd, Index: 5, Eax: 64, Ebx: mask},
		{Function: 0xd, Index: 6, Eax: 512, Ebx: zmm}, {Function: 0xd, Index: 7, Eax: 1024, Ebx: hi16}, {Function: 0xd, Index: 9, Eax: 8, Ebx: pkru}}
	b := make([]byte, 4096)
	le := binary.LittleEndian
	for i := range b {
		b[i] = byte(i >> 4) // 16 bytes of a register are alike
	}
	le.PutUint16(b, 0x27f)
	le.PutUint32(b[24:], 0x1f81)
	le.PutUint64(b[512:], 1<<stateX87|1<<stateSSE|1<<stateAVX|1<<stateMask|1<<stateZMMHi|1<<stateHi16|1<<statePKRU)
	v := unpackVectors(b, cpuid)
	at := func(off int) byte { return byte(off >> 4) }
	if v.Control != 0x27f || v.MXCSR != 0x1f81 || v.Width != 64 || len(v.Regs) != 32 || !v.HasMask || !v.HasPKRU || v.PKRU != uint32(at(pkru))*0x01010101 {
		t.Errorf("%+v", v)
	}
	for i := range 16 {
		r, high := v.Regs[i], v.Regs[16+i]
		if r[0] != at(160+16*i) || r[15] != r[0] || r[16] != at(avx+16*i) || r[32] != at(zmm+32*i) || r[63] != at(zmm+32*i+31) || high[0] != at(hi16+64*i) || high[63] != at(hi16+64*i+63) {
			t.Errorf("register %d: % x; %d: % x", i, r, 16+i, high)
		}
	}
	if v.ST[7][0] != at(32+16*7) || v.Mask[7] != uint64(at(mask+56))*0x0101010101010101 {
		t.Errorf("%x %x", v.ST, v.Mask)
	}
	packed := func(from []byte, v Vectors) {
		t.Helper()
		b := bytes.Clone(from)
		packVectors(b, cpuid, v)
		if got := unpackVectors(b, cpuid); !reflect.DeepEqual(got, v) {
			t.Errorf("packed: %+v, want %+v", got, v)
		}
	}
	same := bytes.Clone(b)
	if packVectors(same, cpuid, v); !bytes.Equal(same, b) {
		t.Error("nothing was to be packed, and the image has changed")
	}
	full := v
	le.PutUint64(b[512:], 0)
	packed(b, full) // each component leaves its initial state
	for i, change := range []func(*Vectors){
		func(v *Vectors) { v.ST[7][9] = 1 }, func(v *Vectors) { v.Tag = 3 }, func(v *Vectors) { v.Regs[15][3] = 1 }, func(v *Vectors) { v.Regs[15][31] = 1 }, func(v *Vectors) { v.Regs[15][63] = 1 },
		func(v *Vectors) { v.Regs[31][0] = 1 }, func(v *Vectors) { v.Mask[7] = 1 }, func(v *Vectors) { v.PKRU = 1 }, func(v *Vectors) { v.MXCSR = 0x1f80 },
	} {
		c := unpackVectors(b, cpuid)
		change(&c)
		packed(b, c)
		b := bytes.Clone(b)
		if packVectors(b, cpuid, c); bits.OnesCount64(le.Uint64(b[512:])) != 1 {
			t.Errorf("change %d: components %#x are not in their initial state", i, le.Uint64(b[512:]))
		}
	}
	if v = unpackVectors(b, cpuid); v.Control != 0x37f || v.Tag != 0 || v.MXCSR != 0x1f81 || v.Regs != nil && (v.Regs[3] != [64]byte{} || v.Regs[31] != [64]byte{}) || v.PKRU != 0 || v.Mask[1] != 0 {
		t.Errorf("initial state: %+v", v)
	}
	le.PutUint64(b[512:], 1<<stateSSE)
	for _, n := range []int{600, 576} {
		if v = unpackVectors(b[:n], cpuid); v.Width != 16 || len(v.Regs) != 16 || v.Regs[1][0] != at(176) || v.HasMask {
			t.Errorf("%d bytes: %+v", n, v)
		}
	}
	if v = unpackVectors(b[:100], cpuid); v.Regs != nil {
		t.Errorf("%+v", v)
	}
}
