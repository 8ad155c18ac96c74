package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// landing is a place where an instruction can lead.
type landing struct {
	at          guest.GVA
	planted     bool  // it has an int3
	reached     bool  // the instruction itself reads or writes it, so it has no int3
	handler     bool  // the guest's exception handler for vector
	vectorKnown bool  // it is the handler of that vector only
	vector      uint8 //
	moved       aside // the copy that was executed, if there was one
}

// landings returns the places where the instruction can lead from the registers
// in v.trap, including the handlers of its exceptions. code is the guest's code
// at the site. known is false if it is unknown where the instruction leads
// without an exception.
func (s *inPlace) landings(code []byte) (places []landing, known bool) {
	v, site := s.v, s.site
	places = v.handlersOf(exceptions)
	inst, err := x86.Decode(code)
	if err != nil {
		return places, false
	}
	add := func(a uint64) { places = append(places, landing{at: guest.GVA(a)}) }
	if inst.Falls() {
		add(uint64(site) + uint64(inst.Len))
		known = true
	}
	if t, ok := inst.Target(uint64(site)); ok {
		add(t)
		return places, true
	}
	switch inst.Class() {
	case x86.ClassRet, x86.ClassJumpInd, x86.ClassCallInd, x86.ClassFar:
		for _, t := range s.indirectTargets(&inst) {
			add(t)
		}
		// Reading a missing target raises an exception.
		return places, inst.Enc == x86.Legacy
	case x86.ClassSyscall:
		lstar, err := v.kvm.ReadMSRs([]uint32{msrLSTAR})
		if err != nil || len(lstar) != 1 {
			return places, false
		}
		add(lstar[0].Data)
		return places, true
	case x86.ClassIRet:
		// While KVM single-steps, it shows neither the guest's TF nor its own, and kvm_pvm
		// stops one instruction after an iretq. If one of KVM's interrupts could come
		// first, only the processor knows where the iretq led.
		b := v.raw[:8*frameWords]
		if inst.Prefix&x86.PrefixREXW == 0 || v.m.space(v.trap.state.Root).Read(guest.GVA(v.trap.state.Regs.RSP), b) != nil {
			break
		}
		traced := littleEndian(b[8*frameRFLAGS:][:8])&x86.FlagTF != 0
		if user := b[8*frameCS]&3 == 3; (traced || !v.m.payload().hasAPIC()) && v.m.host.NoBreakReason(user, v.m.payload().forwards()) == "" {
			add(littleEndian(b[8*frameRIP:][:8]))
			return places, true
		}
	}
	return places, known
}

// indirectTargets returns where a return, or a branch through a register or
// memory, can lead from the registers in v.trap. There are several answers where
// the processors of the two vendors differ: AMD cuts the target of a near branch
// with operand size prefix to 16 bits (APM Vol. 3, JMP near), and does not
// support far branches to 64-bit offsets (APM Vol. 3, JMP far).
func (s *inPlace) indirectTargets(inst *x86.Inst) []uint64 {
	v, site := s.v, s.site
	r := v.trap.state.Regs
	class := inst.Class()
	if class == x86.ClassJumpInd || class == x86.ClassCallInd {
		if inst.Mod() == 3 {
			n := x86.Reg64(inst.RM())
			for _, b := range inst.Bytes() {
				if b == inst.Opcode {
					break
				}
				if b&0xf0 == 0x40 {
					n = n&7 | x86.Reg64(b&1)<<3 // REX.B; the last prefix counts
				}
			}
			t := *r.Reg(n)
			return []uint64{t, t & 0xffff}
		}
	}
	at := r.RSP
	if class != x86.ClassRet && inst.Opcode == 0xff { // with a memory operand
		a, ok := inst.Addr(uint64(site), r)
		if !ok {
			return nil
		}
		switch at = a; inst.Segment {
		case x86.SegFS:
			at += v.sregs.FS.Base
		case x86.SegGS:
			at += v.sregs.GS.Base
		}
	}
	as := v.m.space(v.trap.state.Root)
	var targets []uint64
	for _, size := range []int{8, 4, 2} {
		b := v.raw[:size]
		if as.Read(guest.GVA(at), b) == nil {
			targets = append(targets, littleEndian(b))
		}
	}
	if class != x86.ClassFar && len(targets) == 3 {
		targets = []uint64{targets[0], targets[2]} // near: 64 bits, or 16
	}
	return targets
}

