package probe

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// stanceOf returns the stance at an address, and the resident that has it, or nil.
func (k *core) stanceOf(rip guest.GVA) (stance, resident) {
	r := k.code.ResidentAt(rip)
	if r == nil {
		return stance{}, nil
	}
	return r.stance(rip), r
}

// stance implements resident.
func (s *slot) stance(rip guest.GVA) stance {
	x := stance{home: s.orig}
	if s.kind == slotStep {
		x.masked = s
	}
	if rip >= s.end() {
		x.home = s.next
	} else if rip != s.addr {
		x.home = s.innerAddr(rip)
	}
	return x
}

// innerAddr returns the guest's address for an address in the middle of the copy, of
// loop and jrcxz, which are several instructions.
func (s *slot) innerAddr(rip guest.GVA) guest.GVA {
	in, err := x86.Decode(s.key.bytes[:s.key.n])
	if err != nil {
		return s.orig
	}
	return loopResume(&in, s.orig, s.addr, rip)
}

// loopResume returns where a context resumes whose RIP is rip, in the copy at to of
// the instruction in at from. The copy of a loop or jrcxz is the instruction itself
// over a jump of two bytes, to the next instruction, and one of five, to its target.
func loopResume(in *x86.Inst, from, to, rip guest.GVA) guest.GVA {
	if in.Class() != x86.ClassLoop {
		return from
	}
	n := guest.GVA(2)
	if in.Prefix&x86.PrefixAddrSize != 0 {
		n++
	}
	switch target, _ := in.Target(uint64(from)); rip - to {
	case n:
		return from + guest.GVA(in.Len)
	case n + 2:
		return guest.GVA(target)
	}
	return from
}

// stance implements resident.
func (d *detour) stance(rip guest.GVA) stance {
	switch {
	case rip == d.addr || rip < d.start || rip >= d.end:
		return stance{home: d.site(), again: true}
	case rip >= d.back:
		return stance{home: d.next()}
	case rip < d.copies[0]:
		if d.run == nil {
			return stance{home: d.site(), again: true}
		}
		s := d.stances.stanceAt(int(rip - d.start))
		s.home = d.site()
		return s
	}
	at := d.site()
	for i := range d.region.Insts {
		in := &d.region.Insts[i]
		last := i+1 == len(d.copies)
		if !last && rip >= d.copies[i+1] {
			at += guest.GVA(in.Len)
			continue
		}
		switch {
		case rip == d.copies[i]:
		case d.region.Call && last:
			return stance{home: at, below: 8} // the return address is there, but perhaps not all of it
		default:
			return stance{home: loopResume(in, at, d.copies[i], rip)}
		}
		break
	}
	return stance{home: at}
}

// resumeAddr returns where a vCPU at rip, of that stance, resumes with the guest's
// registers.
func (d *detour) resumeAddr(rip guest.GVA, s stance) guest.GVA {
	switch {
	case rip < d.start || rip >= d.end || rip == d.addr:
		return rip // a board
	case s.again:
		return d.entry
	case s.done:
		return d.copies[0]
	}
	for i, c := range slices.Backward(d.copies) {
		if rip >= c && rip < d.back {
			return d.copies[i]
		}
	}
	return rip
}

// stance implements resident.
func (t *instances) stance(rip guest.GVA) stance {
	if i, ok := t.recordOf(rip); ok {
		off := 0
		if t.lent == nil {
			off = int(rip - t.tramp(i))
		}
		switch {
		case off == 0 || !t.shared():
			return stance{home: t.home(rip), again: true}
		case off == t.push:
			return stance{below: 8, again: true}
		default:
			return stance{below: 16, again: true}
		}
	}
	if !t.shared() || rip < t.tramps || rip >= t.end {
		return stance{home: t.home(rip)}
	}
	return t.stances.stanceAt(int(rip - t.tramps))
}

// undo gives a context in the engine's code the registers that the guest would have,
// and reports whether it could. If live is set, RIP becomes the address of the
// engine's code from which the context resumes as it would have.
func (k *core) undo(r *Regs, root guest.GPA, live bool) bool {
	rip := guest.GVA(r.RIP)
	s, res := k.stanceOf(rip)
	if res == nil {
		return true
	}
	if s.inside || live && !s.exact() && !s.again && !s.done && s.kept+keptRegs(s.flags) != 0 {
		return false
	}
	out := *r
	var b [8]byte
	word := func(at uint64) (uint64, bool) {
		if k.target.ReadMemory(root, guest.GVA(at), b[:]) != nil {
			return 0, false
		}
		return le.Uint64(b[:]), true
	}
	var regs []x86.Reg64
	switch s.kept {
	case keptScrap:
		regs = []x86.Reg64{x86.RAX, x86.RSI, x86.RDI}
	case keptReturn:
		regs = []x86.Reg64{x86.RAX, x86.RSI, x86.RDI, x86.RCX, x86.RDX}
	}
	for _, x := range regs {
		v, ok := word(r.RSP + uint64(s.context+x86.PtReg(x)))
		if !ok {
			return false
		}
		*out.Reg(x) = v
	}
	if s.flags != flagsSame {
		v, ok := word(r.RSP + uint64(s.flagsAt))
		if !ok {
			return false
		}
		if s.flags == flagsByte {
			// lahf: SF, ZF, AF, PF and CF in AH (SDM Vol. 2, LAHF); seto: OF in AL.
			const low = x86.FlagsStatus &^ x86.FlagOF
			v = r.RFLAGS&^x86.FlagsStatus | v>>8&low | v&1*x86.FlagOF
		}
		out.RFLAGS = v
	}
	out.RSP += uint64(s.below)
	home := s.home
	if home == 0 {
		if t, ok := res.(*instances); ok && s.again {
			i, there := t.recordOf(rip)
			if !there {
				number, read := word(out.RSP - 16)
				if i, there = t.findNumber(number); !read || !there {
					return false
				}
			}
			home = t.tramp(i)
		} else {
			v, ok := word(out.RSP - 8)
			if !ok {
				return false
			}
			home = guest.GVA(v)
		}
		if !live {
			home = k.Home(home)
		}
	}
	out.RIP = uint64(home)
	if live {
		switch d := res.(type) {
		case *detour:
			out.RIP = uint64(d.resumeAddr(rip, s))
		case *slot:
			out.RIP = r.RIP
		}
	}
	*r = out
	return true
}

// findNumber returns the record whose number a trampoline has pushed, which
// identifies the trampoline of a context in the code of a return. The place right
// below its stack pointer may not identify it: a return that pops arguments leaves
// one of them there.
func (t *instances) findNumber(number uint64) (i int, ok bool) {
	return int(number), number < uint64(t.n)
}
