package inguest

import (
	"debug/elf"
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/elfbuild"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Where the guest's three segments are.
const (
	kernelVA = 0xffffffff80100000
	kernelPA = 0x100000
	userVA   = 0x10000000 // behind the guest's RAM
	userPA   = 0x101000
	dataVA   = 0x10010000 // the mailbox's address, and the user stack
	dataPA   = 0x110000
	dataSize = 64 << 10
)

// The mailbox, in memory that host and guest share. At CPL3 the host fills in
// target and registers and increments request; the guest calls, and makes done
// equal to request. At CPL0 enter is called with the mailbox's address instead.
const (
	boxRequest = 0
	boxDone    = 8
	boxTarget  = 16
	boxIn      = 64  // 16 registers in the CPU's numbering, RSP unused
	boxOut     = 192 // the same, as the target left them
	boxSize    = 320
)

// enterCode is a function, the same at any address: RDI points to the mailbox;
// it loads the registers, calls the target, stores the registers and returns
// RAX. It keeps what a function must.
func enterCode() []byte {
	var b []byte
	kept := []insn.Reg64{insn.RBX, insn.RBP, insn.R12, insn.R13, insn.R14, insn.R15, insn.RDI}
	for _, r := range kept {
		b = insn.AppendPush(b, r)
	}
	b = append(b, 0xff, 0x77, boxTarget) // push boxTarget(%rdi)
	for r := insn.RAX; r <= insn.R15; r++ {
		if r != insn.RSP && r != insn.RDI {
			b = insn.AppendLoad(b, r, insn.RDI, boxIn+8*int32(r))
		}
	}
	b = insn.AppendLoad(b, insn.RDI, insn.RDI, boxIn+8*int32(insn.RDI))
	b = append(b, 0xff, 0x14, 0x24) // call *(%rsp)
	b = insn.AppendPush(b, insn.RDI)
	b = insn.AppendLoad(b, insn.RDI, insn.RSP, 16)
	for r := insn.RAX; r <= insn.R15; r++ {
		if r != insn.RSP && r != insn.RDI {
			b = insn.AppendStore(b, insn.RDI, boxOut+8*int32(r), r)
		}
	}
	b = insn.AppendPop(b, insn.RCX)
	b = insn.AppendStore(b, insn.RDI, boxOut+8*int32(insn.RDI), insn.RCX)
	b = insn.AppendPop(b, insn.RCX) // the target
	for i := len(kept) - 1; i >= 0; i-- {
		b = insn.AppendPop(b, kept[i])
	}
	return append(b, 0xc3)
}

// kernelCode is what runs at CPL0 from the ELF entry, and where enter is in it.
// The command line says at which privilege programs run.
func kernelCode() (code []byte, enter guest.GVA) {
	b := insn.AppendLoad(nil, insn.RAX, insn.RDI, guest.BootInfoCmdline)
	b = append(b, 0x80, 0x38, '3') // cmpb $'3', (%rax)
	b = append(b, 0x74, 4)         // je over the safe point
	b = append(b, 0xfa, 0xf4, 0xeb, 0xfd)
	b = insn.AppendPushImm(b, guest.SelUserData)
	b = insn.AppendMovImm(b, insn.RAX, dataVA+dataSize)
	b = insn.AppendPush(b, insn.RAX)
	b = insn.AppendPushImm(b, 0x202) // RFLAGS: bit 1 is always set, and IF, without which Bochs keeps its own interrupts waiting
	b = insn.AppendPushImm(b, guest.SelUserCode)
	b = insn.AppendMovImm(b, insn.RAX, userVA)
	b = insn.AppendPush(b, insn.RAX)
	b = append(b, 0x48, 0xcf) // iretq
	enter = kernelVA + guest.GVA(len(b))
	return append(b, enterCode()...), enter
}

// userCode is what runs at CPL3: it waits for requests.
func userCode() []byte {
	b := insn.AppendMovImm(nil, insn.RBX, dataVA)
	b = insn.AppendLoad(b, insn.RBX, insn.RBX, 0)
	again := len(b)
	b = append(b, 0xf3, 0x90) // pause
	b = insn.AppendLoad(b, insn.RAX, insn.RBX, boxRequest)
	b = append(b, 0x48, 0x3b, 0x43, boxDone) // cmp boxDone(%rbx), %rax
	b = append(b, 0x74, byte(again-len(b)-2))
	b = insn.AppendMovReg(b, insn.RDI, insn.RBX)
	call := len(b)
	b = append(b, 0xe8, 0, 0, 0, 0)
	b = insn.AppendLoad(b, insn.RAX, insn.RBX, boxRequest)
	b = insn.AppendStore(b, insn.RBX, boxDone, insn.RAX)
	b = append(b, 0xeb, byte(again-len(b)-2))
	binary.LittleEndian.PutUint32(b[call+1:], uint32(len(b)-(call+5)))
	return append(b, enterCode()...)
}

// newImage makes the guest: an ELF file with three segments and nothing else.
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
