package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Offsets in the context of a Stage: x86-64 struct pt_regs (Linux,
// arch/x86/include/asm/ptrace.h).
const (
	ctxOrigAX = 120
	ctxIP     = 128
	ctxCS     = 136
	ctxFlags  = 144
	ctxSP     = 152
	ctxSS     = 160
	ctxSize   = 168
)

// ctxRegs are the general registers in the order of the context.
var ctxRegs = [...]insn.Reg64{insn.R15, insn.R14, insn.R13, insn.R12, insn.RBP, insn.RBX, insn.R11, insn.R10,
	insn.R9, insn.R8, insn.RAX, insn.RCX, insn.RDX, insn.RSI, insn.RDI}

// redZone is what code of CPL3 keeps below RSP (System V ABI, 3.2.2).
const redZone = 128

// exitStage emits the handler stage that is one exit to the host: the registers
// of the vCPU are then those of the hit.
func (e *Engine) exitStage(user bool) stageBuilder {
	return func(guest.GVA, []*Stage) (stageBody, error) {
		if port := e.can[index(user)].DetourPort; port != 0 {
			return stageBody{code: []byte{0xe6, port}}, nil // out %al, $port
		}
		return stageBody{code: []byte{opInt3}}, nil
	}
}

// Behind the context: the flags, or the vCPU's number, while stages run.
const (
	scratchFlags = ctxSize
	scratchCPU   = ctxSize + 8
	frameSize    = ctxSize + 16
)

// stageCode emits the handler stages of site for code of that privilege. Where
// hits enter:
//
//	lea -frame(%rsp), %rsp    with the red zone at CPL3
//	flags are kept: by lahf and seto at CPL3, by pushfq at CPL0, and there cli,
//	so that the stage is not preempted
//	registers that are used or asked for are stored
//	for each stage: vCPU number from the stack's profile, block, call
//	all is put back
//
// The stages' code stands before that. Where the profile shows no vCPU no stage
// runs, and their Lost are counted. lahf and sahf are there on every processor
// with hardware virtualization, and take a fifth of the time of popfq.
func (e *Engine) stageCode(site guest.GVA, user bool) stageBuilder {
	prof, _ := e.opt.placer.StackProfile(user)
	return func(at guest.GVA, stages []*Stage) (stageBody, error) {
		a := asm{at: at}
		var placed []placedStage
		for _, x := range stages {
			a.align()
			placed = append(placed, placedStage{x.Code, x.Fixups, a.pos()})
			a.emit(x.Code...)
		}
		resume := a.pos()
		for _, x := range stages {
			if x.Lost != 0 {
				a.emit(insn.AppendMovImm(nil, insn.RAX, uint64(x.Lost))...)
				a.emit(0xf0, 0x48, 0xff, 0x00) // lock incq (%rax)
			}
		}
		lost := a.jmp()
		a.align()

		entry := len(a.b)
		c := newStageFrame(stages, user)
		c.enter(&a, uint64(site)+1)
		a.emit(0x48, 0x25) // and $mask, %rax
		a.imm32(int32(prof.Mask))
		a.emit(insn.AppendMovImm(nil, insn.RSI, prof.Magic)...)
		magic := a.pos()
		a.mem(0x3b, insn.RSI, insn.RAX, prof.MagicOff) // cmp off(%rax), %rsi
		a.jccTo(0x5, resume)                           // jne
		number := a.pos()
		a.emit(0x8b, 0x80) // mov off(%rax), %eax
		a.imm32(prof.CPUOff)
		a.emit(0x3d) // cmp $n, %eax
		a.imm32(int32(len(e.cpus)))
		a.jccTo(0x3, resume) // jae
		if len(stages) > 1 {
			a.store(insn.RAX, scratchCPU) // for the next one: what the stack says may change
		}
		for i, x := range stages {
			if i > 0 {
				a.load(insn.RAX, scratchCPU)
			}
			a.emit(0x48, 0x69, 0xf0) // imul $stride, %rax, %rsi
			a.imm32(int32(x.Stride))
			a.emit(insn.AppendMovImm(nil, insn.RDI, uint64(x.Block))...)
			a.emit(0x48, 0x01, 0xfe)       // add %rdi, %rsi
			a.emit(0x48, 0x89, 0xe7, 0xe8) // mov %rsp, %rdi; call
			a.imm32(int32(placed[i].at - a.pos() - 4))
		}
		a.here(lost)
		c.leave(&a)
		for _, load := range []guest.GVA{magic, number} {
			placed = append(placed, placedStage{fixups: []Fixup{{Fault: 0, Resume: int(resume - load)}}, at: load})
		}
		return stageBody{code: a.b, entry: entry, placed: placed}, nil
	}
}

// stageFrame is what a detour's stages have on the interrupted stack.
type stageFrame struct {
	user  bool
	push  bool   // flags are kept by pushfq
	clear bool   // DF must be cleared
	reads uint32 // of all stages
	size  int32
	more  int32 // bytes that the context has behind struct pt_regs
}

func newStageFrame(stages []*Stage, user bool) stageFrame {
	c := stageFrame{user: user, push: !user, size: frameSize}
	if user {
		c.size += redZone
	}
	for _, x := range stages {
		c.reads |= x.Reads
		c.clear = c.clear || !x.NoStrings
	}
	c.push = c.push || c.clear
	return c
}

// asked reports whether a stage may read the field at off.
func (c *stageFrame) asked(off int32) bool { return c.reads>>(off/8)&1 != 0 }

// enter makes room, keeps the flags, and fills in the context, as far as the
// stages read it. RSP is then at the context, and RAX the interrupted RSP.
func (c *stageFrame) enter(a *asm, ip uint64) {
	if c.push {
		a.lea(insn.RSP, ctxFlags+8-c.size)
		a.emit(0x9c) // pushfq
		if !c.user {
			a.emit(0xfa) // cli
		}
		if c.clear {
			a.emit(0xfc) // cld
		}
		a.lea(insn.RSP, -ctxFlags)
	} else {
		a.lea(insn.RSP, -c.size)
	}
	for i, r := range ctxRegs {
		if r == insn.RAX || r == insn.RSI || r == insn.RDI || c.reads>>i&1 != 0 {
			a.store(r, int32(8*i))
		}
	}
	if !c.push {
		if c.asked(ctxFlags) {
			a.emit(0x9c, 0x8f, 0x84, 0x24) // pushfq; pop off(%rsp), with the RSP behind the pop
			a.imm32(ctxFlags)
		}
		a.emit(0x9f, 0x0f, 0x90, 0xc0) // lahf; seto %al
		a.store(insn.RAX, scratchFlags+c.more)
	}
	a.b = insn.AppendLea(a.b, insn.RAX, insn.RSP, c.size)
	if c.asked(ctxSP) {
		a.store(insn.RAX, ctxSP)
	}
	if c.asked(ctxIP) {
		a.emit(insn.AppendMovImm(nil, insn.RSI, ip)...)
		a.store(insn.RSI, ctxIP)
	}
	cs, ss := int32(guest.SelKernelCode), int32(guest.SelKernelData)
	if c.user {
		cs, ss = guest.SelUserCode, guest.SelUserData
	}
	for _, f := range []struct{ off, v int32 }{{ctxOrigAX, -1}, {ctxCS, cs}, {ctxSS, ss}} {
		if c.asked(f.off) {
			a.emit(0x48, 0xc7, 0x84, 0x24) // movq $imm32, off(%rsp)
			a.imm32(f.off)
			a.imm32(f.v)
		}
	}
}

// leave puts back what enter and the call of a stage have changed.
func (c *stageFrame) leave(a *asm) {
	if !c.push {
		a.load(insn.RAX, scratchFlags+c.more)
		a.emit(0x04, 0x7f, 0x9e) // add $0x7f, %al, which overflows if it was 1; sahf
	}
	for _, r := range []insn.Reg64{insn.RAX, insn.RSI, insn.RDI} {
		a.load(r, ctxOffset(r))
	}
	if c.push {
		a.lea(insn.RSP, ctxFlags)
		a.emit(0x9d) // popfq
		a.lea(insn.RSP, c.size-ctxFlags-8)
		return
	}
	a.lea(insn.RSP, c.size)
}

// ctxOffset returns where a register is in the context.
func ctxOffset(r insn.Reg64) int32 {
	for i, x := range ctxRegs {
		if x == r {
			return int32(8 * i)
		}
	}
	panic("BUG: register is not in the context")
}

// asm is code in the making, for one address.
type asm struct {
	at guest.GVA
	b  []byte
}

func (a *asm) pos() guest.GVA { return a.at + guest.GVA(len(a.b)) }
func (a *asm) emit(b ...byte) { a.b = append(a.b, b...) }
func (a *asm) imm32(v int32)  { a.b = append(a.b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24)) }