// exceptions are the vectors that an instruction can raise by itself, without
// the breakpoint and debug exceptions, through which the host gets control.
const exceptions = 1<<0 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<11 | 1<<12 | 1<<13 | 1<<14 | 1<<16 | 1<<17 | 1<<19 | 1<<20 | 1<<21

// handlersOf returns the entries of the guest's handlers of a set of vectors,
// from its IDT (SDM Vol. 3, 6.14.1).
func (v *trapFrame) handlersOf(vectors uint32) []landing {
	idt := v.sregs.IDT
	var out []landing
	for vector := range uint8(32) {
		if vectors>>vector&1 == 0 || 16*uint32(vector)+15 > uint32(idt.Limit) {
			continue
		}
		gate := v.raw[:16]
		if v.m.target().ReadMemory(guest.GPA(v.sregs.CR3), guest.GVA(idt.Base)+16*guest.GVA(vector), gate) != nil {
			continue
		}
		lo, hi := binary.LittleEndian.Uint64(gate), binary.LittleEndian.Uint64(gate[8:])
		if typ := lo >> 40 & 0x1f; lo>>47&1 == 0 || typ != 0xe && typ != 0xf {
			continue
		}
		l := landing{at: guest.GVA(hi<<32 | lo>>48<<16 | lo&0xffff), handler: true, vectorKnown: true, vector: vector}
		for i := range out {
			if out[i].at == l.at {
				out[i].vectorKnown = false
				l.at = 0
			}
		}
		if l.at != 0 {
			out = append(out, l)
		}
	}
	return out
}

// patches are temporary changes of single bytes of text, while the world is
// stopped.
type patches struct {
	done []patched
}

type patched struct {
	text     guest.Text
	at       guest.GVA
	old, new byte
}

// apply changes the byte at a, and records the old byte.
func (p *patches) apply(as guest.AddressSpace, a guest.GVA, to byte) error {
	var b [1]byte
	if err := as.Read(a, b[:]); err != nil {
		return err
	}
	if b[0] == to {
		return nil
	}
	x := patched{text: guest.NewText(as), at: a, old: b[0], new: to}
	if err := x.text.Patch(a, b[:], []byte{to}); err != nil {
		return err
	}
	p.done = append(p.done, x)
	return nil
}

// restoreCode puts the guest's own bytes at the instruction at a, as far as the engine has others there, and returns
// them.
func (p *patches) restoreCode(e *probe.Engine, as guest.AddressSpace, root guest.GPA, a guest.GVA) ([]byte, error) {
	live := make([]byte, x86.MaxLen)
	n := len(live)
	for n > 0 && as.Read(a, live[:n]) != nil {
		n--
	}
	code := slices.Clone(live[:n])
	e.UnpatchBytes(root, a, code)
	for i, b := range code {
		if b == live[i] {
			continue
		}
		if err := p.apply(as, a+guest.GVA(i), b); err != nil {
			return nil, err
		}
	}
	return code, nil
}

// undo restores all bytes, in reverse order. It leaves a byte alone that the
// guest itself has changed.
func (p *patches) undo() error {
	var errs []error
	for i := len(p.done) - 1; i >= 0; i-- {
		x := p.done[i]
		err := x.text.Patch(x.at, []byte{x.new}, []byte{x.old})
		if err != nil && !errors.As(err, new(*guest.TextMismatchError)) {
			errs = append(errs, fmt.Errorf("restore text: %w", err))
		}
	}
	p.done = nil
	return errors.Join(errs...)
}
