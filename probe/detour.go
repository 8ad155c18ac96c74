package probe

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/code"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// detour is the executable guest memory that an optimized site jumps to:
//
//	[handler stage][copies of the displaced instructions][jmp back]
//
// The handler stage is one exit to the host, or machine code that needs none
// (Stage). Like a slot it belongs to its region until nobody can be in it.
type detour struct {
	key    detourKey
	region flow.Region
	orig   [x86.JmpLen]uint8 // the bytes that the jump overwrites
	user   bool

	// addr is where the site jumps to: the entry, or where the bytes of the
	// displacement had to lead and a jump to the entry stands.
	addr    guest.GVA
	start   guest.GVA // of all its code
	entry   guest.GVA
	exit    guest.GVA   // the instruction that exits to the host; 0: there is none
	copies  []guest.GVA // of the displaced instructions
	back    guest.GVA   // behind the last copy
	end     guest.GVA
	run     []*Stage // the handler stage; nil: the exit
	placed  []placedStage
	touches []touch   // see stageCode; offsets from start
	stances stances   // likewise
	ended   guest.GVA // where all stages have run

	on atomic.Pointer[site] // the site whose jump leads here, or did last
}

// placedStage is code that stands at an address, with its fixups.
type placedStage struct {
	code   []byte
	fixups []Fixup
	at     guest.GVA
}

// stageBody is a handler stage for one address.
type stageBody struct {
	code    []byte // falls out of its end
	entry   int    // offset of where hits enter
	exit    int    // offset of an instruction that exits to the host; 0: there is none but the entry
	placed  []placedStage
	touches []touch
	stances stances
	ended   int // offset of where all stages have run
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

// next returns the address behind the region.
func (d *detour) next() guest.GVA { return d.site() + guest.GVA(d.region.Len) }

// jump returns the bytes that stand at an optimized site.
func (d *detour) jump() [x86.JmpLen]byte {
	b, ok := x86.Jmp32(d.region.Addr, uint64(d.addr))
	if !ok {
		panic(fmt.Sprintf("BUG: detour at %v is out of reach of %v", d.addr, d.site()))
	}
	return b
}

// copyOf returns the copy of the displaced instruction at the original address
// a, which is one of those that the jump overwrites. An int3 among the padding has
// none: who comes there shall trap there.
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

// instCompleted reports whether a vCPU at rip has executed a displaced instruction, and
// all of it: the copy of a call, for one, is several instructions.
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

// detourAlign is the alignment of what is called in a detour, to a line of the
// processor's fetch.
const detourAlign = 16

// errNoPlace is why a site has no board.
var errNoPlace = errors.New("no address within reach has an int3 at every instruction boundary of the jump's displacement")

// stageBuilder makes a handler stage for the address at.
type stageBuilder func(at guest.GVA, stages []*Stage) (stageBody, error)

// buildDetour returns the detour of the site's region with the given stages (none: an
// exit), making it if need be. Errors: errNoPlace, code.ErrReach, and those that wrap
// code.ErrNoMemory.
func (o *optimizer) buildDetour(st *site, stages []*Stage) (*detour, error) {
	key := detourKey{addr: st.addr, n: st.region.Len}
	ip, _ := st.reportedAddr()
	for _, x := range stages {
		key.stage += fmt.Sprintf("%v %p ", ip, x)
	}
	copy(key.bytes[:], st.text)
	if d := o.detours[key]; d != nil {
		return d, nil
	}
	d := &detour{key: key, region: *st.region, user: st.user, run: stages}
	copy(d.orig[:], st.text)
	build := o.exitStage(st.user)
	if stages != nil {
		build = o.stageCode(ip, st.user)
	}
	err := o.code.Put(st.addr, st.user, d, func(at guest.GVA) ([]byte, error) { return d.assemble(at, stages, build) })
	if err != nil {
		return nil, err
	}
	for _, x := range stages {
		x.uses++
	}
	d.addr = d.entry
	if len(d.region.Boundaries) != 0 {
		if d.addr, err = o.placeBoard(d); err != nil {
			return nil, err
		}
	}
	o.detours[key] = d
	return d, nil
}

// assemble makes the code of d for address at, and fills in where its parts
// are.
func (d *detour) assemble(at guest.GVA, stages []*Stage, build stageBuilder) ([]byte, error) {
	body, err := build(at, stages)
	if err != nil {
		return nil, err
	}
	out := body.code
	d.start, d.entry, d.placed, d.touches, d.exit = at, at+guest.GVA(body.entry), body.placed, body.touches, 0
	d.stances, d.ended = body.stances, at+guest.GVA(body.ended)
	switch {
	case len(stages) == 0:
		d.exit = d.entry
	case body.exit != 0:
		d.exit = at + guest.GVA(body.exit)
	}
	n := len(out)
	copies, starts, err := d.region.AppendCopy(nil, uint64(at)+uint64(n))
	if err != nil {
		return nil, code.ErrReach
	}
	out = append(out, copies...)
	d.copies = d.copies[:0]
	for _, off := range starts {
		d.copies = append(d.copies, at+guest.GVA(n+off))
	}
	d.back = at + guest.GVA(len(out))
	out, ok := x86.AppendJmp(out, uint64(d.back), uint64(d.next()))
	if !ok {
		return nil, code.ErrReach
	}
	d.end = at + guest.GVA(len(out))
	return out, nil
}
