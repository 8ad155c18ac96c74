package bpf

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// The data that a function's entry stores for the program at its return, after struct
// pt_regs: the time, as of ktime_get_ns, and then the first six integer arguments, 8
// bytes each. EntryCode and PutEntry write it.
const (
	entryTime = 0
	entryArgs = 8
	EntrySize = entryArgs + 8*len(x86.CallArgs)
)

// PutEntry writes that data to dst, which has at least EntrySize bytes.
func PutEntry(dst []byte, now uint64, r *x86.Regs) {
	dst = dst[:EntrySize]
	binary.LittleEndian.PutUint64(dst[entryTime:], now)
	for i, v := range r.Args() {
		binary.LittleEndian.PutUint64(dst[entryArgs+8*i:], v)
	}
}

// EntryStack is how many bytes of the interrupted code's stack EntryCode uses,
// return address excluded.
const EntryStack = 16

// EntryCode is PutEntry as machine code, which writes only the data that the program
// at the return reads: i is the Info of that program. The code is a function as
// Compile makes them, whose R0 is 0, except that RDX is the address to write to.
// reads has bit n set if it reads the 8 bytes at 8n of struct pt_regs. If nothing is
// read, code is empty.
func (i *Info) EntryCode() (code []byte, reads uint32) {
	const rax, rcx, rdx, rsi, rdi = x86.RAX, x86.RCX, x86.RDX, x86.RSI, x86.RDI
	wants := i.ContextReads >> (RegsSize / 8)
	if wants == 0 {
		return nil, 0
	}
	var a x86.Asm
	a.Push(rcx)
	a.Push(rdx)
	a.Mov(8, rcx, rdx)
	if wants&1 != 0 {
		ktime(&a, rsi)
		a.Mov(8, x86.At(rcx, entryTime), rax)
	}
	for i, off := range x86.CallArgs {
		if wants>>(i+1)&1 != 0 {
			reads |= 1 << (off / 8)
			a.Mov(8, rax, x86.At(rdi, off))
			a.Mov(8, x86.At(rcx, entryArgs+8*i), rax)
		}
	}
	a.Xor(4, rax, rax)
	a.Pop(rdx)
	a.Pop(rcx)
	a.Ret()
	return a.Code(), reads
}
