package x86

// emulateStack does push, pop, pushf, popf, leave, cli and sti. It returns the
// new RIP: next, or r.RIP on error.
func (i *Inst) emulateStack(e emulation, next uint64, r *Regs, m Memory) (uint64, error) {
	var err error
	size := i.stackSize()
	switch e {
	case emuCli, emuSti:
		// With CPL above IOPL it is #GP, or about VIF if CR4.PVI is set
		// (SDM Vol. 2, CLI).
		if uint64(i.CPL) > r.RFLAGS&FlagIOPL>>12 {
			return r.RIP, ErrCannotEmulate
		}
		r.RFLAGS &^= FlagIF
		if e == emuSti {
			r.RFLAGS |= FlagIF
		}
	case emuPush:
		err = i.push(r, m, i.read(r, i.Opcode&7|i.base, size), size)
	case emuPushRM:
		err = i.push(r, m, i.read(r, i.RM()|i.base, size), size)
	case emuPushImm:
		err = i.push(r, m, uint64(i.Imm), size)
	case emuPop:
		err = i.pop(r, m, i.Opcode&7|i.base, size)
	case emuPopRM:
		err = i.pop(r, m, i.RM()|i.base, size)
	case emuPushf:
		err = i.push(r, m, r.RFLAGS&^(FlagRF|FlagVM), size)
	case emuPopf:
		err = i.popf(r, m, size)
	case emuLeave:
		var v uint64
		if v, err = i.loadWord(r, m, r.RBP, size); err == nil {
			r.RSP = r.RBP + uint64(size)
			i.write(r, 5, size, v)
		}
	}
	if err != nil {
		return r.RIP, err
	}
	return next, nil
}

// push stores v below RSP and moves RSP (SDM Vol. 2, PUSH): RSP changes only
// when the store succeeded.
func (i *Inst) push(r *Regs, m Memory, v uint64, size uint8) error {
	sp := r.RSP - uint64(size)
	if !i.accessible(r, sp, size) {
		return ErrCannotEmulate
	}
	if err := store(m, sp, size, v); err != nil {
		return err
	}
	r.RSP = sp
	return nil
}

// pop loads register n; pop rsp keeps the value, not the increment.
func (i *Inst) pop(r *Regs, m Memory, n, size uint8) error {
	v, err := i.loadWord(r, m, r.RSP, size)
	if err != nil {
		return err
	}
	r.RSP += uint64(size)
	i.write(r, n, size, v)
	return nil
}

// loadWord reads 2 or 8 bytes, or fails where the CPU raises an exception
// whatever the page tables say.
func (i *Inst) loadWord(r *Regs, m Memory, addr uint64, size uint8) (uint64, error) {
	if !i.accessible(r, addr, size) {
		return 0, ErrCannotEmulate
	}
	return load(m, addr, size)
}

// accessible reports whether an access raises neither #SS or #GP, for an
// address that is canonical with no paging, nor #AC, for one that is not aligned: user
// code with RFLAGS.AC, if CR0.AM is set (SDM Vol. 3, 7.15). What 5-level paging alone
// has for canonical, stacks of kernels that use it, is the memory's to judge.
func (i *Inst) accessible(r *Regs, addr uint64, size uint8) bool {
	if i.CPL == 3 && r.RFLAGS&FlagAC != 0 && addr&uint64(size-1) != 0 {
		return false
	}
	return canonicalWide(addr) && canonicalWide(addr+uint64(size)-1)
}

// popf loads the flags that the privilege allows (SDM Vol. 2, POPF, table
// 4-16): IOPL only at CPL 0, IF only with CPL up to IOPL; VM, VIF, VIP and the
// reserved bits never.
func (i *Inst) popf(r *Regs, m Memory, size uint8) error {
	v, err := i.loadWord(r, m, r.RSP, size)
	if err != nil {
		return err
	}
	change := uint64(FlagsStatus | FlagTF | FlagDF | FlagNT)
	if size == 8 {
		change |= FlagAC | FlagID
	}
	if i.CPL == 0 {
		change |= FlagIOPL
	}
	if uint64(i.CPL) <= r.RFLAGS&FlagIOPL>>12 {
		change |= FlagIF
	}
	r.RSP += uint64(size)
	r.RFLAGS = r.RFLAGS&^change | v&change
	return nil
}
