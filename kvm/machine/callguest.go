package machine

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
)

// CallGuest implements probe.Runner: it runs a function of the guest from
// inside a handler, on the handler's own vCPU, while the interrupted code waits.
func (m target) CallGuest(cpu int, fn guest.GVA, args []uint64) (uint64, error) {
	v := m.vcpus[cpu]
	_, linux := m.payload().(*linuxGuest)
	if linux && v.trap.state.CPL != 0 {
		return 0, &CallError{Fn: fn, Err: errors.New("the hit is in a program of the guest's, where its kernel cannot be called")}
	}
	stub, err := m.calls.plantStub()
	if err != nil {
		return 0, &CallError{Fn: fn, Err: err}
	}
	// Have KVM finish the out of the stub or the detour first, or it would step
	// over something else later. That writes the registers: after an exit the
	// engine has changed them already.
	trap, frame, regs := v.trap, v.frame, *v.regs
	v.completeExit()
	if trap.via != viaExit {
		regs = *v.regs
	}
	*v.regs = regs
	sregs := *v.sregs
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
			if linux {
				return v.exit.Reason == kvm.ReasonIO && v.exit.IO.Port == guest.PortDetour && guest.GVA(v.regs.RIP)-stub <= 2
			}
			return v.exit.Reason == kvm.ReasonHLT && guest.GVA(v.regs.RIP) == stub+1
		})
		if linux && err == nil {
			v.midIO = true
			v.completeExit()
		}
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

// redZone is the memory below its stack pointer that a function may use (System
// V ABI, 3.2.2).
const redZone = 128
