package x86

// branch performs everything that sets RIP. A target that is not canonical raises #GP
// at the branch (SDM Vol. 2, JMP, CALL, RET), so nothing may have changed by then.
func (x *emulator) branch(e emulation, addr uint64) error {
	next := addr + uint64(x.Len)
	target, _ := x.Target(addr)
	call := false
	switch e {
	case emuJcc:
		if !cond(x.Opcode&15, x.r.RFLAGS) {
			target = next
		}
	case emuLoop:
		return x.loop(next, target)
	case emuCall:
		call = true
	case emuRet:
		return x.ret()
	case emuBranchReg:
		target = *x.r.Reg(Reg64(x.RM() | x.base)) // before the push: call *%rsp
		call = x.Reg() == 2
	case emuBranchMem:
		ea, ok := x.Addr(addr, x.r)
		if !ok {
			return ErrCannotEmulate
		}
		var err error
		if target, err = x.loadWord(ea, 8); err != nil {
			return err
		}
		call = x.Reg() == 2
	}
	if !canonical(target) {
		return ErrCannotEmulate
	}
	if call {
		if err := x.push(next, 8); err != nil {
			return err
		}
	}
	x.r.RIP = target
	return nil
}

// ret pops RIP and releases the immediate's bytes of arguments.
func (x *emulator) ret() error {
	target, err := x.loadWord(x.r.RSP, 8)
	if err != nil {
		return err
	}
	if !canonical(target) {
		return ErrCannotEmulate
	}
	x.r.RSP += 8 + uint64(uint16(x.Imm))
	x.r.RIP = target
	return nil
}

// loop performs E0 to E3: the counter is RCX, or ECX with the address size prefix;
// loop decrements first and tests the result (SDM Vol. 2, LOOP). Writing ECX clears
// the upper half of RCX, taken or not.
func (x *emulator) loop(next, target uint64) error {
	size := uint8(8)
	if x.Prefix&PrefixAddrSize != 0 {
		size = 4
	}
	count := x.r.RCX & mask(size)
	var taken bool
	if x.Opcode == 0xe3 { // jrcxz
		taken = count == 0
	} else {
		count = (count - 1) & mask(size)
		taken = count != 0
		if x.Opcode != 0xe2 { // loopne, loope
			taken = taken && x.r.RFLAGS&FlagZF != 0 == (x.Opcode == 0xe1)
		}
	}
	if !taken {
		target = next
	}
	if !canonical(target) {
		return ErrCannotEmulate
	}
	if x.Opcode != 0xe3 {
		x.r.RCX = count
	}
	x.r.RIP = target
	return nil
}
