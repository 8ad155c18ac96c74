package x86

// Kind is how a probed instruction is run after its handlers.
type Kind uint8

// The kinds, from the cheapest to the dearest.
const (
	// Refuse: not at all; Plan.Reason says why. The zero value, so that a
	// forgotten plan does no harm.
	Refuse Kind = iota
	// Emulate: Inst.Emulate computes its effect. If that fails at a hit, the
	// instruction is run as Plan.Fallback says.
	Emulate
	// Boost: from a slot that ends in a jump back. With a post handler it is
	// stepped instead, unless Plan.NoStep.
	Boost
	// Step: from a slot that ends in an int3, with IF held clear. Analyze does not
	// choose it: Boost turns into it if something must run after the instruction.
	Step
	// InPlace: at its own address, with every other vCPU stopped. Plan.Reason
	// says why it cannot be moved.
	InPlace
)

var kindNames = [...]string{"refused", "emulate", "boost", "step", "in_place"}

// String returns the kind as in "guestprobe disas".
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "invalid"
}

// Reason says why an instruction is rejected, or cannot be moved.
type Reason uint8

// The reasons. Those for rejecting it have the names of probe.Code.
const (
	ReasonNone Reason = iota

	// Rejections.
	ReasonUndecodable     // no valid instruction, or it is cut off
	ReasonTrap            // int3, int n, int1, ud0, ud1, ud2: a trap of its own
	ReasonEmulationPrefix // ud2 that Xen or KVM interprets as a prefix
	ReasonMasksExceptions // mov ss: the next instruction's trap would be delayed
	ReasonUnsupported     // continues in a way that neither a slot nor a single step can follow

	// Why in place.
	ReasonFar         // changes CS
	ReasonVendor      // 16-bit near branch, see VendorDependent
	ReasonSegmentBase // branch through memory at FS or GS, whose base is not saved
	ReasonPrefix      // a branch, cli, sti, pushf or popf with LOCK or a repeat prefix that is reserved
	ReasonAPX         // a branch with REX2: raises #UD, or uses registers that are not saved
	ReasonException   // its fault is looked up by its address: see Plan.StayPut
	ReasonAddress     // it keeps its address where the guest can read it: syscall, x87
	ReasonHypercall   // vmcall, vmmcall: KVM may replace one by the other in the guest's text
)

var reasonNames = [...]string{
	"", "undecodable", "trap_insn", "emulation_prefix", "masks_exceptions", "unsupported_insn",
	"far_transfer", "vendor_dependent", "segment_base", "reserved_prefix", "apx", "exception_entry", "keeps_address", "hypercall",
}

// String returns the stable, machine-readable name; "" for ReasonNone.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "invalid"
}

// Options is the input of Analyze besides the bytes.
type Options struct {
	CPL uint8 // privilege of the code: 0 or 3
}

// Plan is how to run one probed instruction. It depends on the bytes and on
// Options only, so it is made once, at registration.
type Plan struct {
	Kind   Kind
	Reason Reason // for Refuse and InPlace, and for Emulate after StayPut
	// Fallback is for Emulate: how to run the instruction if Emulate reports an
	// error. Boost, Step and InPlace are their own.
	Fallback Kind
	// NoStep: for Boost and InPlace, execution does not reach the next instruction,
	// or waits for an interrupt that a step delays. No post handler then.
	NoStep bool
	// Shadow: for Emulate, if the instruction changed IF from 0 to 1, no
	// interrupt may be delivered before one more guest instruction has run
	// (sti; SDM Vol. 2, STI).
	Shadow bool
	// Data: for Boost, what EmulateData does to run the instruction, if it can.
	Data Data
	Inst Inst
}

