package machine

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// Words of a frame that the processor pushes (SDM Vol. 3, 6.14.2), as the stubs
// of ports 0xf3 and 0xf1 leave it at RSP.
const (
	frameRIP = iota
	frameCS
	frameRFLAGS
	frameRSP
	frameSS
	frameWords
)

// Words before the frame in the stub of port 0xf6.
const (
	faultVector = iota
	faultCode
	faultWords
)

// readFrame fills v.frame, and the missing parts of v.trap, from the frame at
// RSP. It returns false if there is no frame: the guest has then used the port
// for something else.
func (v *trapFrame) readFrame() bool {
	t := &v.trap
	skip := 0
	if t.via == viaFault {
		skip = faultWords
	}
	b := v.raw[:8*(skip+frameWords)]
	at := guest.GVA(v.regs.RSP)
	if v.m.target().ReadMemory(guest.GPA(v.sregs.CR3), at, b) != nil {
		return false
	}
	if t.via == viaFault {
		vector, code := littleEndian(b[8*faultVector:][:8]), littleEndian(b[8*faultCode:][:8])
		t.trap = probe.Trap{Kind: probe.TrapFault, Vector: uint8(vector), Code: uint32(code)}
		if vector == x86.VectorPF {
			t.trap.CR2 = guest.GVA(v.sregs.CR2)
		}
	}
	t.frame = at + guest.GVA(8*skip)
	v.frame = *v.regs
	v.unpackFrame(t, b[8*skip:])
	return true
}

// unpackFrame completes v.frame, which has the general registers already, and
// t from the words of a frame.
func (v *trapFrame) unpackFrame(t *arrival, b []byte) {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	v.frame.RIP = word(frameRIP)
	v.frame.RFLAGS = word(frameRFLAGS)
	v.frame.RSP = word(frameRSP)
	t.cs, t.ss = word(frameCS), word(frameSS)
	t.state = probe.State{Regs: &v.frame, Root: v.space(), CPL: uint8(t.cs & 3)}
}

// writeFrame makes the guest's iretq return to v.frame. It writes RIP, RFLAGS
// and RSP to the frame, and the other registers to the vCPU. The stub's own RIP,
// RSP and RFLAGS stay. It returns false if the frame is gone, which only happens
// when a guest changes its page tables on another vCPU.
func (v *trapFrame) writeFrame() bool {
	t := &v.trap
	b := v.raw[:8*frameWords]
	put := func(i int, w uint64) { binary.LittleEndian.PutUint64(b[8*i:], w) }
	put(frameRIP, v.frame.RIP)
	put(frameCS, t.cs)
	put(frameRFLAGS, v.frame.RFLAGS)
	put(frameRSP, v.frame.RSP)
	put(frameSS, t.ss)
	if v.m.target().WriteMemory(guest.GPA(v.sregs.CR3), t.frame, b) != nil {
		return false
	}
	rip, rsp, rflags := v.regs.RIP, v.regs.RSP, v.regs.RFLAGS
	*v.regs = v.frame
	v.regs.RIP, v.regs.RSP, v.regs.RFLAGS = rip, rsp, rflags
	v.kvm.SetRegsDirty()
	return true
}

// writeFault reports the new state of the exception to the stub of port 0xf6:
// another exception, or guest.FaultHandled.
func (v *trapFrame) writeFault(vector uint64, code uint32) bool {
	b := v.raw[:8*faultWords]
	binary.LittleEndian.PutUint64(b[8*faultVector:], vector)
	binary.LittleEndian.PutUint64(b[8*faultCode:], uint64(code))
	return v.m.target().WriteMemory(guest.GPA(v.sregs.CR3), v.trap.frame-8*faultWords, b) == nil
}
