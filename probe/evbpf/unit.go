package evbpf

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// HostError says why a definition or its filter is no program: it is served by
// package event's own capture, on the host.
type HostError struct{ Why string }

// Error gives the reason.
func (e *HostError) Error() string { return "runs on the host: " + e.Why }

func onHost(format string, args ...any) error { return &HostError{fmt.Sprintf(format, args...)} }

// What a program writes into the ring: a prefix, and the record.
//
//	 0  u64  time, of ktime_get_ns
//	 8  u32  vCPU
//	12  u32  tag of the program
//	16  record, as event.Fetcher.Decode takes it
const PrefixSize = 16

// The value of the state map: counts of the vCPU, and room to work in.
const (
	stateFiltered = 0  // u64: hits that the filter ended
	stateStored   = 8  // u64: records that went into the ring
	stateLost     = 16 // u64: records that found no room there
	stateScratch  = 64
)

// Unit is a definition, with its filter, of which a program can be made.
type Unit struct {
	plan   event.Plan
	filter *event.FilterNode
	name   string
	entry  guest.GVA // of the function, as records of returns have it

	texts   bool // records are made in the state's room
	compare int  // offset in the state of the room for text that the filter looks at, 0 = none
	state   int  // bytes of the state
}

// New prepares a program for f and a filter, which may be nil. It fails with a
// *HostError where a program could not do exactly what the host's capture does.
func New(f *event.Fetcher, filter *event.Filter) (*Unit, error) {
	u := &Unit{plan: f.Plan(), entry: f.Addr(), name: f.Def().Name(), state: stateScratch}
	if filter != nil {
		u.filter = filter.Root()
	}
	switch {
	case u.plan.Kind == event.KindWatch:
		return nil, onHost("a watch has no instruction of its own that could be replaced")
	case u.plan.Cut:
		return nil, onHost("its %d texts can take more than a record holds", u.plan.Texts)
	}
	for _, x := range u.plan.Entry {
		if _, ok := entryArg(x.Reg); !ok || len(x.Loads) != 0 {
			return nil, onHost("what it keeps at the entry is not an argument in a register")
		}
	}
	if u.texts = u.plan.Texts > 0; u.texts {
		u.state += PrefixSize + u.plan.Max
	}
	if err := u.checkFilter(u.filter); err != nil {
		return nil, err
	}
	if u.compare != 0 {
		u.compare = (u.state + 7) &^ 7
		u.state = u.compare + event.TextSize
	}
	// The maps do not matter for the length.
	if _, err := u.build(0, 0); err != nil {
		return nil, err
	}
	return u, nil
}

// EntryData turns what bpf.PutEntry has written for a definition of returns into
// what event.Source.Enter would have, in place.
func EntryData(p *event.Plan, data []byte) {
	kept := slices.Clone(data[:bpf.EntrySize])
	for i, x := range p.Entry {
		at, _ := entryArg(x.Reg)
		event.PutEntry(data[8:], i, binary.LittleEndian.Uint64(kept[at-bpf.RegsSize:]))
	}
}

// checkFilter refuses what has no form as a program, and notes whether texts
// are compared.
func (u *Unit) checkFilter(n *event.FilterNode) error {
	if n == nil {
		return nil
	}
	if n.Term == nil {
		if err := u.checkFilter(n.X); err != nil {
			return err
		}
		return u.checkFilter(n.Y)
	}
	if n.Term.IsText {
		u.compare = 1
		_, err := classify(n.Term)
		return err
	}
	return nil
}

// State describes the map that a program of the unit counts and works in.
func (u *Unit) State() bpf.MapSpec {
	return bpf.MapSpec{Name: "state", Kind: bpf.PerCPUArray, KeySize: 4, ValueSize: uint32(u.state), MaxEntries: 1}
}

// GateSpec describes the map whose value says whether records are wanted.
var GateSpec = bpf.MapSpec{Name: "gate", Kind: bpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}

// MaxRecord returns the most bytes that a program of the unit puts into the
// ring at once, with the prefix.
func (u *Unit) MaxRecord() int { return PrefixSize + u.plan.Max }

// Maps are what a program works on.
type Maps struct {
	State *bpf.Map // made by Unit.State, for this program alone
	Ring  *bpf.Map // may serve several programs
	Gate  *bpf.Map // made by GateSpec; 0 = nobody wants records
}

// The numbers of the maps in a program.
const (
	mapState = iota
	mapRing
	mapGate
)

// Program makes the program. Addr is the probed address, as the engine has
// resolved it; tag stands in each of its records. The program returns 1, or 0
// for a hit that the filter ended.
func (u *Unit) Program(addr guest.GVA, tag uint32, m Maps) (*bpf.Program, error) {
	insns, err := u.build(addr, tag)
	if err != nil {
		return nil, err
	}
	kind := bpf.Kprobe
	if u.plan.Kind == event.KindReturn {
		kind = bpf.Kretprobe
	}
	return bpf.New(bpf.Spec{
		Name: u.name, Kind: kind, Slots: insns.insns, Maps: []*bpf.Map{mapState: m.State, mapRing: m.Ring, mapGate: m.Gate},
		Budget: int64(len(insns.insns)) + insns.cost,
	})
}

// Counts are what a program has counted on one vCPU.
type Counts struct{ Filtered, Stored, Lost uint64 }

// ReadCounts returns the counts of every vCPU. The memory is the guest's, too:
// they are what it says.
func ReadCounts(state *bpf.Map) ([]Counts, error) {
	vals, err := state.Lookup(make([]byte, 4))
	if err != nil {
		return nil, err
	}
	out := make([]Counts, len(vals))
	for i, v := range vals {
		out[i] = Counts{
			Filtered: binary.LittleEndian.Uint64(v[stateFiltered:]),
			Stored:   binary.LittleEndian.Uint64(v[stateStored:]),
			Lost:     binary.LittleEndian.Uint64(v[stateLost:]),
		}
	}
	return out, nil
}

// Record is what a program has put into the ring.
type Record struct {
	Time int64
	CPU  int
	Tag  uint32
	Data []byte // for event.Fetcher.Decode
}

// ParseRecord takes the prefix off; ok is false when there is none.
func ParseRecord(b []byte) (r Record, ok bool) {
	if len(b) < PrefixSize+event.RecordFixed {
		return r, false
	}
	return Record{
		Time: int64(binary.LittleEndian.Uint64(b)), CPU: int(binary.LittleEndian.Uint32(b[8:])),
		Tag: binary.LittleEndian.Uint32(b[12:]), Data: b[PrefixSize:],
	}, true
}
