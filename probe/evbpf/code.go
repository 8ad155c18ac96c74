package evbpf

import (
	"encoding/binary"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
	"github.com/guestprobe/guestprobe/probe/event"
)

// The result of a program: the outcome of the hit.
const (
	Filtered = iota // the filter rejected the hit
	Recorded        // its record is in the ring
	Unwanted        // there is no reader of the record
	Lost            // there was no room for its record
)

// Code is the program of a definition, for any memory.
type Code struct {
	name   string
	kind   bpf.Kind
	insns  asm.Instructions
	budget int64
	state  int // bytes of the state; 0: it has none
	max    int // bytes of the longest record
}

// Maps are the maps of a program. GateSpec, State and the ring's owner define how
// each is made.
type Maps struct {
	Ring  *bpf.Map // takes the records; may serve several programs
	Gate  *bpf.Map // has a Gate; may serve several programs
	State *bpf.Map // room for texts, of this program only; nil if State returns none
}

// The numbers of the maps in a program.
const (
	mapRing = iota
	mapGate
	mapState
)

// Gate says which records are wanted.
type Gate uint64

// The gates; each also lets pass what the ones before it do.
const (
	Closed  Gate = iota // no records
	Returns             // records of functions' returns
	Open                // all records
)

// GateOf returns the lowest gate that lets the records of a layout pass.
func GateOf(l *event.Layout) Gate {
	if l.Moment == event.AtReturn {
		return Returns
	}
	return Open
}

// GateSpec describes the map whose value is the Gate.
var GateSpec = bpf.MapSpec{Name: "gate", Kind: bpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}

// State describes the state map of the program; ok is false if it needs none.
func (c *Code) State() (spec bpf.MapSpec, ok bool) {
	return bpf.MapSpec{Name: "state", Kind: bpf.PerCPUArray, KeySize: 4, ValueSize: uint32(c.state), MaxEntries: 1}, c.state > 0
}

// MaxRecord returns the most bytes that a program puts into the ring at once.
func (c *Code) MaxRecord() int { return c.max }

// InTime reports whether a hit in the guest takes no longer than the limit for any
// program: failed reads are expensive there.
func (c *Code) InTime() bool { return c.budget <= bpf.DefaultBudget }

// Program makes the program that works on m, where get_attach_cookie must return the
// mark of its records (event.Source.Mark). like is nil, or a result of Program for
// code with the same Key. It fails if the program would be too long.
func (c *Code) Program(m Maps, like *bpf.Program) (*bpf.Program, error) {
	maps := []*bpf.Map{mapRing: m.Ring, mapGate: m.Gate}
	if c.state > 0 {
		maps = append(maps, m.State)
	}
	insns, name := c.insns, c.name
	c.insns, c.name = nil, "" // the program has them
	switch {
	case like == nil:
		return bpf.New(bpf.Spec{Name: name, Kind: c.kind, Insns: insns, Maps: maps, Budget: c.budget})
	case slices.Equal(maps, like.Maps()):
		return like, nil
	}
	return like.WithMaps(maps...)
}

// Equal reports whether c and o, whose programs were made, can replace each other.
func (c *Code) Equal(o *Code) bool {
	return c.kind == o.kind && c.budget == o.budget && c.state == o.state && c.max == o.max
}

// Key returns a key that is equal for code that differs only in its name. Call it
// before Program.
func (c *Code) Key() string {
	b := append(make([]byte, 0, 16*len(c.insns)), byte(c.kind))
	b = binary.AppendVarint(b, c.budget)
	b = binary.AppendVarint(b, int64(c.state))
	for _, i := range c.insns {
		b = binary.AppendVarint(append(b, byte(i.Dst), byte(i.Src)), int64(i.OpCode))
		b = binary.AppendVarint(b, int64(i.Offset))
		b = binary.AppendVarint(b, i.Constant)
		b = append(append(b, i.Reference()...), ';')
	}
	return string(b)
}

