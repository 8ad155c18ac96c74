package machine

import (
	"encoding/binary"
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/host"
)

// How an instruction is kept from the temporary int3s
//
// The int3s that end a step are bytes in the guest's memory. An instruction that
// overwrites one runs away. One that reads one computes something else. One that
// changes the translation of its address continues elsewhere. So the memory that
// an instruction transfers is computed before it is executed (reach). If one of
// the places is in that memory, the host single-steps the instruction. If it
// cannot, a copy of the instruction runs in the engine's own memory, where the
// guest cannot write. If that is not possible either, a debugger's step is
// rejected.

// ErrStepOverwrites: the instruction reads or overwrites the code at its
// destination, and this host cannot execute just that instruction.
var ErrStepOverwrites = errors.New("it reads or overwrites the code that it leads to, and this host cannot single-step there: " +
	"'guestprobe until' an address after that code gets past it")

// ErrRanAway: the instruction of a step did not end at any of its possible
// destinations.
var ErrRanAway = errors.New("the vCPU did not come to where the instruction leads, and is stopped where it was found")

// reach is the memory that an instruction transfers.
type reach struct {
	as    guest.AddressSpace
	spans []span
	open  bool // there may be more
}

// span is a range of linear addresses.
type span struct {
	at, n uint64
	write bool
}

// Limits of the memory that counts as reached.
const (
	maxImage   = 1 << 14 // of xsave and similar instructions, whose size depends on the features that the guest has enabled
	maxPages   = 1 << 18 // of one span that are looked up
	framesEnd  = 8 * 33  // of enter: the frame pointers of 31 levels and two more words
	frameReach = 8 * 8   // of an exception's frame: 6 words, at a multiple of 16
)

// findReach returns the memory that the instruction transfers when it is
// executed from the registers in v.trap, including the frame that an exception
// of it would push on the same stack.
func (s *inPlace) findReach() *reach {
	v, inst, site := s.v, &s.inst, s.site
	r, regs := &reach{as: s.as}, v.trap.state.Regs
	var room [3]x86.Touch
	touches, known := inst.AppendTouches(room[:0], uint64(site), regs)
	r.open = !known
	add := func(at, n uint64, write bool) { r.spans = append(r.spans, span{at, n, write}) }
	for _, t := range touches {
		t.Addr += s.base(t.Segment)
		if t.Size == 0 {
			t.Size = maxImage
		}
		add(t.Addr, t.Size, t.Access&x86.Write != 0)
	}
	switch m, has := inst.Mem(); {
	case inst.Class() == x86.ClassFar || inst.Class() == x86.ClassIRet:
		switch r.open = false; {
		case has && inst.Reg() == 3: // lcall, through a gate as well
			add(regs.RSP-4*8, 4*8, true)
		case !has:
			add(regs.RSP, 5*8, false)
		}
		if at, ok := inst.Addr(uint64(site), regs); has && ok {
			add(at+s.base(m.Segment), 10, false)
		}
	case inst.Class() == x86.ClassInterrupt, inst.Class() == x86.ClassUndefined, inst.Class() == x86.ClassSyscall:
		r.open = false
	case inst.Map == x86.Map0 && inst.Enc == x86.Legacy && inst.Opcode == 0xc8: // enter
		r.open = false
		add(regs.RSP-framesEnd, framesEnd, true)
		add(regs.RBP-framesEnd, framesEnd, false)
	case has && !m.Vector && (m.Size != 0 || inst.Enc != x86.VEX): // AMX accesses have a stride
		_, ok := inst.Addr(uint64(site), regs)
		r.open = r.open && !ok // else the span is larger than the access, but contains all of it
	}
	if v.trap.state.CPL == 0 {
		add(regs.RSP-frameReach, frameReach, true)
	}
	return r
}

// base returns the base address of a segment.
func (s *inPlace) base(segment x86.Segment) uint64 {
	switch segment {
	case x86.SegFS:
		return s.v.sregs.FS.Base
	case x86.SegGS:
		return s.v.sregs.GS.Base
	}
	return 0
}

// has reports whether the byte at a is in reach, at any address, or an entry of
// the page tables that lead there.
func (r *reach) has(a guest.GVA) bool {
	steps, m, err := r.as.Walk(a)
	for _, s := range r.spans {
		if uint64(a)-s.at < s.n {
			return true
		}
		if s.n>>12 > maxPages {
			return true // no guest has that much mapped where it matters, so it ends in an exception
		}
		for at, left := s.at, s.n; left > 0; {
			n := min(left, guest.PageSize-at%guest.PageSize)
			if p, e := r.as.Translate(guest.GVA(at)); e == nil {
				if err == nil && uint64(m.PA-p.PA) < n {
					return true
				}
				for _, w := range steps {
					if w.At < p.PA+guest.GPA(n) && p.PA < w.At+8 {
						return true
					}
				}
			}
			at, left = at+n, left-n
		}
	}
	return false
}

