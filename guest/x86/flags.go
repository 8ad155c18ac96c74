package x86

// Flags says which bits of RFLAGS an instruction reads, and which it may change,
// defined or not. A flag in Writes need not change in every case (a shift by 0
// changes none), so writing does not mean that the old value is dead.
type Flags struct {
	Reads, Writes uint32
}

const (
	fAll    = 0xffffffff &^ Flag1
	fStatus = FlagsStatus
	fNotCF  = FlagsStatus &^ FlagCF
)

// condFlags are the flags that condition codes test, by cc>>1.
var condFlags = [8]uint32{
	FlagOF, FlagCF, FlagZF, FlagCF | FlagZF, FlagSF, FlagPF, FlagSF | FlagOF, FlagZF | FlagSF | FlagOF,
}

// Flags returns the flags that the instruction uses (SDM Vol. 1, appendix A, and the
// instructions' descriptions). Instructions not in the tables, and all that change
// privilege, are assumed to use all flags.
func (i *Inst) Flags() Flags {
	switch i.Class() {
	case ClassNop, ClassJump, ClassCall, ClassRet, ClassJumpInd, ClassCallInd:
		return Flags{}
	case ClassCondJump:
		return Flags{Reads: condFlags[i.Opcode>>1&7]}
	case ClassFar, ClassIRet, ClassInterrupt, ClassSyscall, ClassTransfer, ClassVMEntry:
		return Flags{fAll, fAll}
	}
	switch i.Enc {
	case VEX, XOP:
		return i.flagsVEX()
	case EVEX:
		return i.flagsEVEX()
	}
	switch i.Map {
	case Map0:
		return i.flags0()
	case Map0F:
		return i.flags0F()
	case Map0F38:
		return i.flags0F38()
	}
	if i.Opcode >= 0x60 && i.Opcode <= 0x63 { // 0F 3A: pcmpestrm and the like
		return Flags{Writes: fStatus}
	}
	return Flags{}
}

// flags0 is for the one-byte map.
func (i *Inst) flags0() Flags {
	op := i.Opcode
	switch {
	case op < 0x40:
		return groupFlags(op >> 3)
	case op >= 0xe0 && op <= 0xe1: // loopne, loope
		return Flags{Reads: FlagZF}
	case op >= 0xd8 && op <= 0xdf:
		return i.flagsX87()
	}
	switch op {
	case 0x69, 0x6b, 0x84, 0x85, 0xa8, 0xa9:
		return Flags{Writes: fStatus}
	case 0x6c, 0x6d, 0x6e, 0x6f: // ins, outs, with the port's permission
		return Flags{Reads: FlagDF | FlagIOPL}
	case 0x80, 0x81, 0x83:
		return groupFlags(i.Reg())
	case 0x9c:
		return Flags{Reads: fAll}
	case 0x9d:
		return Flags{FlagIOPL, fAll}
	case 0x9e: // sahf
		return Flags{Writes: fStatus &^ FlagOF}
	case 0x9f: // lahf
		return Flags{Reads: fStatus &^ FlagOF}
	case 0xa4, 0xa5, 0xaa, 0xab, 0xac, 0xad:
		return Flags{Reads: FlagDF}
	case 0xa6, 0xa7, 0xae, 0xaf:
		return Flags{FlagDF, fStatus}
	case 0xc0, 0xc1, 0xd0, 0xd1, 0xd2, 0xd3:
		switch i.Reg() {
		case 0, 1: // rol, ror
			return Flags{Writes: FlagCF | FlagOF}
		case 2, 3: // rcl, rcr
			return Flags{FlagCF, FlagCF | FlagOF}
		}
		return Flags{Writes: fStatus}
	case 0xe4, 0xe5, 0xe6, 0xe7, 0xec, 0xed, 0xee, 0xef:
		return Flags{Reads: FlagIOPL}
	case 0xf4:
		return Flags{Reads: FlagIF}
	case 0xf5:
		return Flags{FlagCF, FlagCF}
	case 0xf6, 0xf7:
		if i.Reg() == 2 { // not
			return Flags{}
		}
		return Flags{Writes: fStatus}
	case 0xf8, 0xf9:
		return Flags{Writes: FlagCF}
	case 0xfa, 0xfb: // VIF with CR4.PVI
		return Flags{FlagIOPL | FlagVIP, FlagIF | FlagVIF}
	case 0xfc, 0xfd:
		return Flags{Writes: FlagDF}
	case 0xfe, 0xff:
		if i.Reg() <= 1 { // inc, dec
			return Flags{Writes: fNotCF}
		}
	}
	return Flags{}
}

// groupFlags is for add, or, adc, sbb, and, sub, xor, cmp.
func groupFlags(op uint8) Flags {
	if op&7 == 2 || op&7 == 3 {
		return Flags{FlagCF, fStatus}
	}
	return Flags{Writes: fStatus}
}

// flagsX87: fcmovcc read flags, fcomi and the like write them.
func (i *Inst) flagsX87() Flags {
	if i.Mod() != 3 {
		return Flags{}
	}
	switch op := i.Opcode; {
	case (op == 0xda || op == 0xdb) && i.Reg() < 4:
		return Flags{Reads: FlagCF | FlagZF | FlagPF}
	case (op == 0xdb || op == 0xdf) && (i.Reg() == 5 || i.Reg() == 6):
		return Flags{Writes: fStatus}
	}
	return Flags{}
}

