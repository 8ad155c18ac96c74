//go:build linux && amd64

package x86

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
)

var (
	nativeSeed  = flag.Uint64("native.seed", 1, "seed of TestNative")
	nativeCases = flag.Int("native.cases", 30_000, "number of random cases of TestNative")
)

// arena is the emulator's copy of the memory at base.
type arena struct {
	base uint64
	b    [arenaSize]byte
}

func (a *arena) bytesAt(addr uint64, n int) ([]byte, error) {
	if off := addr - a.base; off < arenaSize && off+uint64(n) <= arenaSize {
		return a.b[off:][:n], nil
	}
	return nil, fmt.Errorf("no memory at %#x", addr)
}

func (a *arena) Read(addr uint64, p []byte) error {
	m, err := a.bytesAt(addr, len(p))
	copy(p, m)
	return err
}

func (a *arena) Write(addr uint64, p []byte) error {
	m, err := a.bytesAt(addr, len(p))
	copy(m, p)
	return err
}

// boundary are operand values at which carries, signs and sizes change.
var boundary = []uint64{
	0, 1, 2, 7, 8, 0xf, 0x10, 0x7e, 0x7f, 0x80, 0x81, 0xfe, 0xff, 0x100, 0x7fff, 0x8000, 0xfffe, 0xffff, 0x10000,
	0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, 0x100000000, 1<<63 - 1, 1 << 63, 1<<64 - 2, 1<<64 - 1,
}

// value returns a boundary value, one near it, or any.
func value(rnd *rand.Rand) uint64 {
	switch rnd.IntN(4) {
	case 0:
		return boundary[rnd.IntN(len(boundary))]
	case 1:
		return boundary[rnd.IntN(len(boundary))] ^ rnd.Uint64()<<32
	case 2:
		return uint64(rnd.Uint32()) >> rnd.IntN(32)
	}
	return rnd.Uint64()
}

// nativeFlags are the flags that a random state varies. TF and NT are left
// out, and AC, which would make the CPU check alignment.
const nativeFlags = FlagsStatus | FlagDF | FlagID

// randomState returns registers for a native run: RSP in the middle of the
// arena, everything else any value.
func randomState(rnd *rand.Rand, base uint64) Regs {
	var r Regs
	for k := range Reg64(16) {
		*r.Reg(k) = value(rnd)
	}
	r.RSP = base + arenaSize/2 + uint64(rnd.IntN(64))
	r.RFLAGS = rnd.Uint64()&nativeFlags | Flag1 | FlagIF
	return r
}

// TestNative runs every emulated instruction, in every operand size and with
// every register, on this CPU and in the emulator, from the same random state,
// and compares all registers, RFLAGS, RIP and memory.
func TestNative(t *testing.T) {
	testNative(t, 2000, (*Inst).Emulate, func(i *Inst) bool {
		return i.emulation() != emuNone && i.Opcode != 0xfa && i.Opcode != 0xfb // cli and sti fault at CPL 3
	})
}

// TestNativeData does the same for EmulateData.
func TestNativeData(t *testing.T) {
	testNative(t, 500, (*Inst).EmulateData, func(i *Inst) bool { return i.data() != NoData })
}

// testNative compares emulate with this CPU for instructions that are emulated.
func testNative(t *testing.T, forms int, emulate func(*Inst, uint64, *Regs, Memory) error, emulated func(*Inst) bool) {
	t.Helper()
	cases := *nativeCases
	if full() {
		cases = max(cases, 2_000_000)
	}
	t.Logf("-native.seed=%d -native.cases=%d", *nativeSeed, cases)
	n := newNative(t)
	rnd := rand.New(rand.NewPCG(*nativeSeed, 0))
	a := &arena{base: n.base + arenaOff}
	seen := make(map[form]int)
	failed := 0
	for done := 0; done < cases && failed < 20; {
		code := randomCode(rnd)
		i, err := Decode(code)
		if err != nil || !emulated(&i) {
			continue
		}
		code = code[:i.Len]
		r := randomState(rnd, a.base)
		for k := range a.b {
			a.b[k] = byte(rnd.Uint32())
		}
		if !n.prepare(rnd, &i, code, &r, a) {
			continue
		}
		if i, err = Decode(code); err != nil {
			t.Fatalf("% x: %v", code, err)
		}
		i.CPL = 3
		copy(n.arena(), a.b[:])
		n.load(code)
		want := n.run(r)
		got := r
		got.RIP = 0xdead
		if err := emulate(&i, n.test, &got, a); err != nil {
			t.Errorf("% x: from %+v: %v", code, r, err)
			failed++
			continue
		}
		if got.RIP == n.near {
			got.RIP = n.pad // the jump there
		}
		done++
		seen[formOf(&i)]++
		if got != want {
			t.Errorf("% x: from %+v\ngot  %+v\nwant %+v", code, r, got, want)
			failed++
		}
		if !bytes.Equal(a.b[:], n.arena()) {
			t.Errorf("% x: from %+v: memory differs", code, r)
			failed++
		}
	}
	t.Logf("%d forms", len(seen))
	if cases >= 30_000 && len(seen) < forms {
		t.Errorf("only %d forms were run", len(seen))
	}
}