// Analyze decides how to run the instruction at the start of b, whose address is
// addr. b should hold 15 bytes if the text has them.
//
// The rules follow the CPU manuals. They accept more than Linux 6.12 does: indirect
// branches through memory, far transfers, vmcall, and instructions of 15 bytes. An
// instruction that stores its own address where the guest can read it is executed in
// place: syscall leaves its return address in RCX, and x87 instructions leave theirs
// in the FPU's instruction pointer.
func Analyze(b []byte, addr uint64, o Options) Plan {
	i, err := Decode(b)
	if err != nil {
		return Plan{Reason: ReasonUndecodable}
	}
	i.CPL = o.CPL
	i.emu = i.emulation()
	p := Plan{Inst: i}
	switch i.Class() {
	case ClassInterrupt:
		p.Reason = ReasonTrap
	case ClassUndefined:
		p.Reason = ReasonTrap
		if emulationPrefix(b) {
			p.Reason = ReasonEmulationPrefix
		}
	case ClassLoadSS:
		p.Reason = ReasonMasksExceptions
	case ClassIRet, ClassTransfer:
		p.Reason = ReasonUnsupported
	case ClassFar:
		p.Kind, p.Reason = InPlace, ReasonFar
	case ClassSyscall:
		p.Kind, p.NoStep, p.Reason = InPlace, true, ReasonAddress
	case ClassVMEntry, ClassWait, ClassTransaction:
		p.Kind, p.NoStep = Boost, true
		if i.VendorDependent() { // xbegin
			p.Kind, p.NoStep, p.Reason = Refuse, false, ReasonUnsupported
		}
	case ClassJump, ClassCondJump, ClassLoop, ClassCall, ClassRet, ClassJumpInd, ClassCallInd, ClassInterruptFlag:
		p.Kind, p.Fallback = Emulate, InPlace
		p.Shadow = i.Opcode == 0xfb && i.Map == Map0
		if i.emu == emuNone {
			p.Kind, p.Fallback, p.Shadow = InPlace, Refuse, false
			p.Reason = i.unmovableReason()
		}
	default:
		switch p.Kind = Boost; {
		case i.emu != emuNone:
			p.Kind, p.Fallback = Emulate, Boost
		case i.KeepsFIP():
			p.Kind, p.Reason = InPlace, ReasonAddress
		case i.hypercall():
			p.Kind, p.Reason = InPlace, ReasonHypercall
		default:
			p.Data = i.data()
		}
	}
	return p
}

// KeepsFIP reports whether the instruction leaves its address in the FPU's
// instruction pointer: x87 instructions do, except the control instructions (SDM Vol.
// 1, 8.1.8).
func (i *Inst) KeepsFIP() bool {
	if !i.legacy(Map0) || i.Opcode < 0xd8 || i.Opcode > 0xdf {
		return false
	}
	reg := i.Reg()
	if i.Mod() != 3 {
		switch i.Opcode {
		case 0xd9:
			return reg < 4 // fldenv, fldcw, fnstenv, fnstcw
		case 0xdd:
			return reg != 4 && reg < 6 // frstor, fnsave, fnstsw
		}
		return true
	}
	switch i.Opcode {
	case 0xdb:
		return reg != 4 // fneni, fndisi, fnclex, fninit, fnsetpm
	case 0xdf:
		return i.ModRM != 0xe0 // fnstsw
	}
	return true
}

// hypercall reports whether the instruction is vmcall or vmmcall. KVM overwrites it
// with the one that the processor supports (KVM_X86_QUIRK_FIX_HYPERCALL_INSN).
func (i *Inst) hypercall() bool {
	return i.legacy(Map0F) && i.Opcode == 0x01 && (i.ModRM == 0xc1 || i.ModRM == 0xd9) && i.pp == ppNone
}

// StayPut keeps the instruction of p at its own address, because the system looks up
// its faults by address (an entry of Linux's exception table): it is emulated, or
// stepped in place.
func (p *Plan) StayPut() {
	switch p.Kind {
	case Boost, Step:
		p.Kind, p.Reason, p.NoStep = InPlace, ReasonException, false
	case Emulate:
		p.Fallback, p.Reason = InPlace, ReasonException
	}
}

// unmovableReason says why a branch is not emulated.
func (i *Inst) unmovableReason() Reason {
	switch {
	case i.Enc == REX2:
		return ReasonAPX
	case i.Prefix&PrefixLock != 0, i.reserved():
		return ReasonPrefix
	case i.VendorDependent():
		return ReasonVendor
	case i.Segment != SegNone:
		return ReasonSegmentBase
	}
	return ReasonUnsupported
}

// emulationPrefix reports whether b begins with ud2 and a signature that makes Xen
// ("xen") or KVM ("kvm", with force_emulation_prefix) emulate the instruction after
// it.
func emulationPrefix(b []byte) bool {
	return len(b) >= 5 && (string(b[:5]) == "\x0f\x0bxen" || string(b[:5]) == "\x0f\x0bkvm")
}
