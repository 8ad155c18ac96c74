package bpf

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// A run block is the working memory of a compiled program: one for each program and
// vCPU, in writable guest memory that programs cannot address. The compiled code
// finds everything through it.
const (
	blkBusy    = 0  // u32: a run is under way, or the block is retired
	blkCPU     = 4  // u32: vCPU
	blkBudget  = 8  // i64: left
	blkRSP     = 16 // u64: stack pointer to unwind to
	blkFault   = 24 // u32: FaultCode of the latest run ended by a fault, 0 = none
	blkPC      = 28 // u32: slot of the last fault
	blkAddr    = 32 // u64: its address
	blkRuns    = 40 // u64: runs begun
	blkFailed  = 48 // u64: runs ended by a fault
	blkMissed  = 56 // u64: calls while a run was under way
	blkFuncIP  = 64 // u64: address of the probed function; the engine sets it
	blkRandom  = 72 // u64: of get_prandom_u32, never 0
	blkTSC     = 80 // u64: clock: TSC at
	blkMult    = 88 // u64: nanoseconds per tick, 32.32 bits
	blkTime    = 96 // u64: this time
	blkOpen    = 104
	blkRecords = 112 // MaxReservations times u64 address of the data, u64 size
	blkAnswers = 176 // 4 u64: runs that ended without a fault, by the low two bits of R0
	blkTemp    = 208 // 8 u64 for the code of helpers
	blkFrames  = 272 // the rule of the interrupted frame: see PlaceBlock
	blkWalk    = 304 // u64: address of the number of addresses of the interrupted stack, which follow it (Layout.Walked)
	blkStack   = 320 // StackSize bytes
	blkSegs    = blkStack + StackSize

	blkRecordSize = 16

	blkFrameBase = blkFrames      // u64: the base of the CFA, or why it has none
	blkFrameCFA  = blkFrames + 8  // i64
	blkFrameRBP  = blkFrames + 16 // i64: FrameRule.RBP
	blkFramePC   = blkFrames + 24 // u64: where the code is
)

// Bases of the interrupted frame.
const (
	frameBad   = iota // unknown
	frameOuter        // it has no caller
	frameRSP
	frameRBP
)

// localOff is the offset of a run block's table, after the segment table, which has
// the address of the vCPU's own values of each map.
func (p *Program) localOff(m int) int {
	return blkSegs + segSize*(segMaps+len(p.maps)) + 8*m
}

// A segment entry, 64 bytes: the place of an element and the limits of accesses to
// it. Limits are the highest signed offsets of accesses of 1, 2, 4 and 8 bytes; -1
// allows no access.
const (
	segBase    = 0
	segStride  = 8
	segCount   = 16 // u32
	segLoad    = 24 // 4 times i32
	segStore   = 40 // 4 times i32
	segLoadLen = 56 // u32: bytes that may be read
	segStorLen = 60 // u32: bytes that may be written

	segSize = 64
)

// TaskProfile has the places of the data that the task helpers return.
type TaskProfile struct {
	TID, TGID int32 // offsets of 32-bit IDs in the task structure
	Comm      int32 // offset of the name, 16 bytes

	// Stack says how to find the task structure from the interrupted stack pointer,
	// with Layout.Fixups. If it is nil, the structure's address is at GS base +
	// Current, as 8 bytes, and both are mapped wherever a program runs.
	Stack   *StackProfile
	Current int32

	// Owner and Cgroup are the results of get_current_uid_gid and
	// get_current_cgroup_id; nil: not known, or not with Layout.Fixups.
	Owner, Cgroup *TaskNumber
}

// Knows reports whether the result of a helper is known that needs Owner or Cgroup; of
// any other helper it is.
func (t *TaskProfile) Knows(h Helper) bool {
	switch h {
	case HelperGetUIDGID:
		return t.Owner != nil
	case HelperGetCgroupID:
		return t.Cgroup != nil
	}
	return true
}

// TaskNumber says where a number of the current task is. At each offset of Follow, from
// the task's structure on, is the address of the next structure; the last one has the
// number. It is 0 if memory is missing on the way.
type TaskNumber struct {
	Follow []int32
	Off    int32 // 8 bytes, or 4 if it has a High half
	Split  bool
	High   int32 // 4 bytes
}

// StackProfile says that at the address RSP & Mask the guest has the structure of the
// task that runs on this stack, if the word at MagicOff is Magic. A stack pointer for
// which this fails belongs to no task: its numbers are 0 and its name is empty.
type StackProfile struct {
	Mask, Magic uint64
	MagicOff    int32 // 8 bytes
}

// Clock turns the guest's TSC into the time of ktime_get_ns:
// Time + (tsc - TSC) * Mult / 2^32.
type Clock struct{ TSC, Mult, Time uint64 }

// Layout is the compiler's knowledge of the guest.
type Layout struct {
	// Task is nil if the current task is not known; a program that asks for it then
	// runs on the host.
	Task *TaskProfile
	// Fixups says that the machine resumes a fault at an address of Info.Fixups at
	// its Resume. Without it, a program that reads guest memory runs on the host.
	Fixups bool
	// Shared says that two vCPUs may enter with the same block, for example if the
	// thread moves after the block was looked up: it is then claimed with a locked
	// instruction.
	Shared bool
	// Cookie is the result of get_attach_cookie.
	Cookie uint64

	// Frames says how to walk stacks; nil: the code cannot.
	Frames *Frames
	// Walked says that the interrupted code's stack has been walked before the code is
	// called, up to Info.Walk addresses: BlockConfig.Walk.
	Walked bool

	// NoGuest says that every read of guest memory fails, as with NoEnv.
	NoGuest bool
	// Full disables small programs.
	Full bool
}

