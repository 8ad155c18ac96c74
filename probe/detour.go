package probe

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/flow"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// detour is the executable guest memory that an optimized site jumps to:
//
//	[handler stage][copies of the displaced instructions][jmp back]
//
// The handler stage is one exit to the host, or machine code that needs none
// (Stage). Like a slot it belongs to its region for ever: a task that was
// preempted in it may come back long after the probe is gone.
type detour struct {
	region flow.Region
	orig   [insn.JmpLen]uint8 // the bytes that the jump overwrites
	user   bool

	// addr is where the site jumps to: the entry, or where the bytes of the
	// displacement had to lead and a jump to the entry stands.
	addr   guest.GVA
	start  guest.GVA // of all its code
	entry  guest.GVA
	exit   guest.GVA   // the instruction that exits to the host; 0 with stages
	copies []guest.GVA // of the displaced instructions
	back   guest.GVA   // behind the last copy
	end    guest.GVA
	run    []*Stage // the handler stage; nil: the exit
	placed []placedStage
}

// placedStage is code that stands at an address, with its fixups.
type placedStage struct {
	code   []byte
	fixups []Fixup
	at     guest.GVA
}

// stageBody is a handler stage for one address.
type stageBody struct {
	code   []byte // falls out of its end
	entry  int    // offset of where hits enter
	placed []placedStage
}

// detourKey names a detour: its region and its handler stage.
type detourKey struct {
	addr  guest.GVA
	n     int
	bytes [insn.JmpLen - 1 + insn.MaxLen]byte
	stage string // the stages, "" for the exit
}

// site returns the probed address.
func (d *detour) site() guest.GVA { return guest.GVA(d.region.Addr) }

// next returns the address behind the region.
func (d *detour) next() guest.GVA { return d.site() + guest.GVA(d.region.Len) }

// jump returns the bytes that stand at an optimized site.
func (d *detour) jump() [insn.JmpLen]byte {
	b, ok := insn.Jmp32(d.region.Addr, uint64(d.addr))
	if !ok {
		panic(fmt.Sprintf("BUG: detour at %v is out of reach of %v", d.addr, d.site()))
	}
	return b
}

// copyOf returns the copy of the displaced instruction at the original address
// a, which is one of those that the jump overwrites.
func (d *detour) copyOf(a guest.GVA) (guest.GVA, bool) {
	at := d.site()
	for i := range d.region.Insts {
		if at == a {
			return d.copies[i], true
		}
		at += guest.GVA(d.region.Insts[i].Len)
	}
	return 0, false
}

// home returns the address in the original text that a RIP inside the detour
// stands for.
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

// Geometry of detour memory: pieces of slabs, each detour aligned to a line of
// the caches' fetch.
const (
	detourAlign = 16
	detourSlab  = 16 << 10
)

// detours is the engine's detour memory. Lookups take no lock; the rest is
// guarded by Engine.mu.
type detours struct {
	target Target
	placer Detours // nil: no detour can be placed where its address matters
	byKey  map[detourKey]*detour
	open   [2]*slab // by 1 = user text: where the next detour goes
	slots  *slots
}

// forget drops all memory: the guest was reset.
func (ds *detours) forget() {
	ds.byKey = map[detourKey]*detour{}
	ds.open = [2]*slab{}
}

// find returns the detour that a lies in, or nil.
func (s *slots) detour(a guest.GVA) *detour {
	b := s.slab(a)
	if b == nil {
		return s.board(a)
	}
	if b.detours == nil {
		return nil
	}
	list := *b.detours.Load()
	i := sort.Search(len(list), func(i int) bool { return list[i].end > a })
	if i == len(list) || a < list[i].start {
		return nil
	}
	return list[i]
}

// Errors of make.
var (
	errNoDetourMemory = errors.New("no executable memory for the detour")
	errNoPlace        = errors.New("no address within reach has an int3 at every instruction boundary of the jump's displacement")
)

