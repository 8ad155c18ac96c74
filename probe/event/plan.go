package event

import "slices"

// Plan is a Fetcher laid open: where each part of its records stands, and how
// each value is computed. It is for those who make the same records in another
// way than Capture; record.go has the layout.
type Plan struct {
	Kind   Kind
	Values []PlanValue // in the order of FilterTerm.Value

	// Offsets in a record.
	Status  int // one byte for each value
	Comm    int // CommSize bytes, the task's name; 0 = none, and pid is 0
	Regs    int // 0 = none; see PlanRegs
	Dynamic int // text, one behind the other

	// Of a return probe.
	Duration int         // offset in a record; 8 bytes
	Entry    []PlanEntry // what CaptureEntry keeps: PlanValue.Value of FromEntry counts them

	Texts int // number of texts
	Max   int // bytes of the longest record
	// Cut says that all texts at their longest do not fit into a record: how
	// much room one has then depends on those behind it.
	Cut bool
}

// PlanValue is how one value is made: an operand of 8 bytes, and what of it, or
// of the memory that it points to, is stored.
type PlanValue struct {
	From  Origin
	Reg   Reg
	Value uint64  // FromValue: the operand
	Loads []int64 // then, for each: the 8 bytes at the operand plus this

	Store   Storage
	Last    int64  // added to the operand that points to memory
	Literal string // StoreLiteral
	Size    int    // bytes of one element in the record
	Count   int    // elements; 0 = a single value
	Bits    bool   // each number is shifted right and masked
	Shift   uint
	Mask    uint64
	Offset  int // in the record
}

// PlanEntry is what is kept at a function's entry: a register, or memory that it
// leads to.
type PlanEntry struct {
	Reg   Reg
	Loads []int64
}

// Origin says where an operand comes from.
type Origin = origin

// The origins.
const (
	FromReg   = fromReg   // a register
	FromValue = fromValue // a constant
	FromEntry = fromEntry // kept by CaptureEntry
	FromWatch = fromWatch // the access of a watch
)

// Storage says how a value gets into the record.
type Storage = storage

// The storages.
const (
	StoreValue   = storeValue   // the operand's low bytes
	StoreMemory  = storeMemory  // memory at the operand plus Last
	StoreText    = storeText    // text in memory at the operand plus Last
	StoreTexts   = storeTexts   // text at each of the Count pointers there
	StoreLiteral = storeLiteral // Literal
	StoreComm    = storeComm    // the task's name
)

// Constants of records, for those who make some by a Plan.
const (
	RecordFixed    = entryArgs // bytes before the values of a p record: header and __probe_ip
	TextSize       = maxString // bytes of a text with its NUL
	TextCut        = statusCut // in a status byte
	FilterTextSize = maxFilterText
	IRQsOff        = flagIRQsOff // in byte 2
)

// PlanRegs are the registers that stand at Plan.Regs, 8 bytes each.
var PlanRegs = [numRegsKept]Reg{
	RegAX, RegBX, RegCX, RegDX, RegSI, RegDI, RegSP, RegBP, RegR8, RegR9, RegR10, RegR11, RegR12, RegR13, RegR14, RegR15, RegIP, RegFlags,
}

// Plan returns how f makes records.
func (f *Fetcher) Plan() Plan {
	p := Plan{
		Kind: f.def.Kind, Status: f.status, Comm: f.comm, Regs: f.regs, Dynamic: f.dynamic, Texts: f.texts, Max: f.max,
		Cut: f.dynamic+f.texts*maxString > maxRecord,
	}
	if f.args == returnArgs {
		p.Kind, p.Duration = KindReturn, f.duration
	}
	for _, o := range f.entry {
		p.Entry = append(p.Entry, PlanEntry{Reg: o.reg, Loads: slices.Clone(o.loads)})
	}
	for i := range f.ops {
		o := &f.ops[i]
		p.Values = append(p.Values, PlanValue{
			From: o.from, Reg: o.reg, Value: o.value, Loads: slices.Clone(o.loads),
			Store: o.store, Last: o.last, Literal: o.literal, Size: o.size, Count: o.count,
			Bits: o.bits, Shift: o.shift, Mask: o.mask, Offset: o.off,
		})
	}
	return p
}
