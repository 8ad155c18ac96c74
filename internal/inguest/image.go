package inguest

import (
	"debug/elf"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Where the guest's three segments are.
const (
	kernelVA = 0xffffffff80100000
	kernelPA = 0x100000
	userVA   = 0x10000000 // after the guest's RAM
	userPA   = 0x101000
	dataVA   = 0x10010000 // the mailbox's address, and the user stack
	dataPA   = 0x110000
	dataSize = 64 << 10
)

// The mailbox, in memory that host and guest share. At CPL3 the host fills in
// target and registers and increments request; the guest calls the target, and
// sets done to request. At CPL0 enter is called with the mailbox's address
// instead.
const (
	boxRequest = 0
	boxDone    = 8
	boxTarget  = 16
	boxIn      = 64  // 16 registers in the CPU's numbering, RSP unused
	boxOut     = 192 // the same, as the target left them
	boxSize    = 320
)

// enterCode appends a function: RDI points to the mailbox; it loads the
// registers, calls the target, stores the registers and returns RAX. It
// preserves the registers that a function must preserve.
func enterCode(a *x86.Asm) {
	const rcx, rsp, rdi = x86.RCX, x86.RSP, x86.RDI
	kept := []x86.Reg64{x86.RBX, x86.RBP, x86.R12, x86.R13, x86.R14, x86.R15, rdi}
	others := func(f func(r x86.Reg64, i int)) {
		for r := x86.RAX; r <= x86.R15; r++ {
			if r != rsp && r != rdi {
				f(r, 8*int(r))
			}
		}
	}
	for _, r := range kept {
		a.Push(r)
	}
	a.Push(x86.At(rdi, boxTarget))
	others(func(r x86.Reg64, i int) { a.Mov(8, r, x86.At(rdi, boxIn+i)) })
	a.Mov(8, rdi, x86.At(rdi, boxIn+8*int(rdi)))
	a.CallAt(x86.At(rsp, 0))
	a.Push(rdi)
	a.Mov(8, rdi, x86.At(rsp, 16))
	others(func(r x86.Reg64, i int) { a.Mov(8, x86.At(rdi, boxOut+i), r) })
	a.Pop(rcx)
	a.Mov(8, x86.At(rdi, boxOut+8*int(rdi)), rcx)
	a.Pop(rcx) // the target
	for i := len(kept) - 1; i >= 0; i-- {
		a.Pop(kept[i])
	}
	a.Ret()
}

// kernelCode returns the code that runs at CPL0 from the ELF entry, and the
// address of enter in it. The command line says at which privilege level
// programs run.
func kernelCode() (code []byte, enter guest.GVA) {
	const rax = x86.RAX
	a := x86.NewAsm(kernelVA)
	user := a.NewLabel()
	a.Mov(8, rax, x86.At(x86.RDI, guest.BootInfoCmdline))
	a.Cmp(1, x86.At(rax, 0), x86.Imm('3'))
	a.Jcc(x86.CondE, user)
	a.Cli()
	wait := a.LabelHere() // a safe point
	a.Hlt()
	a.Jmp(wait)
	a.Place(user)
	a.Push(x86.Imm(guest.SelUserData))
	a.Mov(8, rax, x86.Imm(dataVA+dataSize))
	a.Push(rax)
	a.Push(x86.Imm(x86.Flag1 | x86.FlagIF)) // without IF Bochs keeps its own interrupts waiting
	a.Push(x86.Imm(guest.SelUserCode))
	a.Mov(8, rax, x86.Imm(userVA))
	a.Push(rax)
	a.Iretq()
	enter = guest.GVA(a.PC())
	enterCode(a)
	return a.Code(), enter
}

// userCode returns the code that runs at CPL3: it waits for requests.
func userCode() []byte {
	const rax, rbx = x86.RAX, x86.RBX
	var a x86.Asm
	call := a.NewLabel()
	a.Mov(8, rbx, x86.Imm(dataVA))
	a.Mov(8, rbx, x86.At(rbx, 0))
	again := a.LabelHere()
	a.Pause()
	a.Mov(8, rax, x86.At(rbx, boxRequest))
	a.Cmp(8, rax, x86.At(rbx, boxDone))
	a.Jcc(x86.CondE, again)
	a.Mov(8, x86.RDI, rbx)
	a.Call(call)
	a.Mov(8, rax, x86.At(rbx, boxRequest))
	a.Mov(8, x86.At(rbx, boxDone), rax)
	a.Jmp(again)
	a.Place(call)
	enterCode(&a)
	return a.Code()
}

// newImage makes the guest's image: an ELF file with only three segments.
func newImage() (img *guest.Image, enter guest.GVA, err error) {
	kernel, enter := kernelCode()
	f := elfbuild.File{Entry: kernelVA, Segments: []elfbuild.Segment{
		{VAddr: kernelVA, PAddr: kernelPA, Flags: elf.PF_R | elf.PF_X, Data: kernel},
		{VAddr: userVA, PAddr: userPA, Flags: elf.PF_R | elf.PF_X | guest.PFUser, Data: userCode()},
		{VAddr: dataVA, PAddr: dataPA, Flags: elf.PF_R | elf.PF_W | guest.PFUser, Data: make([]byte, 8), MemSize: dataSize},
	}}
	if img, err = f.Image(); err != nil {
		return nil, 0, fmt.Errorf("guest for programs: %w", err)
	}
	return img, enter, nil
}