// Compile makes the program of a layout, with a filter or nil: it writes a record for
// each hit that passes. The program gets the owner of its records from
// get_attach_cookie, so that equal definitions share it.
func Compile(l *event.Layout, filter *event.Filter) *Code {
	c := &compiler{l: l, texts: l.Texts() > 0}
	c.Bytes = max(l.MaxBytes, event.MaxText)
	c.Insns = make(asm.Instructions, 0, 64)
	if c.texts {
		c.state = l.MaxBytes
	}
	c.program(filter)
	c.Link()
	kind := bpf.Kprobe
	if l.Moment == event.AtReturn {
		kind = bpf.Kretprobe
	}
	return &Code{
		name: l.Def().Name(), kind: kind, insns: c.Insns, budget: c.CountOnce(0) + c.Cost, state: c.state, max: l.MaxBytes,
	}
}

// Registers that calls preserve, and their use in programs.
const (
	rCtx = asm.R6 // the context
	rRec = asm.R7 // the record
	rEnd = asm.R8 // bytes of the record so far, if it has texts
	rVal = asm.R9 // the current operand
	rFP  = asm.R10
)

// Places in the stack frame.
const (
	slotWord  = -8   // the word read
	slotKey   = -16  // key 0
	slotState = -24  // address of the state
	slotCount = -32  // elements read
	slotBase  = -40  // address of an array of pointers
	slotRoom  = -48  // bytes that a text may have
	slotShort = -112 // 64 bytes: a constant text, or a task's name
)

// compiler makes one program.
type compiler struct {
	bpfgen.Builder
	l     *event.Layout
	texts bool // records are made in the state
	left  int  // texts still to come
	state int  // bytes of the state
}

// program emits the whole program.
func (c *compiler) program(filter *event.Filter) {
	pass, filtered, unwanted, lost := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.Emit(asm.Mov.Reg(rCtx, asm.R1))
	if filter != nil && longTexts(c.l, filter.Root()) {
		c.state = max(c.state, event.MaxText)
	}
	if c.state > 0 {
		c.Emit(bpfgen.StoreConst(4, rFP, slotKey, 0), asm.LoadMapPtr(asm.R1, mapState))
		c.Addr(asm.R2, rFP, slotKey)
		c.Emit(bpfgen.Call(bpf.HelperMapLookup))
		c.Require(asm.JNE, asm.R0, 0, unwanted) // impossible: an array has its first value
		c.Emit(bpfgen.Store(8, rFP, slotState, asm.R0))
	}
	if filter != nil {
		c.node(filter.Root(), pass, filtered)
		c.Place(pass)
	}
	c.Emit(asm.LoadMapValue(asm.R1, mapGate, 0), bpfgen.Load(8, asm.R1, asm.R1, 0))
	c.Require(asm.JGE, asm.R1, uint64(GateOf(c.l)), unwanted)
	c.record(lost)
	c.Emit(asm.Mov.Imm(asm.R0, Recorded), asm.Return())
	c.Place(unwanted)
	c.Emit(asm.Mov.Imm(asm.R0, Unwanted), asm.Return())
	c.Place(lost)
	c.Emit(asm.Mov.Imm(asm.R0, Lost), asm.Return())
	c.Place(filtered)
	c.Emit(asm.Mov.Imm(asm.R0, Filtered), asm.Return())
}

