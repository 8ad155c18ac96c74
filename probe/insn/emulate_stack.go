package insn

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
		err = push(r, m, i.read(r, i.Opcode&7|i.base, size), size)
	case emuPushRM:
		err = push(r, m, i.read(r, i.RM()|i.base, size), size)
	case emuPushImm:
		err = push(r, m, uint64(i.Imm), size)
	case emuPop:
		err = i.pop(r, m, i.Opcode&7|i.base, size)
	case emuPopRM:
		err = i.pop(r, m, i.RM()|i.base, size)
	case emuPushf:
		err = push(r, m, r.RFLAGS&^(FlagRF|FlagVM), size)
	case emuPopf:
		err = i.popf(r, m, size)
	case emuLeave:
		var v uint64
		if v, err = loadStack(m, r.RBP, size); err == nil {
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
func push(r *Regs, m Memory, v uint64, size uint8) error {
	sp := r.RSP - uint64(size)
	if !canonicalRange(sp, size) {
		return ErrCannotEmulate // #SS
	}
	if err := store(m, sp, size, v); err != nil {
		return err
	}
	r.RSP = sp
	return nil
}

// pop loads register n; pop rsp keeps the value, not the increment.
func (i *Inst) pop(r *Regs, m Memory, n, size uint8) error {
	v, err := loadStack(m, r.RSP, size)
	if err != nil {
		return err
	}
	r.RSP += uint64(size)
	i.write(r, n, size, v)
	return nil
}

// loadStack reads from the stack, or fails where the CPU raises #SS.
func loadStack(m Memory, addr uint64, size uint8) (uint64, error) {
	if !canonicalRange(addr, size) {
		return 0, ErrCannotEmulate
	}
	return load(m, addr, size)
}

func canonicalRange(addr uint64, size uint8) bool {
	return canonical(addr) && canonical(addr+uint64(size)-1)
}

// popf loads the flags that the privilege allows (SDM Vol. 2, POPF, table
// 4-16): IOPL only at CPL 0, IF only with CPL up to IOPL; VM, VIF, VIP and the
// reserved bits never.
func (i *Inst) popf(r *Regs, m Memory, size uint8) error {
	v, err := loadStack(m, r.RSP, size)
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