// randomCode returns the start of an instruction: prefixes, an opcode of the
// first two maps, and random bytes.
func randomCode(rnd *rand.Rand) []byte {
	var b []byte
	for rnd.IntN(3) == 0 {
		b = append(b, []byte{0x66, 0x67, 0x2e, 0x3e, 0x26, 0x36, 0xf2, 0xf3}[rnd.IntN(8)])
	}
	if rnd.IntN(2) == 0 {
		b = append(b, 0x40|byte(rnd.IntN(16)))
	}
	if rnd.IntN(4) == 0 {
		b = append(b, 0x0f)
	}
	b = append(b, byte(rnd.Uint32()), byte(rnd.Uint32()))
	if rnd.IntN(2) == 0 {
		b[len(b)-1] |= 0xc0
	}
	v := value(rnd)
	for k := range 8 {
		b = append(b, byte(v>>(8*k)))
	}
	return append(b, byte(rnd.Uint32()))
}

// prepare makes the state fit the instruction: branches lead to the pad, and
// memory operands into the arena. It reports whether that was possible.
func (n *native) prepare(rnd *rand.Rand, i *Inst, code []byte, r *Regs, a *arena) bool {
	pad := func(addr uint64) { // a return address or pointer to the pad
		var p [8]byte
		for k := range p {
			p[k] = byte(n.pad >> (8 * k))
		}
		if err := a.Write(addr, p[:]); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	inside := a.base + 64 + uint64(rnd.IntN(arenaSize-128))
	switch e := i.emulation(); e {
	case emuNone: // EmulateData
		return n.point(i, code, r, inside) || func() bool {
			at, ok := i.Addr(n.test, r) // by RSP
			_, err := a.bytesAt(at, 8)
			return ok && err == nil
		}()
	case emuPopf: // leaves TF, NT and AC alone; CPL 3 may not change IF
		v := rnd.Uint64()&^(FlagTF|FlagNT|FlagAC|FlagRF) | 0xff<<24
		var p [8]byte
		for k := range p {
			p[k] = byte(v >> (8 * k))
		}
		return a.Write(r.RSP, p[:]) == nil
	case emuLeave:
		r.RBP = inside
	case emuPop, emuPopRM:
		return true
	case emuJump, emuJcc, emuLoop, emuCall:
		if i.immLen == 1 {
			code[i.immOff] = byte(n.near - (n.test + uint64(i.Len)))
			return true
		}
		put32(code[i.immOff:], uint32(n.pad-(n.test+uint64(i.Len))))
	case emuRet:
		pad(r.RSP)
	case emuBranchReg:
		*r.Reg(Reg64(i.RM() | i.base)) = n.pad
		// jmp *%rsp and call *%rsp would have the code for a stack.
		return i.RM()|i.base != uint8(RSP)
	case emuBranchMem:
		return n.point(i, code, r, inside) && func() bool { pad(inside); return true }()
	}
	return true
}

// point changes registers or displacement so that the memory operand is at
// addr.
func (n *native) point(i *Inst, code []byte, r *Regs, addr uint64) bool {
	fix := func() bool {
		at, ok := i.Addr(n.test, r)
		return ok && at == addr
	}
	if i.dispLen == 4 {
		if i.HasSIB {
			r.R11 = 0
		}
		at, ok := i.Addr(n.test, r)
		if !ok {
			return false
		}
		i.Disp += int32(uint32(addr - at))
		put32(code[i.dispOff:], uint32(i.Disp))
		return fix()
	}
	base := Reg64(i.RM() | i.base)
	if i.HasSIB {
		base = Reg64(i.SIB&7 | i.base)
	}
	if base == RSP {
		return false // the stack must stay where it is
	}
	at, _ := i.Addr(n.test, r)
	*r.Reg(base) += addr - at
	return fix()
}
