package bpf

// smallProgram makes a program of about n steps that only goes forward, and
// nearly always knows where it reads and writes.
func (g *gen) smallProgram(n int) []Insn {
	g.tame = true
	for r := R2; r <= R9; r++ {
		if g.n(2) == 0 {
			g.add(movK(r, g.imm()))
		}
	}
	g.add(movX(R6, R1))
	for off := int16(-64); off < 0 && g.n(32) > 0; off += 8 {
		g.add(Insn{Op: ClassST | ModeMEM | SizeDW, Dst: R10, Off: off, Imm: g.imm()})
	}
	var starts, hops []int
	for range n {
		if len(g.src) == 0 {
			break
		}
		pc := len(g.out)
		starts = append(starts, pc)
		if g.smallStep(); g.out[pc].isJump() {
			hops = append(hops, len(starts)-1)
		}
	}
	starts = append(starts, len(g.out))
	g.add(Insn{Op: OpExitK})
	// Jumps skip whole steps, or now and then a few slots.
	for _, i := range hops {
		j := &g.out[starts[i]]
		t := starts[min(i+1+int(j.Off)%4, len(starts)-1)]
		if j.Off == 8 {
			t = min(starts[i]+3, len(g.out)-1)
			if g.out[t] == (Insn{}) {
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
		i := Insn{Op: []Opcode{ClassALU, ClassALU64}[g.n(2)] | genALU[g.n(len(genALU))], Dst: g.ordinary()}
		if g.n(2) == 0 {
			i.Op |= SrcX
			i.Src = g.reg()
		} else {
			i.Imm = g.imm()
		}
		g.add(i)
	case 2:
		g.add(Insn{Op: ClassALU64 | OpNeg, Dst: g.ordinary()})
	case 3, 4:
		i := Insn{Op: []Opcode{ClassJMP, ClassJMP32}[g.n(2)] | genJumps[g.n(len(genJumps))], Dst: g.reg(), Imm: g.imm(), Off: int16(g.n(9))}
		if g.n(2) == 0 {
			i.Op |= SrcX
			i.Src, i.Imm = g.reg(), 0
		}
		g.add(i)
	case 5, 6:
		g.access(R10, int16(-8-8*g.n(7)))
		if last := &g.out[len(g.out)-1]; last.Class() == ClassLDX && last.Dst == R6 || last.Op&modeMask == ModeATOMIC {
			*last = movX(R8, R10)
		}
	case 7:
		r := g.ordinary()
		g.add(Insn{Op: ClassLDX | ModeMEM | genSizes[g.n(4)], Dst: r, Src: R6, Off: int16(g.n(RegsSize - 8))})
	case 8, 9:
		g.smallLookup()
	case 10:
		g.smallRing()
	case 11:
		switch g.n(6) {
		case 5:
			at := int16(-8 - 8*g.n(7))
			p, off := R6, int16(8*g.n(8))
			if g.n(3) == 0 {
				p, off = R10, -off-8
			}
			g.add(Insn{Op: ClassSTX | ModeMEM | SizeDW, Dst: R10, Src: p, Off: at})
			if g.n(2) == 0 {
				g.add(Insn{Op: ClassST | ModeMEM | genSizes[g.n(4)], Dst: R10, Off: -8 - 8*int16(g.n(7)), Imm: g.imm()})
			}
			g.add(Insn{Op: ClassLDX | ModeMEM | SizeDW, Dst: R5, Src: R10, Off: at})
			g.add(Insn{Op: ClassLDX | ModeMEM | SizeDW, Dst: g.ordinary(), Src: R5, Off: off})
		case 0:
			g.add(callK(HelperGetCPU))
		case 1:
			g.add(callK(HelperKtimeGetNS))
		case 2:
			g.add(callK(HelperGetFuncIP))
		case 3:
			g.add(wide(R9, ImmMapValue, int64(8*g.n(2))<<32)...)
			g.access(R9, int16(8*g.n(2)))
		case 4:
			g.add(wide(g.ordinary(), ImmConst, g.imm()<<20)...)
		}
	}
}

// ordinary is a register other than R6, which keeps the context's address.
func (g *gen) ordinary() Reg {
	if r := g.reg(); r != R6 {
		return r
	}
	return R5
}

// smallLookup uses an element of an array, whose number is known or not.
func (g *gen) smallLookup() {
	m := g.n(2)
	if g.n(3) > 0 {
		g.add(Insn{Op: ClassST | ModeMEM | SizeW, Dst: R10, Off: -4, Imm: int64(g.n(4))})
	} else {
		r := g.ordinary()
		g.add(Insn{Op: ClassALU64 | OpAnd, Dst: r, Imm: 3}, Insn{Op: ClassSTX | ModeMEM | SizeW, Dst: R10, Src: r, Off: -4})
	}
	g.add(movX(R2, R10), addK(R2, -4))
	g.add(wide(R1, ImmMapFD, int64(m))...)
	g.add(callK(HelperMapLookup))
	p, base := R0, int16(0)
	if g.n(3) == 0 {
		p = []Reg{R7, R8, R9}[g.n(3)]
		g.add(movX(p, R0))
	}
	g.add(Insn{Op: ClassJMP | OpJEQ, Dst: p, Off: 1 + int16(g.n(3))})
	if m == 0 && g.n(2) == 0 {
		base = -8
		g.add(addK(p, 8))
	}
	if g.n(4) == 0 { // by way of the frame
		at := int16(-8 - 8*g.n(7))
		g.add(Insn{Op: ClassSTX | ModeMEM | SizeDW, Dst: R10, Src: p, Off: at})
		g.add(Insn{Op: ClassLDX | ModeMEM | SizeDW, Dst: R9, Src: R10, Off: at})
		p = R9
	}
	if g.n(3) == 0 { // a count
		size := []Opcode{SizeW, SizeDW}[g.n(2)]
		add := Insn{Op: []Opcode{ClassALU, ClassALU64}[g.n(2)] | OpAdd, Dst: R1, Imm: g.imm()}
		if g.n(2) == 0 {
			add.Op, add.Src, add.Imm = add.Op|SrcX, g.reg(), 0
		}
		g.add(Insn{Op: ClassLDX | ModeMEM | size, Dst: R1, Src: p, Off: base}, add, Insn{Op: ClassSTX | ModeMEM | size, Dst: p, Src: R1, Off: base})
		if g.n(3) > 0 {
			g.add(movK(R1, g.imm()))
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
		g.add(movX(R2, R10), addK(R2, -64), movK(R3, size), movK(R4, 0))
		g.add(wide(R1, ImmMapFD, 5)...)
		g.add(callK(HelperRingOutput))
	case 1:
		g.add(movX(R4, R10), addK(R4, -size), movK(R5, size))
		g.add(wide(R2, ImmMapFD, 5)...)
		g.add(callK(HelperPerfEventOutput))
	case 2:
		g.add(movK(R2, size), movK(R3, 0))
		g.add(wide(R1, ImmMapFD, 5)...)
		g.add(callK(HelperRingReserve), movX(R7, R0), Insn{Op: ClassJMP | OpJEQ, Dst: R0, Off: 5},
			Insn{Op: ClassSTX | ModeMEM | SizeB, Dst: R7, Src: g.reg(), Off: int16(size - 1)},
			Insn{Op: ClassLDX | ModeMEM | SizeDW, Dst: R8, Src: R6, Off: offSI},
			Insn{Op: ClassSTX | ModeMEM | SizeB, Dst: R0, Src: R8},
			movX(R1, R7), callK([]Helper{HelperRingSubmit, HelperRingDiscard}[g.n(2)]))
	}
}
