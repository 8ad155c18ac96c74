package bpftest

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// smallProgram makes a program of about n steps that mostly runs forward, and
// nearly always knows the addresses that it reads and writes.
func (g *gen) smallProgram(n int) {
	g.tame = true
	g.start()
	for off := int16(-64); off < 0 && g.n(32) > 0; off += 8 {
		g.add(store(asm.R10, off, asm.DWord, g.imm()))
	}
	type hop struct{ jump, from, far int }
	var hops []hop
	var starts []int
	for range n {
		if len(g.src) == 0 {
			break
		}
		starts = append(starts, len(g.out))
		if k := g.n(12); k == 3 || k == 4 {
			hops = append(hops, hop{len(g.jumps), len(starts) - 1, g.n(9)})
			g.jumpTo(g.addOperand(jumpIf(pick(g, genJumps...), g.n(2) == 0, g.reg())), -1)
		} else {
			g.smallStep(k)
		}
	}
	starts = append(starts, len(g.out))
	g.exit(0)
	// Jumps skip whole steps, or now and then a few instructions.
	for _, h := range hops {
		to := starts[min(h.from+1+h.far%4, len(starts)-1)]
		if h.far == 8 {
			to = min(starts[h.from]+3, len(g.out)-1)
		}
		g.jumps[h.jump].to = to
	}
}

func (g *gen) smallStep(kind int) {
	switch kind {
	case 0, 1:
		g.add(g.addOperand(alu(pick(g, genALU...), g.n(2) == 0, g.ordinaryReg())))
	case 2:
		g.add(asm.Neg.Imm(g.ordinaryReg(), 0))
	case 5, 6:
		g.access(asm.R10, int16(-8-8*g.n(7)))
		if last := &g.out[len(g.out)-1]; last.OpCode.Class() == asm.LdXClass && last.Dst == asm.R6 || last.OpCode.AtomicOp() != asm.InvalidAtomic {
			*last = asm.Mov.Reg(asm.R8, asm.R10)
		}
	case 7:
		g.add(asm.LoadMem(g.ordinaryReg(), asm.R6, int16(g.n(bpf.RegsSize-8)), pick(g, genSizes...)))
	case 8, 9:
		g.smallLookup()
	case 10:
		g.smallRing()
	default:
		g.smallOther()
	}
}

func (g *gen) smallOther() {
	switch g.n(9) {
	case 8:
		g.add(call(bpf.HelperGetAttachCookie))
	case 0:
		g.add(call(bpf.HelperGetCPU))
	case 1:
		g.add(call(bpf.HelperKtimeGetNS))
	case 2:
		g.add(call(bpf.HelperGetFuncIP))
	case 3:
		g.add(asm.LoadMapValue(asm.R9, arrayMap, uint32(8*g.n(2))))
		g.access(asm.R9, int16(8*g.n(2)))
	case 4:
		g.add(asm.LoadImm(g.ordinaryReg(), int64(g.imm())<<20, asm.DWord))
	case 5:
		at := int16(-8 - 8*g.n(7))
		p, off := asm.R6, int16(8*g.n(8))
		if g.n(3) == 0 {
			p, off = asm.R10, -off-8
		}
		g.add(asm.StoreMem(asm.R10, at, p, asm.DWord))
		if g.n(2) == 0 {
			g.add(store(asm.R10, -8-8*int16(g.n(7)), pick(g, genSizes...), g.imm()))
		}
		g.add(asm.LoadMem(asm.R5, asm.R10, at, asm.DWord), asm.LoadMem(g.ordinaryReg(), asm.R5, off, asm.DWord))
	default:
		g.useKnownIndex()
	}
}

// ordinaryReg is a register other than R6, which keeps the context's address.
func (g *gen) ordinaryReg() asm.Register {
	if r := g.reg(); r != asm.R6 {
		return r
	}
	return asm.R5
}

// smallLookup uses an element of an array, whose number is known or not.
func (g *gen) smallLookup() {
	m := pick(g, arrayMap, perCPUMap)
	if g.n(3) > 0 {
		g.add(store(asm.R10, -4, asm.Word, int32(g.n(4))))
	} else {
		r := g.ordinaryReg()
		g.add(asm.And.Imm(r, 3), asm.StoreMem(asm.R10, -4, r, asm.Word))
	}
	g.add(asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, m), call(bpf.HelperMapLookup))
	p, base := asm.R0, int16(0)
	if g.n(3) == 0 {
		p = pick(g, asm.R7, asm.R8, asm.R9)
		g.add(asm.Mov.Reg(p, asm.R0))
	}
	g.null(p, 1+g.n(3))
	if m == arrayMap && g.n(2) == 0 {
		base = -8
		g.add(asm.Add.Imm(p, 8))
	}
	if g.n(4) == 0 { // by way of the frame
		at := int16(-8 - 8*g.n(7))
		g.add(asm.StoreMem(asm.R10, at, p, asm.DWord), asm.LoadMem(asm.R9, asm.R10, at, asm.DWord))
		p = asm.R9
	}
	if g.n(3) == 0 { // a count
		size := pick(g, asm.Word, asm.DWord)
		g.add(asm.LoadMem(asm.R1, p, base, size), g.addOperand(alu(asm.Add, g.n(2) == 0, asm.R1)), asm.StoreMem(p, base, asm.R1, size))
		if g.n(3) > 0 {
			g.add(asm.Mov.Imm(asm.R1, g.imm()))
		}
		return
	}
	g.access(p, base)
	if g.n(2) == 0 && m == arrayMap {
		g.access(p, base+8)
	}
}

// smallRing makes a record.
func (g *gen) smallRing() {
	size := int32(8 * (1 + g.n(8)))
	if g.n(4) == 0 {
		size -= int32(g.n(8))
	}
	switch g.n(3) {
	case 0:
		g.add(asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -64), asm.Mov.Imm(asm.R3, size), asm.Mov.Imm(asm.R4, 0),
			asm.LoadMapPtr(asm.R1, ringMap), call(bpf.HelperRingOutput))
	case 1:
		g.add(asm.Mov.Reg(asm.R4, asm.R10), asm.Add.Imm(asm.R4, -size), asm.Mov.Imm(asm.R5, size),
			asm.LoadMapPtr(asm.R2, ringMap), call(bpf.HelperPerfEventOutput))
	case 2:
		g.add(asm.Mov.Imm(asm.R2, size), asm.Mov.Imm(asm.R3, 0), asm.LoadMapPtr(asm.R1, ringMap), call(bpf.HelperRingReserve), asm.Mov.Reg(asm.R7, asm.R0))
		g.null(asm.R0, 5)
		g.add(asm.StoreMem(asm.R7, int16(size-1), g.reg(), asm.Byte),
			asm.LoadMem(asm.R8, asm.R6, 13*8, asm.DWord), // pt_regs.si
			asm.StoreMem(asm.R0, 0, asm.R8, asm.Byte),
			asm.Mov.Reg(asm.R1, asm.R7), call(pick(g, bpf.HelperRingSubmit, bpf.HelperRingDiscard)))
	}
}