// BlockConfig is the initial data of a run block.
type BlockConfig struct {
	CPU    int
	FuncIP uint64   // address of the probed function
	Frame  *FrameAt // of the interrupted code; nil: its stack cannot be walked
	Walk   uint64   // address of the number of addresses of its stack, which follow it; 0: none
	Clock  Clock
}

// PlaceBlock sets the address of the probed function in a run block to funcIP, and
// the rule of the interrupted code to frame.
func PlaceBlock(block Area, funcIP uint64, frame *FrameAt) {
	le := binary.LittleEndian
	le.PutUint64(block.Bytes[blkFuncIP:], funcIP)
	base := frameBad
	switch {
	case frame == nil:
		frame = &FrameAt{}
	case frame.Outer:
		base = frameOuter
	case frame.FromRBP:
		base = frameRBP
	default:
		base = frameRSP
	}
	for i, w := range []uint64{uint64(base), uint64(frame.CFA), uint64(frame.RBP), frame.PC} {
		le.PutUint64(block.Bytes[blkFrames+8*i:], w)
	}
}

// BlockSize returns the size of the program's run blocks, for any code of it;
// Info.BlockSize may be less.
func (p *Program) BlockSize() int {
	n := p.walkOff()
	if slices.Contains(p.helpers, HelperGetStackID) {
		n += 8 * maxPCs
	}
	return roundUp(n, 64)
}

// InitBlock writes a new run block for one vCPU into area, which is aligned to 64,
// has at least Info.BlockSize bytes, and belongs to that vCPU and this program alone.
// Until it returns no compiled code may run in the block.
func (p *Program) InitBlock(area Area, c BlockConfig) {
	if c.CPU < 0 || len(p.maps) > 0 && c.CPU >= p.cpus {
		panic("BUG: no such vCPU")
	}
	b := area.Bytes[:min(len(area.Bytes), p.BlockSize())]
	clear(b)
	le := binary.LittleEndian
	le.PutUint32(b[blkCPU:], uint32(c.CPU))
	PlaceBlock(Area{Bytes: b}, c.FuncIP, c.Frame)
	if slices.Contains(p.helpers, HelperGetRandom) {
		le.PutUint64(b[blkRandom:], rand.Uint64()|1)
	}
	le.PutUint64(b[blkWalk:], c.Walk)
	le.PutUint64(b[blkTSC:], c.Clock.TSC)
	le.PutUint64(b[blkMult:], c.Clock.Mult)
	le.PutUint64(b[blkTime:], c.Clock.Time)
	if len(b) < p.BlockSize() {
		return // the code does not use it
	}
	ctx := segment{count: 1, limit: uint64(p.contextSize()), readOnly: true}
	if !p.kind.hasRegs() || p.kind.typed() { // a typed program does not use it
		ctx = segment{count: 1}
	}
	putSegment(b, segContext, 0, ctx)
	putSegment(b, segStack, area.Addr+blkStack, segment{count: 1, limit: StackSize})
	for i, m := range p.maps {
		putSegment(b, segMaps+i, m.area.Addr+uint64(m.values), m.segment())
		local := m.area.Addr + uint64(m.values)
		if m.perCPU {
			local += uint64(c.CPU * m.entries * m.stride)
		}
		le.PutUint64(b[p.localOff(i):], local)
	}
}

func putSegment(b []byte, i int, base uint64, s segment) {
	e, le := b[blkSegs+i*segSize:], binary.LittleEndian
	le.PutUint64(e[segBase:], base)
	le.PutUint64(e[segStride:], s.stride)
	le.PutUint32(e[segCount:], uint32(s.count))
	write := s.limit
	if s.readOnly {
		write = 0
	}
	for k := range 4 {
		le.PutUint32(e[segLoad+4*k:], uint32(max(int64(s.limit)-1<<k, -1)))
		le.PutUint32(e[segStore+4*k:], uint32(max(int64(write)-1<<k, -1)))
	}
	le.PutUint32(e[segLoadLen:], uint32(s.limit))
	le.PutUint32(e[segStorLen:], uint32(write))
}

// BlockStats returns the counts in a run block, as reported by the guest.
func BlockStats(area Area) (runs, failed, missed uint64, last Fault) {
	b, le := area.Bytes, binary.LittleEndian
	last = Fault{Code: FaultCode(le.Uint32(b[blkFault:])), PC: int(le.Uint32(b[blkPC:])), Addr: load64(b, blkAddr)}
	return load64(b, blkRuns), load64(b, blkFailed), load64(b, blkMissed), last
}

// Retire takes a block out of use: from now on code that is entered with it only
// counts a missed call. It reports whether no run is under way in it, so that nothing
// uses the program's maps through it any more, as far as the guest reports. No vCPU
// may be in guest mode during the call.
func (i *Info) Retire(area Area) (idle bool) {
	idle = binary.LittleEndian.Uint32(area.Bytes[blkBusy:]) == 0
	if i.Reentrant {
		ended := load64(area.Bytes, blkFailed)
		for _, n := range BlockAnswers(area) {
			ended += n
		}
		idle = load64(area.Bytes, blkRuns) == ended
	}
	binary.LittleEndian.PutUint32(area.Bytes[blkBusy:], 1)
	return idle
}

// BlockStack returns the memory of the stack frames in a run block.
func BlockStack(area Area) []byte { return area.Bytes[blkStack:][:StackSize] }

// BlockAnswers returns how many runs have ended without a fault, by the low two bits
// of their results, as reported by the guest. Together with the runs ended by a fault
// these are all that have ended.
func BlockAnswers(area Area) (n [4]uint64) {
	for i := range n {
		n[i] = load64(area.Bytes, blkAnswers+8*i)
	}
	return n
}