// flags0F is for the 0F map.
func (i *Inst) flags0F() Flags {
	op := i.Opcode
	switch op >> 4 {
	case 0x4, 0x9:
		return Flags{Reads: condFlags[op>>1&7]}
	}
	switch op {
	case 0x00:
		if i.Reg() == 4 || i.Reg() == 5 { // verr, verw
			return Flags{Writes: FlagZF}
		}
	case 0x01:
		return i.flags0F01()
	case 0x02, 0x03: // lar, lsl
		return Flags{Writes: FlagZF}
	case 0x2e, 0x2f: // ucomis, comis
		return Flags{Writes: fStatus}
	case 0x78, 0x79: // vmread, vmwrite; extrq and insertq do not
		if i.pp == ppNone {
			return Flags{Writes: fStatus}
		}
	case 0xa3, 0xab, 0xb3, 0xba, 0xbb: // bt and the like leave ZF unchanged
		return Flags{Writes: fStatus &^ FlagZF}
	case 0xa4, 0xa5, 0xac, 0xad, 0xaf, 0xb0, 0xb1, 0xb8, 0xbc, 0xbd, 0xc0, 0xc1:
		return Flags{Writes: fStatus}
	case 0xa6, 0xa7: // padlock, which is not well documented
		return Flags{fAll, fAll}
	case 0xae:
		if i.Class() == ClassWait { // umwait, tpause
			return Flags{Writes: fStatus}
		}
		if i.Mod() != 3 && i.Reg() == 6 && i.pp == ppRep { // clrssbsy
			return Flags{Writes: fStatus}
		}
	case 0xc7:
		switch {
		case i.Mod() != 3 && i.Reg() == 1: // cmpxchg8b
			return Flags{Writes: FlagZF}
		case i.Mod() == 3 && i.Reg() == 7 && i.pp == ppRep: // rdpid
			return Flags{}
		case i.Reg() == 6 || i.Reg() == 7: // rdrand, rdseed, vmptrld, vmclear, vmxon
			return Flags{Writes: fStatus}
		}
	}
	return Flags{}
}

// flags0F01 is for group 7.
func (i *Inst) flags0F01() Flags {
	if i.Mod() != 3 {
		if i.Reg() == 5 { // rstorssp
			return Flags{Writes: fStatus}
		}
		return Flags{}
	}
	switch i.ModRM {
	case 0xc1, 0xc4, 0xc5, 0xcc, 0xce, 0xd4, 0xd6, 0xd9, 0xfe, 0xff:
		// vmcall, vmxoff, pconfig, tdcall, seamops, vmfunc, xtest, vmmcall,
		// rmpadjust, pvalidate and the like
		return Flags{Writes: fStatus}
	case 0xca, 0xcb: // clac, stac
		return Flags{Writes: FlagAC}
	case 0xed: // testui
		return Flags{Writes: fStatus}
	}
	return Flags{}
}

// flags0F38 is for the 0F 38 map.
func (i *Inst) flags0F38() Flags {
	switch op := i.Opcode; {
	case op == 0x17, op == 0x80, op == 0x81, i.pp == ppRep && op >= 0xd8 && op <= 0xdf, op == 0xfa, op == 0xfb:
		// ptest, invept, invvpid, Key Locker
		return Flags{Writes: fStatus}
	case op == 0xf6 && i.pp == ppOpSize: // adcx
		return Flags{FlagCF, FlagCF}
	case op == 0xf6 && i.pp == ppRep: // adox
		return Flags{FlagOF, FlagOF}
	case op == 0xf8 && i.pp >= ppRep: // enqcmd, enqcmds
		return Flags{Writes: fStatus}
	}
	return Flags{}
}

// flagsVEX is for VEX and XOP.
func (i *Inst) flagsVEX() Flags {
	w := Flags{Writes: fStatus}
	op := i.Opcode
	switch i.Map {
	case Map0F: // vucomis, vcomis, ktest, kortest
		if op == 0x2e || op == 0x2f || op == 0x98 || op == 0x99 {
			return w
		}
	case Map0F38:
		switch {
		case op == 0x0e, op == 0x0f, op == 0x17: // vtestps, vtestpd, vptest
			return w
		case op >= 0xe0 && op <= 0xef: // cmpccxadd
			return Flags{condFlags[op>>1&7], fStatus}
		case op == 0xf2, op == 0xf3: // andn, blsr, blsmsk, blsi
			return w
		case (op == 0xf5 || op == 0xf7) && i.pp == ppNone: // bzhi, bextr
			return w
		}
	case Map0F3A: // vpcmpestrm and the like
		if op >= 0x60 && op <= 0x63 {
			return w
		}
	case MapXOP9: // TBM
		if op == 0x01 || op == 0x02 {
			return w
		}
	case MapXOPA: // bextr, lwpins
		return w
	}
	return Flags{}
}

// flagsEVEX is for EVEX. Map 4 has its own rules for suppressed flags; they are not
// worth a table yet.
func (i *Inst) flagsEVEX() Flags {
	switch {
	case i.Map == Map4:
		return Flags{fAll, fAll}
	case (i.Map == Map0F || i.Map == Map5) && (i.Opcode == 0x2e || i.Opcode == 0x2f):
		return Flags{Writes: fStatus}
	}
	return Flags{}
}