// make returns the detour of a region with the given stages (none: an exit), making
// it if need be. text are the region's original bytes. Errors: errNoPlace, errReach, and those that wrap
// errNoDetourMemory.
func (ds *detours) make(reg flow.Region, text []byte, user bool, stages []*Stage, build stageBuilder) (*detour, error) {
	key := detourKey{addr: guest.GVA(reg.Addr), n: reg.Len}
	for _, x := range stages {
		key.stage += fmt.Sprintf("%p ", x)
	}
	copy(key.bytes[:], text)
	if d := ds.byKey[key]; d != nil {
		return d, nil
	}
	d := &detour{region: reg, user: user, run: stages}
	copy(d.orig[:], text)
	if err := ds.write(d, stages, build); err != nil {
		return nil, err
	}
	d.addr = d.entry
	if len(reg.Boundaries) != 0 {
		at, err := ds.board(d)
		if err != nil {
			return nil, err
		}
		d.addr = at
	}
	ds.byKey[key] = d
	return d, nil
}

// stageBuilder makes a handler stage for the address at.
type stageBuilder func(at guest.GVA, stages []*Stage) (stageBody, error)

// write makes the body of d and puts it into guest memory.
func (ds *detours) write(d *detour, stages []*Stage, build stageBuilder) error {
	size := detourSlab
	for range 2 {
		if b := ds.open[index(d.user)]; b != nil && insn.JmpReaches(uint64(b.base), d.region.Addr) {
			code, err := d.assemble(b.base+guest.GVA(b.used), stages, build)
			if err != nil {
				return err
			}
			if b.used+len(code) <= b.size {
				return ds.put(b, d, code)
			}
			size = max(size, len(code)+detourAlign)
		}
		if err := ds.grow(d.site(), d.user, size); err != nil {
			return err
		}
	}
	return errNoDetourMemory
}

// index is 1 for user text and 0 for the kernel's.
func index(user bool) int {
	if user {
		return 1
	}
	return 0
}

// grow opens another slab, of at least size bytes.
func (ds *detours) grow(near guest.GVA, user bool, size int) error {
	size = (size + slotSize - 1) &^ (slotSize - 1)
	base, err := ds.target.AllocExec(near, size)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoDetourMemory, err)
	}
	b := &slab{base: base, user: user, size: size, slot: noSlots(size), detours: new(atomic.Pointer[[]*detour])}
	b.detours.Store(new([]*detour))
	ds.open[index(user)] = b
	ds.slots.add(b)
	return nil
}

// put writes the code of d to the free end of b. It is complete in guest memory
// before it can be found, and found before any text leads to it.
func (ds *detours) put(b *slab, d *detour, code []byte) error {
	if err := ds.target.WriteExec(d.start, code); err != nil {
		return fmt.Errorf("%w: %w", errNoDetourMemory, err)
	}
	list := append(slices.Clone(*b.detours.Load()), d)
	b.detours.Store(&list)
	b.used += (len(code) + detourAlign - 1) &^ (detourAlign - 1)
	return nil
}

// assemble makes the code of d for address at, and fills in where its parts
// are.
func (d *detour) assemble(at guest.GVA, stages []*Stage, build stageBuilder) ([]byte, error) {
	body, err := build(at, stages)
	if err != nil {
		return nil, err
	}
	code := body.code
	d.start, d.entry, d.placed, d.exit = at, at+guest.GVA(body.entry), body.placed, 0
	if len(stages) == 0 {
		d.exit = d.entry
	}
	n := len(code)
	copies, starts, err := d.region.AppendCopy(nil, uint64(at)+uint64(n))
	if err != nil {
		return nil, errReach
	}
	code = append(code, copies...)
	d.copies = d.copies[:0]
	for _, off := range starts {
		d.copies = append(d.copies, at+guest.GVA(n+off))
	}
	d.back = at + guest.GVA(len(code))
	code, ok := insn.AppendJmp(code, uint64(d.back), uint64(d.next()))
	if !ok {
		return nil, errReach
	}
	d.end = at + guest.GVA(len(code))
	return code, nil
}
