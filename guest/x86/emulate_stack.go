package x86

// stack performs push, pop, pushf, popf, leave, cli and sti. It returns the new RIP:
// next, or r.RIP on error.
func (x *emulator) stack(e emulation, next uint64) (uint64, error) {
	var err error
	size := x.stackSize()
	switch e {
	case emuCli, emuSti:
		// With CPL above IOPL it is #GP, or about VIF if CR4.PVI is set
		// (SDM Vol. 2, CLI).
		if uint64(x.CPL) > x.r.RFLAGS&FlagIOPL>>12 {
			return x.r.RIP, ErrCannotEmulate
		}
		x.r.RFLAGS &^= FlagIF
		if e == emuSti {
			x.r.RFLAGS |= FlagIF
		}
	case emuPush:
		err = x.push(x.read(x.Opcode&7|x.base, size), size)
	case emuPushRM:
		err = x.push(x.read(x.RM()|x.base, size), size)
	case emuPushImm:
		err = x.push(uint64(x.Imm), size)
	case emuPop:
		err = x.pop(x.Opcode&7|x.base, size)
	case emuPopRM:
		err = x.pop(x.RM()|x.base, size)
	case emuPushf:
		err = x.push(x.r.RFLAGS&^(FlagRF|FlagVM), size)
	case emuPopf:
		err = x.popf(size)
	case emuLeave:
		var v uint64
		if v, err = x.loadWord(x.r.RBP, size); err == nil {
			x.r.RSP = x.r.RBP + uint64(size)
			x.write(5, size, v)
		}
	}
	if err != nil {
		return x.r.RIP, err
	}
	return next, nil
}

// push stores v below RSP and moves RSP (SDM Vol. 2, PUSH): RSP changes only
// when the store succeeded.
func (x *emulator) push(v uint64, size uint8) error {
	sp := x.r.RSP - uint64(size)
	if !x.accessible(sp, size) {
		return ErrCannotEmulate
	}
	if err := store(x.m, sp, size, v); err != nil {
		return err
	}
	x.r.RSP = sp
	return nil
}

// pop loads register n; pop rsp keeps the value, not the increment.
func (x *emulator) pop(n, size uint8) error {
	v, err := x.loadWord(x.r.RSP, size)
	if err != nil {
		return err
	}
	x.r.RSP += uint64(size)
	x.write(n, size, v)
	return nil
}

// loadWord reads 2 or 8 bytes, or fails if the CPU would raise an exception whatever
// the page tables say.
func (x *emulator) loadWord(addr uint64, size uint8) (uint64, error) {
	if !x.accessible(addr, size) {
		return 0, ErrCannotEmulate
	}
	return load(x.m, addr, size)
}

// accessible reports whether an access raises neither #SS or #GP, for an address that
// is canonical with no paging, nor #AC, for one that is not aligned: user code with
// RFLAGS.AC, if CR0.AM is set (SDM Vol. 3, 7.15). For addresses that are canonical
// only with 5-level paging, such as stacks of kernels that use it, the memory
// decides.
func (x *emulator) accessible(addr uint64, size uint8) bool {
	if x.CPL == 3 && x.r.RFLAGS&FlagAC != 0 && addr&uint64(size-1) != 0 {
		return false
	}
	return canonicalWide(addr) && canonicalWide(addr+uint64(size)-1)
}

// popf loads the flags that the privilege allows (SDM Vol. 2, POPF, table
// 4-16): IOPL only at CPL 0, IF only with CPL up to IOPL; VM, VIF, VIP and the
// reserved bits never.
func (x *emulator) popf(size uint8) error {
	v, err := x.loadWord(x.r.RSP, size)
	if err != nil {
		return err
	}
	change := uint64(FlagsStatus | FlagTF | FlagDF | FlagNT)
	if size == 8 {
		change |= FlagAC | FlagID
	}
	if x.CPL == 0 {
		change |= FlagIOPL
	}
	if uint64(x.CPL) <= x.r.RFLAGS&FlagIOPL>>12 {
		change |= FlagIF
	}
	x.r.RSP += uint64(size)
	x.r.RFLAGS = x.r.RFLAGS&^change | v&change
	return nil
}
