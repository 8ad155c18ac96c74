//go:build linux && amd64

package x86

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// harmless reports whether an instruction may be run as it is by TestNativeUse:
// it is part of every 64-bit CPU, is not privileged, and does not branch or
// divide.
func harmless(i *Inst) bool {
	if i.Enc != Legacy || i.Segment != SegNone || i.Prefix&PrefixLock != 0 {
		return false
	}
	op, reg, rep := i.Opcode, i.Reg(), i.Prefix&(PrefixRep|PrefixRepNE) != 0
	in := func(pairs ...byte) bool {
		s := newBits256(pairs...)
		return s.has(op)
	}
	memory := i.HasModRM && i.Mod() != 3
	switch i.Map {
	case Map0:
		switch op {
		case 0x8f, 0xc6, 0xc7:
			return reg == 0 && !rep
		case 0xf6, 0xf7:
			return reg <= 5 && !rep
		case 0xfe, 0xff:
			return (reg <= 1 || reg == 6) && !rep
		case 0xa4, 0xa5, 0xaa, 0xab, 0xac, 0xad:
			return i.Prefix&PrefixRepNE == 0
		}
		return in(0xa6, 0xa7, 0xae, 0xaf) || !rep && in(0x00, 0x05, 0x08, 0x0d, 0x10, 0x15, 0x18, 0x1d, 0x20, 0x25,
			0x28, 0x2d, 0x30, 0x35, 0x38, 0x3d, 0x50, 0x5f, 0x63, 0x63, 0x68, 0x6b, 0x80, 0x81, 0x83, 0x8b, 0x8d, 0x8d, 0x91, 0x99,
			0x9c, 0x9c, 0x9e, 0x9f, 0xa8, 0xa9, 0xb0, 0xbf, 0xc0, 0xc1, 0xc9, 0xc9, 0xd0, 0xd3, 0xd7, 0xd7, 0xf5, 0xf5, 0xf8, 0xf9, 0xfc, 0xfd)
	case Map0F:
		switch op {
		case 0xba:
			return reg >= 4 && !rep
		case 0xb8: // popcnt
			return i.pp == ppRep
		case 0xbc, 0xbd: // F3: another instruction on some CPUs
			return !rep
		case 0xc7:
			return reg == 1 && memory && i.Prefix&PrefixREXW == 0 && i.pp == ppNone
		case 0x13, 0x17, 0x2b, 0xe7:
			return memory && i.pp <= ppOpSize
		case 0x12, 0x16: // F3 and F2 are SSE3
			return i.pp <= ppOpSize && (memory || i.pp == ppNone)
		case 0xd6:
			return i.pp == ppOpSize
		case 0x50, 0xc5, 0xd7, 0xf7:
			return !memory && i.pp <= ppOpSize
		case 0x71, 0x72: // shifts by immediate
			return !memory && i.pp <= ppOpSize && (reg == 2 || reg == 4 || reg == 6)
		case 0x73:
			return !memory && i.pp <= ppOpSize && (reg == 2 || reg == 6 || i.pp == ppOpSize && (reg == 3 || reg == 7))
		case 0xc3:
			return memory && i.pp == ppNone
		case 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf:
			return i.opSize() != 2
		case 0x7c, 0x7d, 0xd0, 0xf0, 0x78, 0x79, 0x77, 0xff: // SSE3, SSE4a, emms, ud0
			return false
		}
		return !rep && in(0x40, 0x4f, 0x90, 0x9f, 0xa3, 0xa5, 0xab, 0xad, 0xaf, 0xb1, 0xb3, 0xb3, 0xb6, 0xb7, 0xbb, 0xbb, 0xbe, 0xc1) ||
			i.memSize() != 0 && in(0x10, 0x17, 0x28, 0x29, 0x2a, 0x2a, 0x2c, 0x2f, 0x51, 0x7f, 0xc2, 0xc6, 0xd1, 0xfe)
	}
	return false
}

// TestNativeUse runs examples of the corpus on this CPU and holds Flags, Mem
// and AppendTouches against what they do: only flags in Writes change, flags that
// are not in Reads make no difference, only touched bytes are written, and
// bytes that are not touched make no difference.
func TestNativeUse(t *testing.T) {
	n := newNative(t)
	rnd := rand.New(rand.NewPCG(*nativeSeed, 1))
	t.Logf("-native.seed=%d", *nativeSeed)
	base := n.base + arenaOff
	forms, runs := 0, 0
	readCorpus(t, func(l *line) {
		i, err := Decode(l.bytes)
		if err != nil || !harmless(&i) || t.Failed() {
			return
		}
		ran := 0
		for range 12 {
			code := slices.Clone(l.bytes)
			r := randomState(rnd, base)
			inside := base + arenaSize/4 + 64*uint64(rnd.IntN(8))
			if !n.prepareUse(rnd, &i, code, &r, inside) {
				continue
			}
			j, err := Decode(code)
			if err != nil {
				t.Fatalf("% x: %v", code, err)
			}
			if n.checkUse(t, rnd, &j, code, r) {
				ran++
			}
		}
		if ran > 0 {
			forms++
			runs += ran
		}
	})
	t.Logf("%d forms, %d runs", forms, runs)
	if forms < 1000 {
		t.Errorf("only %d forms were run", forms)
	}
}

