package bpf

import "encoding/binary"

// VM runs programs on one vCPU, one at a time, in the host's interpreter. It belongs
// to that vCPU's thread; only Stats may be read elsewhere, while it does not run.
type VM struct {
	prog   *Program
	cpu    int
	env    Env
	segs   []segment
	stack  []byte
	spare  [maxSpare]byte // for helpers
	line   [2 * maxLine]byte
	str    [maxString]byte
	pcs    [maxPCs]uint64
	shower shower

	frames  [MaxFrames]frame
	records [MaxReservations]record
	open    int // records reserved

	lock     []byte // that the run holds, nil: none
	lockAddr uint64

	depth   int    // frames in use but one, while a helper runs
	tails   int    // tail calls of the run
	keys    []byte // of for_each_map_elem: keyRoom bytes for each frame
	keyRoom int
	left    int64  // of the budget, while a helper runs
	badPage uint64 // page of guest memory that could not be read in this run

	fault Fault
	stats RunStats
}

const (
	maxSpare = 64  // the most that a helper copies through the VM
	maxPCs   = 127 // the most return addresses of get_stack, as in perf
)

// frame is the saved state of a local call's caller.
type frame struct {
	ret   int
	saved [4]uint64 // r6 to r9
}

// record is a reservation that is not submitted yet.
type record struct {
	ring *Map // nil: none
	off  int  // of the data in the ring's memory, if it is there
	data []byte
}

// NewVM returns a VM on vCPU cpu for a program, which may be nil: see Use.
func NewVM(p *Program, cpu int) *VM {
	v := &VM{cpu: cpu, stack: alignedBytes(StackSize), segs: make([]segment, segMaps, maxSegs)}
	v.segs[segContext].count = 1
	if v.keyRoom = maxGuestKey; p == nil { // programs on the hit path, whose runs allocate nothing
		v.keyRoom = MaxKeySize
	}
	v.keys = make([]byte, MaxFrames*v.keyRoom)
	v.segs[segStack] = segment{bytes: v.stack, count: 1, limit: StackSize}
	if p != nil {
		v.Use(p)
	}
	return v
}

// Use makes p the program that Run runs. The vCPU must be one that its maps were made
// for.
func (v *VM) Use(p *Program) {
	if v.cpu < 0 || len(p.maps) > 0 && v.cpu >= p.cpus {
		panic("BUG: no such vCPU")
	}
	v.prog = p
	v.segs = append(v.segs[:segMaps], p.segs...)
	v.segs[segContext].readOnly = p.kind.hasRegs()
}

// Leave drops the program, and with it the memory of its maps, until Use.
func (v *VM) Leave() {
	v.prog = nil
	clear(v.segs[segMaps:])
	v.segs = v.segs[:segMaps]
}

// Stats returns the counts of this VM.
func (v *VM) Stats() RunStats { return v.stats }

// Stack returns the memory of the program's stack frames. It belongs to the vCPU's
// thread, and keeps the contents of the last run.
func (v *VM) Stack() []byte { return v.stack }

// Run runs the program on a context: RegsSize bytes, made by PutRegs, for programs
// attached to probes; ReturnSize bytes, including PutEntry's, for a Kretprobe; any
// memory for a raw program (R2 is then its length). It returns R0. If the program was
// ended early the error is a *Fault, valid until the next Run. The initial contents
// of the stack are unspecified. Run allocates nothing.
func (v *VM) Run(ctx []byte, env Env) (uint64, error) {
	var regs [16]uint64
	c := &v.segs[segContext]
	c.bytes, c.limit = ctx, min(uint64(len(ctx)), offMask)
	regs[R1] = segPointer(segContext, 0, 0)
	if !v.prog.kind.hasRegs() {
		regs[R2] = uint64(len(ctx))
	}
	v.env, v.badPage = env, noPage
	v.stats.Runs++
	regs[R10] = segPointer(segStack, 0, StackSize)
	v.left, v.tails = v.prog.budget, 0
	first := v.prog
	code := v.run(&regs, 0, 0)
	if v.prog != first {
		v.Use(first)
	}
	if v.open > 0 {
		v.dropRecords()
	}
	if v.lock != nil {
		v.releaseLock()
	}
	v.env = nil
	c.bytes = nil
	if code == NoFault {
		return regs[R0], nil
	}
	v.fault.Code = code
	v.stats.Faults[code]++
	v.stats.Last = v.fault
	return 0, &v.fault
}

// mem returns the n bytes at address p for reading, or nil.
func (v *VM) mem(p, n uint64) []byte {
	s := p >> segShift
	if s >= uint64(len(v.segs)) {
		return nil
	}
	return v.segs[s].bytesAt(p, n)
}

// memW is mem for writing.
func (v *VM) memW(p, n uint64) []byte {
	s := p >> segShift
	if s >= uint64(len(v.segs)) || v.segs[s].readOnly {
		return nil
	}
	return v.segs[s].bytesAt(p, n)
}

// dropRecords discards records that a program reserved and did not submit.
func (v *VM) dropRecords() {
	for i := range v.records {
		if v.records[i].ring != nil {
			v.endRecord(i, recDiscarded)
		}
	}
}

func (v *VM) endRecord(i int, kind uint64) {
	v.records[i].end(kind, v.cpu)
	v.records[i] = record{}
	v.segs[segRecords+i] = segment{}
	v.open--
}

func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
