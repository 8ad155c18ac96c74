package machine

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
)

// errUndelivered: the guest's kernel is setting up its tables, and this host can
// end a step only with an int3.
var errUndelivered = errors.New("this host delivers the int3 at its end to the guest's own vector 3, which leads nowhere at this point: " +
	"the guest is setting up its IDT, GDT or TSS; 'guestprobe until' an address after that gets past it")

// maxIST is how far below the top of a stack in the interrupt stack table RSP
// counts as on that stack.
const maxIST = 1 << 16

// tables are the registers that a processor uses to deliver an exception.
type tables struct{ idt, gdt, tss kvm.Descriptor }

// deliversAfter reports whether an int3 at the instruction's destination reaches
// the engine: by an exit, or because the guest's own vector 3 can be delivered
// then. The instruction has not been executed.
func (s *inPlace) deliversAfter() bool {
	v, inst := s.v, &s.inst
	cpl := v.trap.state.CPL
	if v.m.host.Traps.CPL(cpl).Int3 != host.DeliveryVector {
		return true
	}
	r := v.sregs
	t := tables{idt: r.IDT, gdt: r.GDT, tss: kvm.Descriptor{Base: r.TR.Base, Limit: uint16(min(r.TR.Limit, 0xffff))}}
	next, switches := s.nextSpace()
	switch {
	case switches:
		return s.canDeliver(t, next, cpl, nil)
	case cpl == 0 && inst.Enc == x86.Legacy && inst.Map == x86.Map0F && inst.Opcode <= 0x01:
		if !s.loadTables(&t) {
			return true // it raises an exception
		}
	}
	return s.canDeliver(t, s.as, cpl, s.reach)
}

// loadTables updates t as the instruction does, and reports whether the
// instruction does not fault: lgdt, lidt, ltr (SDM Vol. 2).
func (s *inPlace) loadTables(t *tables) bool {
	v, inst, site, as := s.v, &s.inst, s.site, s.as
	const ltr, lgdt, lidt = 3, 2, 3
	m, memory := inst.Mem()
	read := func(b []byte) bool {
		at, ok := inst.Addr(uint64(site), v.trap.state.Regs)
		return ok && as.Read(guest.GVA(at+s.base(m.Segment)), b) == nil
	}
	switch {
	case inst.Opcode == 0 && inst.Reg()&7 == ltr:
		var b [2]byte
		selector := uint64(0)
		if !memory {
			selector = *v.trap.state.Regs.Reg(inst.RMReg())
		} else if !read(b[:]) {
			return false
		} else {
			selector = littleEndian(b[:])
		}
		lo, hi, ok := descriptor(t.gdt, as, uint16(selector))
		if !ok || selector&^3 == 0 {
			return false
		}
		t.tss = kvm.Descriptor{Base: lo>>16&0xff_ffff | lo>>56<<24 | hi<<32, Limit: uint16(min(lo&0xffff|lo>>32&0xf_0000, 0xffff))}
	case inst.Opcode == 1 && memory && (inst.Reg()&7 == lgdt || inst.Reg()&7 == lidt):
		var b [10]byte
		if !read(b[:]) {
			return false
		}
		d := kvm.Descriptor{Base: littleEndian(b[2:]), Limit: uint16(littleEndian(b[:2]))}
		if inst.Reg()&7 == lidt {
			t.idt = d
		} else {
			t.gdt = d
		}
	}
	return true
}

// descriptor returns the two words of a selector's descriptor; code segments
// have only the first.
func descriptor(gdt kvm.Descriptor, as guest.AddressSpace, selector uint16) (lo, hi uint64, ok bool) {
	off := uint64(selector &^ 7)
	if selector&4 != 0 || off+7 > uint64(gdt.Limit) {
		return 0, 0, false
	}
	lo, err := readWord(as, guest.GVA(gdt.Base+off))
	if err != nil {
		return 0, 0, false
	}
	if off+15 <= uint64(gdt.Limit) {
		hi, _ = readWord(as, guest.GVA(gdt.Base+off+8))
	}
	return lo, hi, true
}

// canDeliver reports whether the processor can deliver #BP through t, from code
// at cpl, to memory that the guest has for it (SDM Vol. 3, 6.14). Memory that an
// instruction transfers (r) counts as changed.
func (s *inPlace) canDeliver(t tables, as guest.AddressSpace, cpl uint8, r *reach) bool {
	changed := func(at guest.GVA, n int) bool {
		if r == nil {
			return false
		}
		return r.has(at) || r.has(at+guest.GVA(n-1))
	}
	const gateSize = 16
	gate := guest.GVA(t.idt.Base) + gateSize*x86.VectorBP
	if gateSize*(x86.VectorBP+1)-1 > uint64(t.idt.Limit) || changed(gate, gateSize) {
		return false
	}
	lo, err1 := readWord(as, gate)
	hi, err2 := readWord(as, gate+8)
	typ, dpl := lo>>40&0x1f, uint8(lo>>45&3)
	if err1 != nil || err2 != nil || lo>>47&1 == 0 || typ != 0xe && typ != 0xf || dpl < cpl {
		return false
	}
	// A code segment that is there.
	selector := uint16(lo >> 16)
	if d, _, ok := descriptor(t.gdt, as, selector); selector&^3 == 0 || !ok || d>>47&1 == 0 || d>>43&3 != 3 {
		return false
	}
	if _, err := as.Translate(guest.GVA(hi<<32 | lo>>48<<16 | lo&0xffff)); err != nil {
		return false
	}
	rsp := s.v.trap.state.Regs.RSP
	if ist := lo >> 32 & 7; ist != 0 || cpl != 0 {
		off := uint64(tssRSP)
		if ist != 0 {
			off = tssIST + 8*(ist-1)
		}
		at := guest.GVA(t.tss.Base + off)
		if off+7 > uint64(t.tss.Limit) || changed(at, 8) {
			return false
		}
		w, err := readWord(as, at)
		if err != nil {
			return false
		}
		// Its frame would overwrite the frame of the exception that the code on this stack
		// handles.
		if cpl == 0 && w-rsp < maxIST {
			return false
		}
		rsp = w
	}
	for _, at := range []uint64{rsp&^15 - 8, rsp&^15 - 8*frameWords} {
		if m, err := as.Translate(guest.GVA(at)); err != nil || !m.Writable {
			return false
		}
	}
	return true
}