// prepareUse makes the state fit the instruction.
func (n *native) prepareUse(rnd *rand.Rand, i *Inst, code []byte, r *Regs, inside uint64) bool {
	r.RBP = inside
	if op := i.Opcode; i.Map == Map0 && (op >= 0xa4 && op <= 0xa7 || op >= 0xaa && op <= 0xaf) {
		r.RSI, r.RDI, r.RCX = inside, inside+uint64(rnd.IntN(256)), uint64(rnd.IntN(9))
		return true
	}
	switch {
	case i.Map == Map0 && i.Opcode == 0xd7:
		r.RBX = inside
	case i.Map == Map0F && i.Opcode == 0xf7:
		r.RDI = inside
	case i.bitString():
		*r.Reg(Reg64(i.Reg() | i.reg)) = uint64(int64(rnd.IntN(4000) - 2000))
	}
	m, ok := i.Mem()
	if !ok || m.Access == AccessNone || m.Base == RSP {
		return true
	}
	return n.point(i, code, r, inside)
}

// use is the final state of a run.
type use struct {
	regs  Regs
	xmm   [16][16]byte
	arena [arenaSize]byte
}

// runUse runs the loaded instruction from r and the memory a.
func (n *native) runUse(r Regs, a *[arenaSize]byte) (u use) {
	copy(n.arena(), a[:])
	u.regs = n.run(r)
	u.xmm = n.st.outX
	copy(u.arena[:], n.arena())
	return u
}

// checkUse makes the runs and the comparisons; false if the instruction would
// leave the arena.
func (n *native) checkUse(t *testing.T, rnd *rand.Rand, i *Inst, code []byte, r Regs) bool {
	base := n.base + arenaOff
	touches, ok := i.AppendTouches(nil, n.test, &r)
	if !ok {
		t.Errorf("% x: touches unknown", code)
		return false
	}
	var touched, written [arenaSize]bool
	for _, m := range touches {
		if m.Addr < base || m.Addr+m.Size > base+arenaSize || m.Size > arenaSize {
			return false
		}
		if i.Map == Map0F && m.Size == 16 && m.Addr&15 != 0 {
			return false // #GP
		}
		for k := range m.Size {
			touched[m.Addr-base+k] = true
			written[m.Addr-base+k] = written[m.Addr-base+k] || m.Access&Write != 0
		}
	}
	var mem [arenaSize]byte
	for k := range mem {
		mem[k] = byte(rnd.Uint32())
	}
	for k := range n.st.inX {
		for j := range n.st.inX[k] {
			n.st.inX[k][j] = byte(rnd.Uint32())
		}
	}
	n.load(code)
	first := n.runUse(r, &mem)
	for k := range mem {
		if first.arena[k] != mem[k] && !written[k] {
			t.Errorf("% x: wrote at arena+%#x; touches %+v", code, k, touches)
			return true
		}
	}
	f := i.Flags()
	if d := (first.regs.RFLAGS ^ r.RFLAGS) &^ uint64(f.Writes); d != 0 {
		t.Errorf("% x: changed flags %#x; %+v", code, d, f)
	}

	// Other bytes elsewhere: the same result.
	other := mem
	for k := range other {
		if !touched[k] {
			other[k] = byte(rnd.Uint32())
		}
	}
	second := n.runUse(r, &other)
	for k := range mem {
		if !touched[k] {
			second.arena[k] = first.arena[k]
		}
	}
	if second.regs != first.regs || second.xmm != first.xmm || !bytes.Equal(second.arena[:], first.arena[:]) {
		t.Errorf("% x: reads more than %+v", code, touches)
	}

	// Other values of flags that are not read: the same result, except for flags that
	// are not written.
	r2 := r
	r2.RFLAGS ^= rnd.Uint64() & nativeFlags &^ uint64(f.Reads)
	third := n.runUse(r2, &mem)
	passed := (r.RFLAGS ^ r2.RFLAGS) &^ uint64(f.Writes)
	third.regs.RFLAGS ^= passed
	if f.Writes&FlagsStatus != 0 { // a shift by 0 writes none
		third.regs.RFLAGS = third.regs.RFLAGS&^uint64(f.Writes) | first.regs.RFLAGS&uint64(f.Writes)
	}
	if third != first {
		t.Errorf("% x: reads more flags than %#x", code, f.Reads)
	}
	return true
}
