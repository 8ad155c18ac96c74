package probe

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// stance says how the registers of a context at an address of the engine's code
// differ from those that the guest would have there without it, and where the guest's
// are. It is known for every instruction of the code that the engine itself emits
// around stages; nothing is known about a stage's own use of registers and stack.
type stance struct {
	inside bool // the code of a stage runs: its registers are not the guest's, which are in unknown places

	below   int        // RSP is that far below the guest's
	kept    keptRegs   // the guest's registers in the context of the stages, which is at RSP + context
	context int        //
	flags   flagsPlace // where the guest's flags are
	flagsAt int        // above RSP

	// home is the address of the guest's own that corresponds to the place; 0: the
	// return address that is or was right below the guest's RSP.
	home guest.GVA

	// again: the code can be restarted, because it has done nothing yet that would be
	// done twice. done: it has done everything.
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

// plain reports whether all registers except RSP are the guest's.
func (s *stance) plain() bool { return !s.inside && s.kept == keptNone && s.flags == flagsSame }

// stanceAt is the stance from an offset of a piece of code on, up to the next one, in
// few bytes: each detour with stages has some 20.
type stanceAt struct {
	off            uint32
	below, flagsAt int16
	context        uint8
	kept           keptRegs
	flags          flagsPlace
	what           stanceFlags
}

// stanceFlags are the flags of a stance.
type stanceFlags uint8

const (
	stanceInside stanceFlags = 1 << iota
	stanceAgain
	stanceDone
)

// stances are ascending.
type stances []stanceAt

// stanceAt returns the stance at an offset. Before the first one nothing is known.
func (x stances) stanceAt(off int) stance {
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

// note appends the stance from the current end of a on. The last one for an offset
// counts.
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
