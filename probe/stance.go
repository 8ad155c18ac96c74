package probe

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// stance says how the registers of a context at an address of the engine's code differ from those that the guest would have there
// without it, and where those are. It is known for every instruction of the code that the engine itself emits around stages;
// of what a stage's own code does with registers and stack nothing is known.
type stance struct {
	inside bool // the code of a stage runs: its registers are not the guest's, and where those are is not known

	below   int        // RSP is that far below the guest's
	kept    keptRegs   // the guest's registers in the context of the stages, which is at RSP + context
	context int        //
	flags   flagsPlace // where the guest's flags are
	flagsAt int        // above RSP

	// home is the address of the guest's own that the place stands for; 0: the return address that is or was right below the guest's RSP.
	home guest.GVA

	// again: nothing has been done yet that would be done twice if the code began again. done: all has been.
	again, done bool

	masked *slot // RFLAGS lacks the IF and TF that a step of this slot has cleared
}

// keptRegs says which registers are in the context.
type keptRegs uint8

const (
	keptNone   keptRegs = iota // they are the guest's
	keptScrap                  // RAX, RSI, RDI
	keptReturn                 // RCX and RDX as well
)

// flagsPlace says where flags are.
type flagsPlace uint8

const (
	flagsSame flagsPlace = iota // in RFLAGS
	flagsWord                   // as pushfq has stored them
	flagsByte                   // as lahf and seto have left RAX
)

// exact reports whether all registers but RIP, and masked flags, are the guest's.
func (s *stance) exact() bool { return s.plain() && s.below == 0 }

// plain reports whether all but RSP are.
func (s *stance) plain() bool { return !s.inside && s.kept == keptNone && s.flags == flagsSame }

// stanceAt is the stance from an offset of a piece of code on, up to the next one, as few bytes: each detour with stages has some 20.
type stanceAt struct {
	off            uint32
	below, flagsAt int16
	context        uint8
	kept           keptRegs
	flags          flagsPlace
	what           stanceFlags
}

// stanceFlags are those of a stance.
type stanceFlags uint8

const (
	stanceInside stanceFlags = 1 << iota
	stanceAgain
	stanceDone
)

// stances are ascending.
type stances []stanceAt

// at returns the stance at an offset. Before the first one nothing is known.
func (x stances) at(off int) stance {
	i, found := slices.BinarySearchFunc(x, off, func(s stanceAt, off int) int { return int(s.off) - off })
	if !found {
		i--
	}
	if i < 0 {
		return stance{inside: true}
	}
	s := &x[i]
	return stance{
		below: int(s.below), flagsAt: int(s.flagsAt), context: int(s.context), kept: s.kept, flags: s.flags,
		inside: s.what&stanceInside != 0, again: s.what&stanceAgain != 0, done: s.what&stanceDone != 0,
	}
}

// note appends the stance from where a is now on. The last one for an offset counts.
func (x *stances) note(a *x86.Asm, s stance) {
	at := stanceAt{off: uint32(a.Len()), below: int16(s.below), flagsAt: int16(s.flagsAt), context: uint8(s.context), kept: s.kept, flags: s.flags}
	for _, f := range []struct {
		is   bool
		flag stanceFlags
	}{{s.inside, stanceInside}, {s.again, stanceAgain}, {s.done, stanceDone}} {
		if f.is {
			at.what |= f.flag
		}
	}
	if n := len(*x); n > 0 && (*x)[n-1].off == at.off {
		*x = (*x)[:n-1]
	}
	*x = append(*x, at)
}

// stanceOf returns the stance at an address, and the resident that has it, or nil.
func (k *core) stanceOf(rip guest.GVA) (stance, resident) {
	r := k.code.At(rip)
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
		x.home = s.inner(rip)
	}
	return x
}

// inner returns what an address in the middle of the copy stands for: of loop and jrcxz, which are several instructions.
func (s *slot) inner(rip guest.GVA) guest.GVA {
	in, err := x86.Decode(s.key.bytes[:s.key.n])
	if err != nil {
		return s.orig
	}
	return insideLoop(&in, s.orig, s.addr, rip)
}

// insideLoop returns where a context goes on that stands at rip, in the copy at to of the instruction in at from. A relocated loop
// or jrcxz is itself over a jump of two bytes, to the next instruction, and one of five, to its target.
func insideLoop(in *x86.Inst, from, to, rip guest.GVA) guest.GVA {
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
		s := d.stances.at(int(rip - d.start))
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
			return stance{home: at, below: 8} // the return address is there, and perhaps not all of it
		default:
			return stance{home: insideLoop(in, at, d.copies[i], rip)}
		}
		break
	}
	return stance{home: at}
}

// resumeAddr returns where a vCPU at rip, of that stance, goes on with the guest's registers.
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
	return t.stances.at(int(rip - t.tramps))
}

// undo makes the registers of a context in the engine's code those that the guest would have, and reports whether it could.
// With live RIP becomes the address of the engine's code from which it goes on as it would have.
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
				if i, there = t.numbered(number); !read || !there {
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

// numbered returns the record whose number a trampoline has pushed, which says by which one a context in the code of a return has come. The
// place right below its stack pointer need not: a return that takes arguments off the stack leaves one of these there.
func (t *instances) numbered(number uint64) (i int, ok bool) {
	return int(number), number < uint64(t.n)
}

// Settle moves a vCPU that rests in code of the engine's to where its registers are the guest's own, and an
// interrupt may find it, if that makes no difference to what has been done: back to where that code began, or on to its end. Where that
// is not so it returns addresses of which the vCPU comes to one soon, and from which it can be settled. It is called on the vCPU's own thread.
func (e *Engine) Settle(cpu int, s State) (ends []guest.GVA, ok bool) {
	c := &e.cpus[cpu]
	rip := guest.GVA(s.Regs.RIP)
	st, r := c.stanceOf(rip)
	if r == nil || st.exact() || c.depth != 0 {
		return nil, true
	}
	if c.undo(s.Regs, s.Root, true) {
		return nil, true
	}
	switch x := r.(type) {
	case *detour:
		return []guest.GVA{x.ended}, false
	case *instances:
		return []guest.GVA{x.ended}, false
	}
	return nil, true
}