// record emits the making of the record. A record without texts is made in the ring;
// one with texts, whose length is not known in advance, is made in the state and
// copied.
func (c *compiler) record(lost bpfgen.Label) {
	if c.texts {
		c.Emit(bpfgen.Load(8, rRec, rFP, slotState), asm.Mov.Imm(rEnd, int32(c.l.Dynamic)))
	} else {
		c.Emit(asm.LoadMapPtr(asm.R1, mapRing), asm.Mov.Imm(asm.R2, int32(c.l.MaxBytes)), asm.Mov.Imm(asm.R3, 0), bpfgen.Call(bpf.HelperRingReserve))
		c.Require(asm.JNE, asm.R0, 0, lost)
		c.Emit(asm.Mov.Reg(rRec, asm.R0))
		c.time()
	}
	c.head()
	c.left = c.l.Texts()
	for i := range c.l.Fields {
		c.field(i)
	}
	if c.texts {
		// The time is that of the end, because nothing is in the ring before.
		c.time()
		c.Emit(asm.LoadMapPtr(asm.R1, mapRing), asm.Mov.Reg(asm.R2, rRec), asm.Mov.Reg(asm.R3, rEnd), asm.Mov.Imm(asm.R4, 0), bpfgen.Call(bpf.HelperRingOutput))
		c.Require(asm.JEq, asm.R0, 0, lost)
		return
	}
	c.Emit(asm.Mov.Reg(asm.R1, rRec), asm.Mov.Imm(asm.R2, 0), bpfgen.Call(bpf.HelperRingSubmit))
}

// time writes the time of the record.
func (c *compiler) time() {
	c.Emit(bpfgen.Call(bpf.HelperKtimeGetNS), bpfgen.Store(8, rRec, event.RecordTime, asm.R0))
}

// head writes the parts of the record other than the fields.
func (c *compiler) head() {
	l := c.l
	c.Emit(bpfgen.Call(bpf.HelperGetAttachCookie), bpfgen.Store(4, rRec, event.RecordMark, asm.R0))
	c.copy(2, event.RecordCS, ctxOff(event.RegCS))
	c.copy(2, event.RecordFlags, ctxOff(event.RegFlags))
	c.Zero(rRec, event.RecordStatus, len(l.Fields))
	if l.Entered != 0 {
		c.copy(8, l.Ret, ctxOff(event.RegIP))
		c.copy(8, l.Entered, entryTime)
	}
	if l.Place != 0 {
		c.Emit(bpfgen.Call(bpf.HelperGetFuncIP), bpfgen.Store(8, rRec, l.Place, asm.R0))
	}
	if l.Comm != 0 {
		c.Emit(bpfgen.Call(bpf.HelperGetPIDTGID), bpfgen.Store(4, rRec, event.RecordPID, asm.R0))
		c.Addr(asm.R1, rRec, l.Comm)
		c.Emit(asm.Mov.Imm(asm.R2, event.CommSize), bpfgen.Call(bpf.HelperGetComm))
	}
	if l.Regs != 0 {
		for i, r := range event.RecordRegs {
			c.copy(8, l.Regs+8*i, ctxOff(r))
		}
	}
	if l.Stack != 0 {
		c.stack()
	}
}

// stack writes the stack of the interrupted code: the kernel's or, for user code,
// which has no kernel stack, the user's.
func (c *compiler) stack() {
	have := c.NewLabel()
	for _, user := range []int32{0, 1<<8 | bpf.StackFiles} { // BPF_F_USER_STACK
		c.Addr(asm.R2, rRec, c.l.Stack)
		c.Emit(asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R3, 8*event.StackDepth), asm.Mov.Imm(asm.R4, user), bpfgen.Call(bpf.HelperGetStack))
		if user == 0 {
			c.If(asm.JSGT, asm.R0, 0, have)
		}
	}
	c.Place(have)
}

// copy writes n bytes of the context into the record.
func (c *compiler) copy(n, to, from int) {
	c.Emit(bpfgen.Load(n, asm.R1, rCtx, from), bpfgen.Store(n, rRec, to, asm.R1))
}

// ctxOff is the offset of a register in the context: it is a struct pt_regs, whose
// fields event.Reg counts.
func ctxOff(r event.Reg) int { return 8 * int(r) }

// Offsets, in the context of a return program, of the time of the entry and of the
// register arguments at the entry (bpf.PutEntry).
const (
	entryTime = bpf.RegsSize
	entryArgs = bpf.RegsSize + 8
)
