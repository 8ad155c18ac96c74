package bpftest

import "github.com/guestprobe/guestprobe/probe/bpf"

// smallProgram makes a program of about n steps that only goes forward, and
// nearly always knows where it reads and writes.
func (g *gen) smallProgram(n int) []bpf.Insn {
	g.tame = true
	for r := bpf.R2; r <= bpf.R9; r++ {
		if g.n(2) == 0 {
			g.add(movK(r, g.imm()))
		}
	}
	g.add(movX(bpf.R6, bpf.R1))
	for off := int16(-64); off < 0 && g.n(32) > 0; off += 8 {
		g.add(bpf.Insn{Op: bpf.ClassST | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R10, Off: off, Imm: g.imm()})
	}
	var starts, hops []int
	for range n {
		if len(g.src) == 0 {
			break
		}
		pc := len(g.out)
		starts = append(starts, pc)
		if g.smallStep(); isJump(g.out[pc]) {
			hops = append(hops, len(starts)-1)
		}
	}
	starts = append(starts, len(g.out))
	g.add(bpf.Insn{Op: bpf.OpExitK})
	// Jumps skip whole steps, or now and then a few slots.
	for _, i := range hops {
		j := &g.out[starts[i]]
		t := starts[min(i+1+int(j.Off)%4, len(starts)-1)]
		if j.Off == 8 {
			t = min(starts[i]+3, len(g.out)-1)
			if g.out[t] == (bpf.Insn{}) {
				t++ // out of the middle of a 64-bit immediate
			}
		}
		j.Off = int16(t - starts[i] - 1)
	}
	return g.out
}

func (g *gen) smallStep() {
	switch g.n(12) {
	case 0, 1:
		i := bpf.Insn{Op: []bpf.Opcode{bpf.ClassALU, bpf.ClassALU64}[g.n(2)] | genALU[g.n(len(genALU))], Dst: g.ordinary()}
		if g.n(2) == 0 {
			i.Op |= bpf.SrcX
			i.Src = g.reg()
		} else {
			i.Imm = g.imm()
		}
		g.add(i)
	case 2:
		g.add(bpf.Insn{Op: bpf.ClassALU64 | bpf.OpNeg, Dst: g.ordinary()})
	case 3, 4:
		i := bpf.Insn{Op: []bpf.Opcode{bpf.ClassJMP, bpf.ClassJMP32}[g.n(2)] | genJumps[g.n(len(genJumps))], Dst: g.reg(), Imm: g.imm(), Off: int16(g.n(9))}
		if g.n(2) == 0 {
			i.Op |= bpf.SrcX
			i.Src, i.Imm = g.reg(), 0
		}
		g.add(i)
	case 5, 6:
		g.access(bpf.R10, int16(-8-8*g.n(7)))
		if last := &g.out[len(g.out)-1]; last.Class() == bpf.ClassLDX && last.Dst == bpf.R6 || isAtomic(last.Op) {
			*last = movX(bpf.R8, bpf.R10)
		}
	case 7:
		r := g.ordinary()
		g.add(bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | genSizes[g.n(4)], Dst: r, Src: bpf.R6, Off: int16(g.n(bpf.RegsSize - 8))})
	case 8, 9:
		g.smallLookup()
	case 10:
		g.smallRing()
	case 11:
		switch g.n(6) {
		case 5:
			at := int16(-8 - 8*g.n(7))
			p, off := bpf.R6, int16(8*g.n(8))
			if g.n(3) == 0 {
				p, off = bpf.R10, -off-8
			}
			g.add(bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R10, Src: p, Off: at})
			if g.n(2) == 0 {
				g.add(bpf.Insn{Op: bpf.ClassST | bpf.ModeMEM | genSizes[g.n(4)], Dst: bpf.R10, Off: -8 - 8*int16(g.n(7)), Imm: g.imm()})
			}
			g.add(bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R5, Src: bpf.R10, Off: at})
			g.add(bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | bpf.SizeDW, Dst: g.ordinary(), Src: bpf.R5, Off: off})
		case 0:
			g.add(callK(bpf.HelperGetCPU))
		case 1:
			g.add(callK(bpf.HelperKtimeGetNS))
		case 2:
			g.add(callK(bpf.HelperGetFuncIP))
		case 3:
			g.add(wide(bpf.R9, bpf.ImmMapValue, int64(8*g.n(2))<<32)...)
			g.access(bpf.R9, int16(8*g.n(2)))
		case 4:
			g.add(wide(g.ordinary(), bpf.ImmConst, g.imm()<<20)...)
		}
	}
}

