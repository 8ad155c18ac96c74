package machine

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
)

// CallGuest implements probe.Runner: it runs a function of the guest from
// inside a handler, on the handler's own vCPU, while the interrupted code waits.
func (m target) CallGuest(cpu int, fn guest.GVA, args []uint64) (uint64, error) {
	v := m.vcpus[cpu]
	stub, err := m.plantCallStub()
	if err != nil {
		return 0, &CallError{Fn: fn, Err: err}
	}
	// KVM finishes the stub's out before the registers are put aside, or it
	// would step over something else later.
	v.completeExit()
	trap, frame, regs, sregs := v.trap, v.frame, *v.regs, *v.sregs
	defer func() { v.asleep = false }() // a hlt of the function is not the interrupted code's
	sp := regs.RSP
	if v.trap.via == viaExit {
		sp = trap.state.Regs.RSP - redZone
	}
	if v.cpl() != 0 {
		v.sregs.CS, v.sregs.SS = kvm.CodeSegment(guest.SelKernelCode), kvm.DataSegment(guest.SelKernelData)
		v.kvm.SetSregsDirty()
	}
	v.regs.RFLAGS &^= x86.FlagIF
	var ret uint64
	if err = v.enter(fn, args, sp, stub); err == nil {
		err = v.runNested(func() bool {
			return v.exit.Reason == kvm.ReasonHLT && guest.GVA(v.regs.RIP) == stub+1
		})
		ret = v.regs.RAX
	}
	v.trap, v.frame, *v.regs = trap, frame, regs
	if v.sregs.CS != sregs.CS || v.sregs.SS != sregs.SS {
		v.sregs.CS, v.sregs.SS = sregs.CS, sregs.SS
		v.kvm.SetSregsDirty()
	}
	v.kvm.SetRegsDirty()
	if err != nil {
		return 0, &CallError{Fn: fn, Err: err}
	}
	return ret, nil
}

// redZone is what a function may use below its stack pointer (System V ABI,
// 3.2.2).
const redZone = 128
