package probe

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// detour is the executable guest memory that an optimized site jumps to:
//
//	[handler stage][copies of the displaced instructions][jmp back]
//
// The handler stage is one exit to the host, or machine code that needs none (Stage).
// Like a slot it belongs to its region until no context can be in it.
type detour struct {
	key    detourKey
	region flow.Region
	orig   [x86.JmpLen]uint8 // the bytes that the jump overwrites
	user   bool

	// addr is where the site jumps to: the entry, or the place that the bytes of the
	// displacement forced, which has a jump to the entry.
	addr    guest.GVA
	start   guest.GVA // of all its code
	entry   guest.GVA
	exit    guest.GVA   // the instruction that exits to the host, or 0
	copies  []guest.GVA // of the displaced instructions
	back    guest.GVA   // after the last copy
	end     guest.GVA
	run     []*Stage // the handler stage; nil: the exit
	placed  []placedStage
	touches []touch   // see stageCode; offsets from start
	stances stances   // likewise
	ended   guest.GVA // where all stages have run
	undone  guest.GVA // where no stage will

	on atomic.Pointer[site] // the site whose jump leads here, or did last
}

// placedStage is code at an address, with its fixups.
type placedStage struct {
	code   []byte
	fixups []Fixup
	at     guest.GVA
}

// stageBody is a handler stage for one address.
type stageBody struct {
	code    []byte // falls out of its end
	entry   int    // offset of where hits enter
	exit    int    // offset of an instruction that exits to the host; 0: only the entry does
	placed  []placedStage
	touches []touch
	stances stances
	ended   int // offset of where all stages have run
	undone  int // offset of where no stage will, if exit is not 0
}

// detourKey names a detour: its region and its handler stage.
type detourKey struct {
	addr  guest.GVA
	n     int
	bytes [flow.MaxRegion]byte
	stage string // the stages, "" for the exit
}

// site returns the probed address.
func (d *detour) site() guest.GVA { return guest.GVA(d.region.Addr) }

// next returns the address after the region.
func (d *detour) next() guest.GVA { return d.site() + guest.GVA(d.region.Len) }

// jump returns the bytes of the jump at an optimized site.
func (d *detour) jump() [x86.JmpLen]byte {
	b, ok := x86.Jmp32(d.region.Addr, uint64(d.addr))
	if !ok {
		panic(fmt.Sprintf("BUG: detour at %v is out of reach of %v", d.addr, d.site()))
	}
	return b
}

// copyOf returns the copy of the displaced instruction at the original address a,
// which is one of those that the jump overwrites. An int3 in the padding has no copy:
// it must trap in its place.
func (d *detour) copyOf(a guest.GVA) (guest.GVA, bool) {
	at := d.site()
	for i := range d.region.Insts {
		in := &d.region.Insts[i]
		if at == a {
			return d.copies[i], in.Opcode != x86.Int3 || in.Class() != x86.ClassInterrupt
		}
		at += guest.GVA(in.Len)
	}
	return 0, false
}

// instCompleted reports whether a vCPU at rip has completed a displaced instruction:
// the copy of a call, for example, is several instructions.
func (d *detour) instCompleted(rip guest.GVA) bool {
	return rip == d.back || slices.Contains(d.copies[1:], rip)
}

// home implements resident.
func (d *detour) home(rip guest.GVA) guest.GVA {
	if rip >= d.back && rip < d.end {
		return d.next()
	}
	at := d.site()
	for i := range d.region.Insts {
		if rip < d.copies[0] || rip >= d.end {
			break // in the handler stage, or at the board
		}
		if i+1 == len(d.copies) || rip < d.copies[i+1] {
			return at
		}
		at += guest.GVA(d.region.Insts[i].Len)
	}
	return d.site()
}

// outLen is the length of out %al, $imm8 (SDM Vol. 2, OUT).
const outLen = 2

// anyFixup reports whether stages have instructions that may fault.
func anyFixup(placed []placedStage) bool {
	return slices.ContainsFunc(placed, func(p placedStage) bool { return len(p.fixups) > 0 })
}

// fixupOf returns where the stages resume that have an instruction at rip which may
// fault.
func fixupOf(placed []placedStage, rip guest.GVA) (to guest.GVA, ok bool) {
	for _, p := range placed {
		for _, f := range p.fixups {
			if rip == p.at+guest.GVA(f.Fault) {
				return p.at + guest.GVA(f.Resume), true
			}
		}
	}
	return 0, false
}