// align fills up to the next detourAlign with int3s.
func (a *asm) align() {
	for len(a.b)%detourAlign != 0 {
		a.emit(opInt3)
	}
}

// lea adds v to a register, and changes no flags.
func (a *asm) lea(r insn.Reg64, v int32) { a.b = insn.AppendLea(a.b, r, r, v) }

// store and load move a register to and from the context at RSP.
func (a *asm) store(r insn.Reg64, off int32) { a.mem(0x89, r, insn.RSP, off) }
func (a *asm) load(r insn.Reg64, off int32)  { a.mem(0x8b, r, insn.RSP, off) }

// mem emits a 64-bit instruction with that opcode, a register, and off(base).
func (a *asm) mem(op byte, r, base insn.Reg64, off int32) {
	short := int32(int8(off)) == off
	mod := byte(0x80)
	if short {
		mod = 0x40
	}
	a.emit(0x48|byte(r>>3)<<2|byte(base>>3), op, mod|byte(r&7)<<3|byte(base&7))
	if base&7 == insn.RSP {
		a.emit(0x24)
	}
	if short {
		a.emit(byte(off))
	} else {
		a.imm32(off)
	}
}

// jccTo emits a conditional jump to an address that is known.
func (a *asm) jccTo(cond byte, to guest.GVA) {
	a.emit(0x0f, 0x80|cond)
	a.imm32(int32(to - a.pos() - 4))
}

// jmp emits a jump forward, and returns where its displacement is.
func (a *asm) jmp() int {
	a.emit(insn.JmpOp)
	a.imm32(0)
	return len(a.b) - 4
}

// here lets the jump whose displacement is at off lead to the end of the code.
func (a *asm) here(off int) { le.PutUint32(a.b[off:], uint32(len(a.b)-(off+4))) }