// ordinary is a register other than R6, which keeps the context's address.
func (g *gen) ordinary() bpf.Reg {
	if r := g.reg(); r != bpf.R6 {
		return r
	}
	return bpf.R5
}

// smallLookup uses an element of an array, whose number is known or not.
func (g *gen) smallLookup() {
	m := g.n(2)
	if g.n(3) > 0 {
		g.add(bpf.Insn{Op: bpf.ClassST | bpf.ModeMEM | bpf.SizeW, Dst: bpf.R10, Off: -4, Imm: int64(g.n(4))})
	} else {
		r := g.ordinary()
		g.add(bpf.Insn{Op: bpf.ClassALU64 | bpf.OpAnd, Dst: r, Imm: 3}, bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | bpf.SizeW, Dst: bpf.R10, Src: r, Off: -4})
	}
	g.add(movX(bpf.R2, bpf.R10), addK(bpf.R2, -4))
	g.add(wide(bpf.R1, bpf.ImmMapFD, int64(m))...)
	g.add(callK(bpf.HelperMapLookup))
	p, base := bpf.R0, int16(0)
	if g.n(3) == 0 {
		p = []bpf.Reg{bpf.R7, bpf.R8, bpf.R9}[g.n(3)]
		g.add(movX(p, bpf.R0))
	}
	g.add(bpf.Insn{Op: bpf.ClassJMP | bpf.OpJEQ, Dst: p, Off: 1 + int16(g.n(3))})
	if m == 0 && g.n(2) == 0 {
		base = -8
		g.add(addK(p, 8))
	}
	if g.n(4) == 0 { // by way of the frame
		at := int16(-8 - 8*g.n(7))
		g.add(bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R10, Src: p, Off: at})
		g.add(bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R9, Src: bpf.R10, Off: at})
		p = bpf.R9
	}
	if g.n(3) == 0 { // a count
		size := []bpf.Opcode{bpf.SizeW, bpf.SizeDW}[g.n(2)]
		add := bpf.Insn{Op: []bpf.Opcode{bpf.ClassALU, bpf.ClassALU64}[g.n(2)] | bpf.OpAdd, Dst: bpf.R1, Imm: g.imm()}
		if g.n(2) == 0 {
			add.Op, add.Src, add.Imm = add.Op|bpf.SrcX, g.reg(), 0
		}
		g.add(bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | size, Dst: bpf.R1, Src: p, Off: base}, add, bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | size, Dst: p, Src: bpf.R1, Off: base})
		if g.n(3) > 0 {
			g.add(movK(bpf.R1, g.imm()))
		}
		return
	}
	g.access(p, base)
	if g.n(2) == 0 && m == 0 {
		g.access(p, base+8)
	}
}

// smallRing makes a record.
func (g *gen) smallRing() {
	size := int64(8 * (1 + g.n(8)))
	if g.n(4) == 0 {
		size -= int64(g.n(8))
	}
	switch g.n(3) {
	case 0:
		g.add(movX(bpf.R2, bpf.R10), addK(bpf.R2, -64), movK(bpf.R3, size), movK(bpf.R4, 0))
		g.add(wide(bpf.R1, bpf.ImmMapFD, 5)...)
		g.add(callK(bpf.HelperRingOutput))
	case 1:
		g.add(movX(bpf.R4, bpf.R10), addK(bpf.R4, -size), movK(bpf.R5, size))
		g.add(wide(bpf.R2, bpf.ImmMapFD, 5)...)
		g.add(callK(bpf.HelperPerfEventOutput))
	case 2:
		g.add(movK(bpf.R2, size), movK(bpf.R3, 0))
		g.add(wide(bpf.R1, bpf.ImmMapFD, 5)...)
		g.add(callK(bpf.HelperRingReserve), movX(bpf.R7, bpf.R0), bpf.Insn{Op: bpf.ClassJMP | bpf.OpJEQ, Dst: bpf.R0, Off: 5},
			bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | bpf.SizeB, Dst: bpf.R7, Src: g.reg(), Off: int16(size - 1)},
			bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R8, Src: bpf.R6, Off: 13 * 8}, // pt_regs.si
			bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | bpf.SizeB, Dst: bpf.R0, Src: bpf.R8},
			movX(bpf.R1, bpf.R7), callK([]bpf.Helper{bpf.HelperRingSubmit, bpf.HelperRingDiscard}[g.n(2)]))
	}
}

// isAtomic reports whether an opcode is an atomic operation.
func isAtomic(op bpf.Opcode) bool { return op&0xe7 == bpf.ClassSTX|bpf.ModeATOMIC }
