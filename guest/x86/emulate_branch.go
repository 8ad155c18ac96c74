package x86

// emulateBranch does everything that sets RIP. A target that is not canonical
// raises #GP at the branch (SDM Vol. 2, JMP, CALL, RET), so nothing may have
// changed by then.
func (i *Inst) emulateBranch(e emulation, addr uint64, r *Regs, m Memory) error {
	next := addr + uint64(i.Len)
	target, _ := i.Target(addr)
	call := false
	switch e {
	case emuJcc:
		if !cond(i.Opcode&15, r.RFLAGS) {
			target = next
		}
	case emuLoop:
		return i.loop(next, target, r)
	case emuCall:
		call = true
	case emuRet:
		return i.ret(r, m)
	case emuBranchReg:
		target = *r.Reg(Reg64(i.RM() | i.base)) // before the push: call *%rsp
		call = i.Reg() == 2
	case emuBranchMem:
		ea, ok := i.Addr(addr, r)
		if !ok {
			return ErrCannotEmulate
		}
		var err error
		if target, err = i.loadWord(r, m, ea, 8); err != nil {
			return err
		}
		call = i.Reg() == 2
	}
	if !canonical(target) {
		return ErrCannotEmulate
	}
	if call {
		if err := i.push(r, m, next, 8); err != nil {
			return err
		}
	}
	r.RIP = target
	return nil
}

// ret pops RIP and releases the immediate's bytes of arguments.
func (i *Inst) ret(r *Regs, m Memory) error {
	target, err := i.loadWord(r, m, r.RSP, 8)
	if err != nil {
		return err
	}
	if !canonical(target) {
		return ErrCannotEmulate
	}
	r.RSP += 8 + uint64(uint16(i.Imm))
	r.RIP = target
	return nil
}

// loop does E0 to E3: the counter is RCX, or ECX with the address size prefix;
// loop decrements first and tests the result (SDM Vol. 2, LOOP). Writing ECX
// clears the upper half of RCX, taken or not.
func (i *Inst) loop(next, target uint64, r *Regs) error {
	size := uint8(8)
	if i.Prefix&PrefixAddrSize != 0 {
		size = 4
	}
	count := r.RCX & mask(size)
	var taken bool
	if i.Opcode == 0xe3 { // jrcxz
		taken = count == 0
	} else {
		count = (count - 1) & mask(size)
		taken = count != 0
		if i.Opcode != 0xe2 { // loopne, loope
			taken = taken && r.RFLAGS&FlagZF != 0 == (i.Opcode == 0xe1)
		}
	}
	if !taken {
		target = next
	}
	if !canonical(target) {
		return ErrCannotEmulate
	}
	if i.Opcode != 0xe3 {
		r.RCX = count
	}
	r.RIP = target
	return nil
}
