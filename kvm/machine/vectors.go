package machine

import (
	"bytes"
	"encoding/binary"

	"github.com/guestprobe/guestprobe/kvm"
)

// Vectors are the floating point and vector registers of a vCPU.
type Vectors struct {
	// Control, Status, Tag and Opcode are words of the x87 unit, Tag in the abridged form of fxsave, a
	// bit for each register that is not empty; IP and DP where its last instruction and operand were.
	Control, Status, Opcode uint16
	Tag                     uint8
	IP, DP                  uint64
	ST                      [8][10]byte // ST(0) to ST(7)
	MXCSR, MXCSRMask        uint32

	// Regs are XMM0 and so on, 16 or 32 of them, each of Width bytes: 16 (XMM), 32
	// (YMM) or 64 (ZMM), little-endian.
	Regs  [][64]byte
	Width int

	Mask    [8]uint64 // K0 to K7
	HasMask bool
	PKRU    uint32
	HasPKRU bool
}

// Components of extended state (SDM Vol. 1, 13.1).
const (
	stateX87    = 0
	stateSSE    = 1
	stateAVX    = 2 // the upper halves of YMM0 to YMM15
	stateMask   = 5
	stateZMMHi  = 6 // the upper halves of ZMM0 to ZMM15
	stateHi16   = 7 // ZMM16 to ZMM31
	statePKRU   = 9
	xsaveBV     = 512
	xsaveLegacy = 576
)

// initial is the initial state of a component, as much of it as is read here.
var initial [2048]byte

// unpackVectors reads an xsave image in the standard format (SDM Vol. 1, 13.4).
// CPUID says where the components after the first two are. A component in its
// initial state has its initial value, whatever the image contains.
func unpackVectors(b []byte, cpuid []kvm.CPUIDEntry) (v Vectors) {
	le := binary.LittleEndian
	if len(b) < xsaveLegacy {
		return v
	}
	live := le.Uint64(b[xsaveBV:])
	component := func(n int) []byte {
		part := xsaveComponent(b, cpuid, n)
		if part != nil && live>>n&1 == 0 {
			return initial[:min(len(part), len(initial))]
		}
		return part
	}
	v.Control = 0x37f // FINIT (SDM Vol. 1, 13.6)
	if live>>stateX87&1 != 0 {
		v.Control, v.Status, v.Tag, v.Opcode = le.Uint16(b), le.Uint16(b[2:]), b[4], le.Uint16(b[6:])
		v.IP, v.DP = le.Uint64(b[8:]), le.Uint64(b[16:])
		for i := range v.ST {
			copy(v.ST[i][:], b[32+16*i:])
		}
	}
	v.MXCSR, v.MXCSRMask = le.Uint32(b[24:]), le.Uint32(b[28:])
	v.Width, v.Regs = 16, make([][64]byte, 16)
	put := func(from, at, size int, part []byte) {
		for i := 0; i < 16 && size*(i+1) <= len(part); i++ {
			copy(v.Regs[from+i][at:], part[size*i:][:size])
		}
	}
	if live>>stateSSE&1 != 0 {
		put(0, 0, 16, b[160:416])
	}
	if part := component(stateAVX); part != nil {
		v.Width = 32
		put(0, 16, 16, part)
	}
	if hi, rest := component(stateZMMHi), component(stateHi16); hi != nil && rest != nil {
		v.Width, v.Regs = 64, append(v.Regs, make([][64]byte, 16)...)
		put(0, 32, 32, hi)
		put(16, 0, 64, rest)
	}
	if part := component(stateMask); len(part) >= 64 {
		v.HasMask = true
		for i := range v.Mask {
			v.Mask[i] = le.Uint64(part[8*i:])
		}
	}
	if part := component(statePKRU); len(part) >= 4 {
		v.HasPKRU, v.PKRU = true, le.Uint32(part)
	}
	return v
}

// xsaveComponent returns the place of a component other than the first two in an
// image of xsave, or nil.
func xsaveComponent(b []byte, cpuid []kvm.CPUIDEntry, n int) []byte {
	for _, e := range cpuid {
		if e.Function == 0xd && int(e.Index) == n && uint64(e.Ebx)+uint64(e.Eax) <= uint64(len(b)) && e.Eax != 0 {
			return b[e.Ebx:][:e.Eax]
		}
	}
	return nil
}

// packVectors writes the registers of v that differ from unpackVectors' result
// to an xsave image. A component with a difference is written as a whole, and is
// no longer in its initial state.
func packVectors(b []byte, cpuid []kvm.CPUIDEntry, v Vectors) {
	le := binary.LittleEndian
	old := unpackVectors(b, cpuid)
	if old.Regs == nil || len(v.Regs) != len(old.Regs) {
		return
	}
	changed := func(n int) { le.PutUint64(b[xsaveBV:], le.Uint64(b[xsaveBV:])|1<<n) }
	if x, y := old, v; x.Control != y.Control || x.Status != y.Status || x.Tag != y.Tag || x.Opcode != y.Opcode || x.IP != y.IP || x.DP != y.DP || x.ST != y.ST {
		changed(stateX87)
		le.PutUint16(b, v.Control)
		le.PutUint16(b[2:], v.Status)
		b[4], b[5] = v.Tag, 0
		le.PutUint16(b[6:], v.Opcode)
		le.PutUint64(b[8:], v.IP)
		le.PutUint64(b[16:], v.DP)
		for i := range v.ST {
			clear(b[32+16*i:][copy(b[32+16*i:], v.ST[i][:]):][:6])
		}
	}
	// put writes bytes lo to hi of n registers from first on, if one of them
	// differs or other is true.
	put := func(component, first, n, lo, hi int, part []byte, other bool) {
		for i := range n {
			other = other || !bytes.Equal(old.Regs[first+i][lo:hi], v.Regs[first+i][lo:hi])
		}
		if !other || len(part) < n*(hi-lo) {
			return
		}
		changed(component)
		for i := range n {
			copy(part[i*(hi-lo):], v.Regs[first+i][lo:hi])
		}
	}
	part := func(n int) []byte { return xsaveComponent(b, cpuid, n) }
	put(stateSSE, 0, 16, 0, 16, b[160:416], old.MXCSR != v.MXCSR)
	le.PutUint32(b[24:], v.MXCSR)
	put(stateAVX, 0, 16, 16, 32, part(stateAVX), false)
	if v.Width == 64 {
		put(stateZMMHi, 0, 16, 32, 64, part(stateZMMHi), false)
		put(stateHi16, 16, 16, 0, 64, part(stateHi16), false)
	}
	if p := part(stateMask); old.HasMask && old.Mask != v.Mask {
		changed(stateMask)
		for i, k := range v.Mask {
			le.PutUint64(p[8*i:], k)
		}
	}
	if p := part(statePKRU); old.HasPKRU && old.PKRU != v.PKRU {
		changed(statePKRU)
		clear(p)
		le.PutUint32(p, v.PKRU)
	}
}
