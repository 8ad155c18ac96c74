package x86

import (
	"errors"
	"fmt"
	"sync"
)

// ErrCannotEmulate: the instruction must be run by a CPU, because Emulate does
// not know it, because the CPU would raise an exception, or because the result
// depends on state that Regs does not hold.
var ErrCannotEmulate = errors.New("x86: instruction must be run by the CPU")

// MemoryError is a failed memory access of an emulated instruction.
type MemoryError struct {
	Addr  uint64 // linear address of the first byte
	Size  uint8  // bytes
	Write bool
	Err   error // from Memory
}

// Error names the access and the cause.
func (e *MemoryError) Error() string {
	op := "read"
	if e.Write {
		op = "write"
	}
	return fmt.Sprintf("x86: %s %d bytes at %#x: %v", op, e.Size, e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *MemoryError) Unwrap() error { return e.Err }

// emulation is the kind of emulation of an instruction.
type emulation uint8

const (
	emuNone emulation = iota
	emuNop
	emuALU       // add or adc sbb and sub xor cmp: r/m, reg
	emuALURev    // the same: reg, r/m
	emuALUAcc    // the same: accumulator, immediate
	emuALUImm    // the same: r/m, immediate
	emuTest      // r/m, reg
	emuTestAcc   // accumulator, immediate
	emuTestImm   // r/m, immediate
	emuIncDec    // inc, dec
	emuNot       // not
	emuNeg       // neg
	emuXchg      // r/m, reg
	emuXchgAcc   // accumulator, register in opcode
	emuMov       // r/m, reg
	emuMovRev    // reg, r/m
	emuMovImm    // r/m, immediate
	emuMovOp     // register in opcode, immediate
	emuMovExt    // movzx, movsx, movsxd
	emuLea       // lea
	emuWiden     // cbw, cwde, cdqe
	emuSign      // cwd, cdq, cqo
	emuBswap     // bswap
	emuCmov      // cmovcc
	emuSet       // setcc
	emuFlag      // cmc clc stc cld std
	emuCli       // cli
	emuSti       // sti
	emuPush      // register in opcode
	emuPushRM    // register in ModRM
	emuPushImm   // immediate
	emuPop       // register in opcode
	emuPopRM     // register in ModRM
	emuPushf     // pushf
	emuPopf      // popf
	emuLeave     // leave
	emuJump      // direct
	emuJcc       // conditional
	emuLoop      // loop, loope, loopne, jrcxz
	emuCall      // direct
	emuRet       // with or without immediate
	emuBranchReg // call or jmp through a register
	emuBranchMem // call or jmp through memory
)

// emulation selects how the instruction is emulated. It alone decides whether the
// instruction is emulated.
func (i *Inst) emulation() emulation {
	if i.Enc != Legacy || i.Prefix&PrefixLock != 0 {
		// LOCK raises #UD on all of these, REX2 on a CPU without APX.
		return emuNone
	}
	switch i.Map {
	case Map0:
		return i.emulation0()
	case Map0F:
		return i.emulation0F()
	}
	return emuNone
}

// emulation0 is for the one-byte map.
func (i *Inst) emulation0() emulation {
	op := i.Opcode
	if i.reserved() || i.VendorDependent() {
		return emuNone
	}
	switch i.Class() {
	case ClassNop: // with F3: pause
		return emuNop
	case ClassJump:
		return emuJump
	case ClassCondJump:
		return emuJcc
	case ClassLoop:
		return emuLoop
	case ClassCall:
		return emuCall
	case ClassRet:
		return emuRet
	case ClassJumpInd, ClassCallInd:
		switch {
		case i.Mod() == 3:
			return emuBranchReg
		case i.Segment == SegNone:
			return emuBranchMem
		}
		return emuNone
	case ClassInterruptFlag:
		switch op {
		case 0x9c:
			return emuPushf
		case 0x9d:
			return emuPopf
		case 0xfa:
			return emuCli
		}
		return emuSti
	case ClassOther:
	default:
		return emuNone
	}
	if op < 0x40 {
		switch op & 7 {
		case 0, 1:
			return i.ifReg(emuALU)
		case 2, 3:
			return i.ifReg(emuALURev)
		}
		return emuALUAcc
	}
	switch op >> 4 {
	case 0x5:
		if op < 0x58 {
			return emuPush
		}
		return emuPop
	case 0xb:
		return emuMovOp
	}
	switch op {
	case 0x63:
		return i.ifReg(emuMovExt)
	case 0x68, 0x6a:
		return emuPushImm
	case 0x80, 0x81, 0x83:
		return i.ifReg(emuALUImm)
	case 0x84, 0x85:
		return i.ifReg(emuTest)
	case 0x86, 0x87:
		return i.ifReg(emuXchg)
	case 0x88, 0x89:
		return i.ifReg(emuMov)
	case 0x8a, 0x8b:
		return i.ifReg(emuMovRev)
	case 0x8d:
		if i.Mod() != 3 {
			return emuLea
		}
	case 0x8f:
		return i.ifReg(emuPopRM)
	case 0x90, 0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97:
		return emuXchgAcc
	case 0x98:
		return emuWiden
	case 0x99:
		return emuSign
	case 0xa8, 0xa9:
		return emuTestAcc
	case 0xc6, 0xc7:
		if i.Reg() == 0 {
			return i.ifReg(emuMovImm)
		}
	case 0xc9:
		return emuLeave
	case 0xf5, 0xf8, 0xf9, 0xfc, 0xfd:
		return emuFlag
	case 0xf6, 0xf7:
		return i.ifReg([8]emulation{emuTestImm, emuTestImm, emuNot, emuNeg}[i.Reg()])
	case 0xfe:
		return i.ifReg(emuIncDec)
	case 0xff:
		switch i.Reg() {
		case 0, 1:
			return i.ifReg(emuIncDec)
		case 6:
			return i.ifReg(emuPushRM)
		}
	}
	return emuNone
}

// emulation0F is for the 0F map.
func (i *Inst) emulation0F() emulation {
	op := i.Opcode
	switch c := i.Class(); {
	case c == ClassNop:
		return emuNop
	case i.reserved(), i.VendorDependent():
		return emuNone
	case c == ClassCondJump:
		return emuJcc
	}
	switch op >> 4 {
	case 0x4:
		return i.ifReg(emuCmov)
	case 0x9:
		return i.ifReg(emuSet)
	}
	switch op {
	case 0xb6, 0xb7, 0xbe, 0xbf:
		return i.ifReg(emuMovExt)
	case 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf:
		if i.opSize() != 2 { // undefined (SDM Vol. 2, BSWAP)
			return emuBswap
		}
	}
	return emuNone
}

// reserved reports whether there is a repeat prefix whose effect the manuals call
// unpredictable (SDM Vol. 2, 2.1.1; APM Vol. 3, 1.2.6). It does have one: on AMD
// family 19h the prefix, not the opcode, decides whether loope and loopne want ZF
// set. F2 before a near branch is bnd, which does nothing without MPX; F3 before ret
// is the idiom of older AMD optimization guides; pause is F3 90. In the 0F map the
// prefix selects another instruction, such as popcnt.
func (i *Inst) reserved() bool {
	switch i.Class() {
	case ClassNop, ClassRet:
		return false
	case ClassJump, ClassCondJump, ClassCall, ClassJumpInd, ClassCallInd:
		return i.Prefix&PrefixRep != 0
	}
	return i.Prefix&(PrefixRep|PrefixRepNE) != 0
}

// ifReg returns e when the ModRM operand is a register.
func (i *Inst) ifReg(e emulation) emulation {
	if i.Mod() == 3 {
		return e
	}
	return emuNone
}

// emulator is the emulation of one instruction on registers and memory.
type emulator struct {
	*Inst
	r *Regs
	m Memory
}

// Emulate applies the effect of executing the instruction at addr to r and m:
// registers, RFLAGS, memory, RIP. r.RIP need not be addr. RF is cleared, as by any
// instruction that completes (SDM Vol. 3, 18.3.1.1).
//
// On error nothing in r has changed and the instruction has not been executed; the
// error is ErrCannotEmulate or a *MemoryError. The caller then lets the CPU execute
// it, which raises the exception, if any.
//
// It ignores RFLAGS.TF (the caller must deliver the trap), shadow stacks and indirect
// branch tracking.
//
// Emulate allocates nothing when it succeeds, and may be called from several
// threads at once.
func (i *Inst) Emulate(addr uint64, r *Regs, m Memory) error {
	e := i.emu
	if e == emuNone {
		if e = i.emulation(); e == emuNone {
			return ErrCannotEmulate
		}
	}
	next := addr + uint64(i.Len)
	var err error
	switch {
	case e >= emuJump:
		err = (&emulator{i, r, m}).branch(e, addr)
	case e >= emuCli:
		r.RIP, err = (&emulator{i, r, m}).stack(e, next)
	case e >= emuXchg:
		(&emulator{i, r, m}).move(e, addr)
		r.RIP = next
	case e != emuNop:
		(&emulator{i, r, m}).calculate(e)
		r.RIP = next
	default:
		r.RIP = next
	}
	if err != nil {
		return err
	}
	r.RFLAGS &^= FlagRF
	return nil
}

// words holds the buffers that go through the Memory interface; on the stack
// they would be allocated at each call.
var words = sync.Pool{New: func() any { return new([8]byte) }}

// load reads size bytes (1, 2, 4 or 8).
func load(m Memory, addr uint64, size uint8) (uint64, error) {
	w := words.Get().(*[8]byte)
	defer words.Put(w)
	if err := m.Read(addr, w[:size]); err != nil {
		return 0, &MemoryError{Addr: addr, Size: size, Err: err}
	}
	v := uint64(0)
	for k := int(size) - 1; k >= 0; k-- {
		v = v<<8 | uint64(w[k])
	}
	return v, nil
}

// store writes size bytes (1, 2, 4 or 8).
func store(m Memory, addr uint64, size uint8, v uint64) error {
	w := words.Get().(*[8]byte)
	defer words.Put(w)
	for k := range w {
		w[k] = byte(v >> (8 * k))
	}
	if err := m.Write(addr, w[:size]); err != nil {
		return &MemoryError{Addr: addr, Size: size, Write: true, Err: err}
	}
	return nil
}
