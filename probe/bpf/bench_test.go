package bpf

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// benchLoop is a mix of what programs do: arithmetic, context and stack
// accesses, jumps. One turn is 12 instructions.
const benchLoop = `
	mov r6, r1
	mov r7, 1000
	mov r0, 0
again:
	ldxdw r2, [r6+112]
	ldxdw r3, [r6+104]
	add r2, r3
	stxdw [r10-8], r2
	ldxdw r4, [r10-8]
	and32 r4, 0xff
	xor r0, r4
	lsh r4, 3
	jgt r4, r7, skip
	add r0, r4
skip:
	sub r7, 1
	jne r7, 0, again
	exit`

func benchContext() []byte {
	ctx := alignedBytes(RegsSize)
	PutRegs(ctx, &x86.Regs{RDI: 3, RSI: 4}, 8, 16)
	return ctx
}

// BenchmarkInterpreter reports the cost of one interpreted instruction.
func BenchmarkInterpreter(b *testing.B) {
	p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(b, benchLoop)})
	if err != nil {
		b.Fatal(err)
	}
	v, ctx := NewVM(p, 0), benchContext()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Run(ctx, NoEnv{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/12000, "ns/insn")
}

// BenchmarkCount is one run of a program that counts into a per-CPU array.
func BenchmarkCount(b *testing.B) {
	m, err := NewMap(MapSpec{Name: "hits", Kind: PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1}, 2, Heap{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(b, countProgram), Maps: []*Map{m}})
	if err != nil {
		b.Fatal(err)
	}
	v, ctx := NewVM(p, 1), benchContext()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Run(ctx, NoEnv{}); err != nil {
			b.Fatal(err)
		}
	}
}

const countProgram = `
	stw [r10-4], 0
	mov r2, r10
	add r2, -4
	ldmap r1, 0
	call 1
	jeq r0, 0, out
	ldxdw r1, [r0+0]
	add r1, 1
	stxdw [r0+0], r1
out:
	mov r0, 0
	exit`

// filterProgram rejects hits with a small third argument.
const filterProgram = `
	ldxdw r2, [r1+96]
	mov r0, 1
	jgt r2, 100, out
	mov r0, 0
out:
	exit`

// recordProgram writes a record of the time and six arguments.
const recordProgram = `
	mov r6, r1
	mov r2, 64
	mov r3, 0
	ldmap r1, 0
	call 131
	jeq r0, 0, out
	mov r7, r0
	call 5
	stxdw [r7+0], r0
	ldxdw r1, [r6+112]
	stxdw [r7+8], r1
	ldxdw r1, [r6+104]
	stxdw [r7+16], r1
	ldxdw r1, [r6+96]
	stxdw [r7+24], r1
	ldxdw r1, [r6+88]
	stxdw [r7+32], r1
	ldxdw r1, [r6+72]
	stxdw [r7+40], r1
	ldxdw r1, [r6+64]
	stxdw [r7+48], r1
	mov r1, r7
	mov r2, 0
	call 132
out:
	mov r0, 0
	exit`

// hashCountProgram counts by a key, the first argument.
const hashCountProgram = `
	ldxdw r6, [r1+112]
	stxw [r10-4], r6
	mov r2, r10
	add r2, -4
	ldmap r1, 0
	call 1
	jne r0, 0, found
	stdw [r10-16], 1
	mov r2, r10
	add r2, -4
	mov r3, r10
	add r3, -16
	mov r4, 0
	ldmap r1, 0
	call 2
	mov r0, 0
	exit
found:
	mov r1, 1
	lock add [r0+0], r1
	mov r0, 0
	exit`

// outputProgram makes a record on the stack and copies it into the ring.
const outputProgram = `
	mov r6, r1
	call 5
	stxdw [r10-56], r0
	ldxdw r1, [r6+112]
	stxdw [r10-48], r1
	ldxdw r1, [r6+104]
	stxdw [r10-40], r1
	ldxdw r1, [r6+96]
	stxdw [r10-32], r1
	ldxdw r1, [r6+88]
	stxdw [r10-24], r1
	ldxdw r1, [r6+72]
	stxdw [r10-16], r1
	ldxdw r1, [r6+64]
	stxdw [r10-8], r1
	ldmap r1, 0
	mov r2, r10
	add r2, -56
	mov r3, 56
	mov r4, 0
	call 130
	mov r0, 0
	exit`

// readProgram makes a record of the word that the first argument points to.
const readProgram = `
	mov r6, r1
	ldxdw r3, [r6+112]
	mov r1, r10
	add r1, -8
	mov r2, 8
	call 113
	jne r0, 0, out
	ldmap r1, 0
	mov r2, r10
	add r2, -8
	mov r3, 8
	mov r4, 0
	call 130
out:
	mov r0, 0
	exit`
