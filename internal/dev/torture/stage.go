package torture

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// stage makes handlers that run in the guest: each counts, and also does
// something unusual that engine code is allowed to do.
func (w *work) stage() (*probe.Stage, error) {
	const stride = 64
	cpus := w.t.o.VCPUs
	at, b, err := w.t.m.AllocShared(stride*(cpus+1), true)
	if err != nil {
		return nil, err
	}
	words := guest.AtomicWords(b)
	lost := &words[cpus*stride/8]
	s := &probe.Stage{Block: at, Stride: stride, Lost: at + guest.GVA(cpus*stride), NoStrings: true, Aligned: true}
	s.Counts = func(cpu int) (handled, filtered, missed uint64) {
		n := words[cpu*stride/8].Load()
		if cpu == 0 {
			missed = lost.Load()
		}
		return n, 0, missed
	}
	var a x86.Asm
	const rax, rcx, rdi, rsi, rsp = x86.RAX, x86.RCX, x86.RDI, x86.RSI, x86.RSP
	a.Lock().Inc(8, x86.At(rsi, 0))
	switch w.IntN(6) {
	case 0: // deep into the stack
		depth := 64 * (1 + w.IntN(16))
		s.Stack = depth + 16
		a.Push(rcx)
		a.Lea(8, rsp, x86.At(rsp, -depth))
		a.Mov(8, x86.At(rsp, 0), rcx)
		a.Mov(8, x86.At(rsp, depth-8), rdi)
		a.Lea(8, rsp, x86.At(rsp, depth))
		a.Pop(rcx)
	case 1: // a string instruction, on the stack
		s.Stack, s.NoStrings = 128, false
		a.Push(rcx)
		a.Push(rdi)
		a.Lea(8, rdi, x86.At(rsp, -64))
		a.Mov(4, rcx, x86.Imm(5))
		a.Append([]byte{0xf3, 0xaa}) // rep stosb
		a.Pop(rdi)
		a.Pop(rcx)
	case 2: // the guest's memory, wherever a register points
		s.Reads = 1 << (x86.PtReg(x86.RDI) / 8)
		s.Aligned = false
		a.Mov(8, rax, x86.At(rdi, x86.PtReg(x86.RDI)))
		fault := a.Len()
		a.Mov(8, rax, x86.At(rax, w.IntN(8)))
		s.Fixups = []probe.Fixup{{Fault: fault, Resume: a.Len()}}
	case 3: // an access that is not aligned
		s.Aligned = false
		a.Mov(8, x86.At(rsi, 9+w.IntN(7)), rax)
	case 4: // all of the context
		s.Reads = 1<<(x86.PtRegsSize/8) - 1
		for off := 0; off < x86.PtRegsSize; off += 8 {
			a.Mov(8, rax, x86.At(rdi, off))
		}
	}
	a.Ret()
	s.Code = a.Code()
	return s, nil
}
