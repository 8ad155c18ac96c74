//go:build linux && amd64

package bpf

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// sumTo adds up words.
func sumTo(count string) string {
	return `
	ldval r1, 0, 0
	mov r2, 0
	mov r0, 0
again:
	mov r3, r2
	lsh r3, 3
	add r3, r1
	ldxdw r4, [r3+0]
	add r0, r4
	add r2, 1
	jlt r2, ` + count + `, again
	exit`
}

// memoryPrograms read memory through computed pointers: a value of two times 4096
// bytes, each half with the same text without a zero, followed by one. The loop
// bounds of some come from the context, so that nothing is proven about them.
var memoryPrograms = []benchProgram{
	{name: "sum", src: sumTo("500")},
	{name: "sum-unbounded", src: "ldxdw r5, [r1+112]" + sumTo("r5")},
	{name: "fill", src: `
	ldxdw r5, [r1+112]
	ldval r1, 0, 0
	mov r2, 0
again:
	ldxb r4, [r1+0]
	stxb [r1+0], r4
	add r1, 1
	add r2, 1
	jlt r2, r5, again
	mov r0, 0
	exit`},
	{name: "memcmp", src: `
	ldxdw r5, [r1+112]
	ldval r1, 0, 0
	ldval r2, 0, 4096
	mov r0, 0
again:
	ldxb r3, [r1+0]
	ldxb r4, [r2+0]
	jne r3, r4, out
	add r1, 1
	add r2, 1
	add r0, 1
	jlt r0, r5, again
out:
	exit`},
	{name: "memcmp-index", src: `
	ldval r1, 0, 0
	ldval r2, 0, 4096
	mov r0, 0
again:
	mov r3, r1
	add r3, r0
	ldxb r3, [r3+0]
	mov r4, r2
	add r4, r0
	ldxb r4, [r4+0]
	jne r3, r4, out
	add r0, 1
	jlt r0, 500, again
out:
	exit`},
	{name: "strlen", src: `
	ldval r1, 0, 0
	mov r0, 0
again:
	ldxb r3, [r1+0]
	jeq r3, 0, out
	add r1, 1
	add r0, 1
	ja again
out:
	exit`},
	{name: "strlen-index", src: `
	ldval r1, 0, 0
	mov r0, -1
again:
	add r0, 1
	mov r3, r1
	add r3, r0
	ldxb r3, [r3+0]
	jne r3, 0, again
	exit`},
}

// translateUnchecked translates each operation to the instructions that do the same, with no
// check at all: registers where the program's are, machine addresses of values.
func translateUnchecked(p *Program) []byte {
	var a x86.Asm
	regs := [numRegs]reg64{x86.RAX, x86.RDI, x86.RSI, x86.RDX, x86.R9, x86.R8, x86.RBX, x86.R13, x86.R14, x86.R15, x86.RBP}
	places := make([]x86.Label, len(p.ops))
	for i := range places {
		places[i] = a.NewLabel()
	}
	alu := map[opc]func(a *x86.Asm, size int, dst, src x86.Arg){opMov: (*x86.Asm).Mov, opAdd: (*x86.Asm).Add, opXor: (*x86.Asm).Xor}
	jumps := map[opc]x86.Cond{opJeq: x86.CondE, opJne: x86.CondNE, opJlt: x86.CondB}
	for pc := range p.ops {
		a.Place(places[pc])
		o := &p.ops[pc]
		d, s := regs[o.dst], x86.Arg(imm(o.imm))
		if o.code&1 != 0 {
			s = regs[o.src]
		}
		switch kind := o.code &^ 3; {
		case p.slots[pc] == nil: // the second half of a wide one
		case o.code == opLoadImm:
			m, _, off, _ := mapImm(p.slots[pc])
			a.Mov(8, d, imm(p.maps[m].valueAddr(0)+uint64(off)))
		case o.code == opExit:
			a.Ret()
		case o.code == opJa:
			a.Jmp(places[o.off])
		case o.code < opJeq && kind == opLsh:
			a.Shl(8, d, s.(x86.Imm))
		case o.code < opJeq:
			alu[kind](&a, 8, d, s)
		case o.conditional():
			a.Cmp(8, d, s)
			a.Jcc(jumps[kind], places[o.off])
		case o.code == opStoreX:
			a.Mov(int(o.size), x86.At(d, int(o.off)), regs[o.src])
		default:
			a.Movzx(int(o.size), d, x86.At(regs[o.src], int(o.off)))
		}
	}
	return a.Code()
}

// BenchmarkMemory compares loops over memory with the same without any check. The
// figure of interest is the ratio of the two rows of a program.
func BenchmarkMemory(b *testing.B) {
	const turns = 500
	for _, c := range memoryPrograms {
		c.maps = []MapSpec{{Name: "value", Kind: Array, KeySize: 4, ValueSize: 8192, MaxEntries: 1}}
		for _, floor := range []bool{true, false} {
			name := c.name + "/compiled"
			if floor {
				name = c.name + "/unchecked"
			}
			b.Run(name, func(b *testing.B) {
				n := newNative(b)
				code, maps := c.load(b, n)
				text := make([]byte, 8192)
				for i := range text {
					text[i] = byte(i&4095%100 + 1)
				}
				text[turns], text[4096+turns] = 0, 0
				if err := maps[0].Update(make([]byte, 4), [][]byte{text}, 0); err != nil {
					b.Fatal(err)
				}
				ctx := alignedBytes(RegsSize)
				PutRegs(ctx, &x86.Regs{RDI: turns}, 8, 16)
				want, err := code.run(ctx)
				if err != nil {
					b.Fatal(err)
				}
				if floor {
					fast := translateUnchecked(code.p)
					at, err := n.Alloc(len(fast))
					if err != nil {
						b.Fatal(err)
					}
					copy(at.Bytes, fast)
					n.st.target = at.Addr
				}
				n.call()
				if got := n.st.out[x86.RAX]; got != want {
					b.Fatalf("%d, want %d", got, want)
				}
				for b.Loop() {
					n.call()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/turns, "ns/turn")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