// mayFault reports whether an access of the instruction may raise a page fault.
func (r *reach) mayFault(user bool) bool {
	as := r.as
	if user {
		as = as.AsUser()
	}
	if r.open {
		return true
	}
	for _, s := range r.spans {
		if s.n>>12 > maxPages {
			return true
		}
		for at, left := s.at, s.n; left > 0; {
			n := min(left, guest.PageSize-at%guest.PageSize)
			if m, err := as.Translate(guest.GVA(at)); err != nil || s.write && !m.Writable {
				return true
			}
			at, left = at+n, left-n
		}
	}
	return false
}

// aside is a copy of an instruction in the engine's own memory, which is
// executed instead of the original.
type aside struct {
	at, end    guest.GVA // end has an int3
	site, next guest.GVA // the original, and where it leads
	bytes      []byte    // the host's view of the copy; nil: no copy
}

// stepAside makes the copy of the instruction. It returns false if the
// instruction cannot run elsewhere, or if there is no memory for it. The world
// is stopped.
func (s *inPlace) stepAside() (x aside, ok bool) {
	v, inst, site, r := s.v, &s.inst, s.site, s.reach
	m := v.m
	if m.payload().hasAPIC() {
		return x, false // an interrupt would find it there
	}
	plan := x86.Analyze(inst.Bytes(), uint64(site), x86.Options{CPL: v.trap.state.CPL})
	moves := plan.Kind == x86.Boost || plan.Kind == x86.Emulate && plan.Fallback == x86.Boost || plan.Reason == x86.ReasonAddress
	if !moves || plan.NoStep {
		return x, false
	}
	m.exec.mu.Lock()
	area := m.exec.kernel.Area
	if v.trap.state.CPL == 3 {
		area = m.exec.user.Area
	}
	m.exec.mu.Unlock()
	code := make([]byte, x86.MaxRelocated+1)
	n, err := x86.Relocate(code, inst, uint64(site), uint64(area.GVA))
	if err != nil || uint64(n)+1 > min(area.Size, allocAlign) || r.has(area.GVA) || r.has(area.GVA+guest.GVA(n)) {
		return x, false
	}
	if pa, err := r.as.Translate(area.GVA); err != nil || pa.PA != area.GPA {
		return x, false // not in this address space
	}
	b, err := m.mem.Slice(area.GPA, n+1)
	if err != nil {
		return x, false
	}
	copy(b, append(code[:n], x86.Int3))
	return aside{at: area.GVA, end: area.GVA + guest.GVA(n), site: site, next: site + guest.GVA(inst.Len), bytes: b}, true
}

// undo removes the copy.
func (x *aside) undo() { fillInt3(x.bytes) }

// setFIP sets the FPU's instruction pointer to the address of the original, if
// it has the copy's: bytes 8 to 15 of the XSAVE area, of which some hosts have
// only the lower 32 bits (SDM Vol. 1, table 10-2).
func (x *aside) setFIP(v *vcpu) error {
	const fip = 8
	area, err := v.kvm.GetXSave()
	if err != nil {
		return err
	}
	switch b := area[fip:]; {
	case binary.LittleEndian.Uint64(b) == uint64(x.at):
		binary.LittleEndian.PutUint64(b, uint64(x.site))
	case binary.LittleEndian.Uint32(b) == uint32(x.at):
		binary.LittleEndian.PutUint32(b, uint32(x.site))
	default:
		return nil
	}
	return v.kvm.SetXSave(area)
}

// home returns the address in the original for an address in the copy, and other
// addresses as they are.
func (x *aside) home(rip guest.GVA) guest.GVA {
	switch {
	case x.bytes == nil || rip < x.at || rip > x.end:
		return rip
	case rip == x.end:
		return x.next
	}
	return x.site
}

// canSingleStep reports whether the host can single-step code at the privilege
// level of v.trap.
func (s *inPlace) canSingleStep() bool {
	return s.v.m.host.Traps.CPL(s.v.trap.state.CPL).Step == host.DeliveryWorks
}

// nextSpace returns the address space after the instruction if it is a mov to
// CR3.
func (s *inPlace) nextSpace() (guest.AddressSpace, bool) {
	v, inst := s.v, &s.inst
	const movToCR, cr3 = 0x22, 3
	if inst.Map != x86.Map0F || inst.Enc != x86.Legacy || inst.Opcode != movToCR || inst.Reg() != cr3 {
		return guest.AddressSpace{}, false
	}
	reg := v.trap.state.Regs.Reg(inst.RMReg())
	if reg == nil {
		return guest.AddressSpace{}, false
	}
	root := guest.GPA(*reg & pteAddr)
	return v.m.space(root), root != 0
}
