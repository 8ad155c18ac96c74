package program

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// entryArgs is where the six arguments stand in struct pt_regs, in the order of
// bpf.PutEntry.
var entryArgs = [...]int32{112, 104, 96, 88, 72, 64}

// Where the clock is in a run block (docs/programs.md, "In the guest").
const (
	blockTSC  = 80
	blockMult = 88
	blockTime = 96
)

// entry makes the machine code that keeps, at a function's entry, what the program
// at its return reads of bpf.PutEntry. It is nil when that reads nothing.
// Time is computed as ktime_get_ns does.
func (b *blocks) entry() *probe.Stage {
	reads := b.info.ContextReads >> (bpf.RegsSize / 8)
	if reads == 0 {
		return nil
	}
	s := &probe.Stage{NoStrings: true, Stack: 16, Block: guest.GVA(b.area.Addr), Stride: uint64(b.stride)}
	code := []byte{0x51, 0x52, 0x48, 0x89, 0xd1} // push %rcx; push %rdx; mov %rdx, %rcx
	if reads&1 != 0 {
		code = append(code,
			0x0f, 0x31, // rdtsc
			0x48, 0xc1, 0xe2, 0x20, // shl $32, %rdx
			0x48, 0x09, 0xd0, // or %rdx, %rax
			0x48, 0x2b, 0x46, blockTSC, // sub blockTSC(%rsi), %rax
			0x48, 0xf7, 0x66, blockMult, // mulq blockMult(%rsi)
			0x48, 0x0f, 0xac, 0xd0, 0x20, // shrd $32, %rdx, %rax
			0x48, 0x03, 0x46, blockTime, // add blockTime(%rsi), %rax
			0x48, 0x89, 0x01) // mov %rax, (%rcx)
	}
	for i, off := range entryArgs {
		if reads>>(i+1)&1 == 0 {
			continue
		}
		s.Reads |= 1 << (off / 8)
		code = append(code, 0x48, 0x8b, 0x87) // mov off(%rdi), %rax
		code = binary.LittleEndian.AppendUint32(code, uint32(off))
		code = append(code, 0x48, 0x89, 0x41, byte(8*(i+1))) // mov %rax, 8(i+1)(%rcx)
	}
	s.Code = append(code, 0x31, 0xc0, 0x5a, 0x59, 0xc3) // xor %eax, %eax; pop %rdx; pop %rcx; ret
	return s
}
