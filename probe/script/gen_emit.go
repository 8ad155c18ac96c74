package script

import (
	"math/bits"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// emitter emits the instructions of one program: it knows the places of values and
// maps, but nothing about the script.
type emitter struct {
	bpfgen.Builder
	number int // of the program
	maps   []string
	spans  []Span // of each instruction
	at     Span   // the part of the script that is being compiled

	frame, room       int  // bytes in use
	frameTop, roomTop int  // at most
	inRoom            bool // all values are in the room, where functions find them

	functions []func() // that are emitted after the program
}

// note records the source of the instructions emitted since the last call.
func (g *emitter) note() {
	for len(g.spans) < len(g.Insns) {
		g.spans = append(g.spans, g.at)
	}
}

// runAt runs f for a part of the source.
func (g *emitter) runAt(sp Span, f func()) {
	g.note()
	was := g.at
	g.at = sp
	f()
	g.note()
	g.at = was
}

// loadMap loads a map for a helper.
func (g *emitter) loadMap(r asm.Register, name string) {
	g.Emit(asm.LoadMapPtr(r, g.mapNumber(name)))
}

// mapNumber is the number of a map in the program.
func (g *emitter) mapNumber(name string) int {
	for i, n := range g.maps {
		if n == name {
			return i
		}
	}
	g.maps = append(g.maps, name)
	return len(g.maps) - 1
}

func (g *emitter) roomName() string { return numberedName(mapRoom, g.number) }

// alloc allocates n bytes until free.
func (g *emitter) alloc(n int) mem {
	n = roundUp8(n)
	if !g.inRoom && n <= 64 && g.frame+n <= frameRoom || !g.inRoom && g.frame+n <= frameRoom/2 {
		g.frame += n
		g.frameTop = max(g.frameTop, g.frame)
		return mem{rFP, -g.frame}
	}
	m := mem{rRoom, g.room}
	g.room += n
	g.roomTop = max(g.roomTop, g.room)
	return m
}

// runInScope runs f, and frees its allocations.
func (g *emitter) runInScope(f func()) {
	frame, room := g.frame, g.room
	f()
	g.frame, g.room = frame, room
}

// load loads 8 bytes.
func (g *emitter) load(r asm.Register, m mem) { g.Emit(bpfgen.Load(8, r, m.base, m.off)) }

// store stores 8 bytes.
func (g *emitter) store(m mem, r asm.Register) { g.Emit(bpfgen.Store(8, m.base, m.off, r)) }

// address sets a register to an address.
func (g *emitter) address(r asm.Register, m mem) { g.Addr(r, m.base, m.off) }

// clear stores zeros.
func (g *emitter) clear(m mem, n int) {
	first := g.forChunks(n, func() {
		g.address(asm.R1, m)
		g.Emit(asm.Add.Reg(asm.R1, asm.R2))
		g.Zero(asm.R1, 0, chunk)
	})
	g.Zero(m.base, m.off+first, n-first)
}

// Values of more than maxUnrolled bytes are copied, cleared and compared by a loop, a
// chunk at a time.
const (
	maxUnrolled = 1024
	chunk       = 64
)

// forChunks emits a loop over all whole chunks of n bytes, if those are many, and
// returns where they end: f emits the code for the chunk whose offset is in R2; it
// may change R1, R3 and R4.
func (g *emitter) forChunks(n int, f func()) (end int) {
	if n <= maxUnrolled {
		return 0
	}
	end = n / chunk * chunk
	again := g.NewLabel()
	g.Emit(asm.Mov.Imm(asm.R2, 0))
	g.Place(again)
	f()
	g.Emit(asm.Add.Imm(asm.R2, chunk))
	g.If(asm.JLT, asm.R2, uint64(end), again)
	return end
}

// copy copies n bytes, a multiple of 8.
func (g *emitter) copy(to, from mem, n int) {
	first := g.forChunks(n, func() {
		g.address(asm.R1, to)
		g.address(asm.R3, from)
		g.Emit(asm.Add.Reg(asm.R1, asm.R2), asm.Add.Reg(asm.R3, asm.R2))
		for i := 0; i < chunk; i += 8 {
			g.load(asm.R4, mem{asm.R3, i})
			g.store(mem{asm.R1, i}, asm.R4)
		}
	})
	for i := first; i < n; i += 8 {
		g.load(asm.R1, from.offset(i))
		g.store(to.offset(i), asm.R1)
	}
}

// countFailure counts a failure at a site; R0 has the errno, and is preserved.
func (g *emitter) countFailure(site int) {
	g.Emit(asm.LoadMapValue(asm.R1, g.mapNumber(mapSites), uint32(16*site)))
	g.store(mem{asm.R1, 8}, asm.R0)
	g.Emit(asm.Mov.Imm(asm.R2, 1), asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0))
}

// countFailureIfNegative is countFailure if R0 is negative.
func (g *emitter) countFailureIfNegative(site int) {
	ok := g.NewLabel()
	g.If(asm.JSGE, asm.R0, 0, ok)
	g.countFailure(site)
	g.Place(ok)
}

// textLength leaves the length of a string of at most n bytes in R0.
func (g *emitter) textLength(m mem, n int) {
	again, done := g.NewLabel(), g.NewLabel()
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(again)
	g.address(asm.R1, m)
	g.Emit(asm.Add.Reg(asm.R1, asm.R0), bpfgen.Load(1, asm.R1, asm.R1, 0))
	g.If(asm.JEq, asm.R1, 0, done)
	g.Emit(asm.Add.Imm(asm.R0, 1))
	g.If(asm.JLT, asm.R0, uint64(n), again)
	g.Place(done)
}

// compareWords continues if n bytes are equal, and otherwise jumps to otherwise.
func (g *emitter) compareWords(x, y mem, n int, otherwise bpfgen.Label) {
	first := g.forChunks(n, func() {
		g.address(asm.R3, x)
		g.address(asm.R4, y)
		g.Emit(asm.Add.Reg(asm.R3, asm.R2), asm.Add.Reg(asm.R4, asm.R2))
		g.compareWords(mem{asm.R3, 0}, mem{asm.R4, 0}, chunk, otherwise)
	})
	for i := first; i < n; i += 8 {
		on := g.NewLabel()
		g.load(asm.R0, x.offset(i))
		g.load(asm.R1, y.offset(i))
		g.JumpTo(asm.JEq.Reg(asm.R0, asm.R1, ""), on)
		g.GoTo(otherwise)
		g.Place(on)
	}
}

func (g *emitter) putWord(w uint64, to mem) {
	if int64(w) == int64(int32(w)) {
		g.Emit(bpfgen.StoreConst(8, to.base, to.off, int32(w)))
		return
	}
	g.Emit(bpfgen.Const(asm.R1, w))
	g.store(to, asm.R1)
}

// scale multiplies R0 by the size of a pointer's target; R1 changes.
func (g *emitter) scale(size int) {
	switch {
	case size == 1 || size == 0:
	case size&(size-1) == 0:
		g.Emit(asm.LSh.Imm(asm.R0, int32(bits.TrailingZeros(uint(size)))))
	default:
		g.Emit(bpfgen.Const(asm.R1, uint64(size)), asm.Mul.Reg(asm.R0, asm.R1))
	}
}

// readNumber leaves the n bytes at R0 in R0.
func (g *emitter) readNumber(n, site int) {
	g.runInScope(func() {
		to := g.alloc(8)
		g.Emit(asm.Mov.Reg(asm.R3, asm.R0), bpfgen.StoreConst(8, to.base, to.off, 0))
		g.address(asm.R1, to)
		g.Emit(asm.Mov.Imm(asm.R2, int32(n)), bpfgen.Call(bpf.HelperReadKernel))
		g.countFailureIfNegative(site)
		g.load(asm.R0, to)
	})
}

// stackWord leaves in R0 word n on the stack above the return address, from 1.
func (g *emitter) stackWord(n, site int) {
	g.Emit(bpfgen.Load(8, asm.R0, rCtx, x86.PtSP))
	g.Add(asm.R0, 8*int64(n))
	g.readNumber(8, site)
}

// convert converts R0 to another type.
func (g *emitter) convert(from, to Type) {
	switch {
	case from.Kind == Bool && to.Kind == Int:
	case to.Kind == Bool:
		zero := g.NewLabel()
		g.If(asm.JEq, asm.R0, 0, zero)
		g.Emit(asm.Mov.Imm(asm.R0, 1))
		g.Place(zero)
	case to.Kind != Int || to.Size == 8 || from.Kind == Int && from.Size == to.Size && from.Signed == to.Signed:
	case to.Signed:
		op := map[int]asm.ALUOp{1: asm.MovSX8, 2: asm.MovSX16, 4: asm.MovSX32}[to.Size]
		g.Emit(op.Reg(asm.R0, asm.R0))
	case to.Size == 4:
		g.Emit(asm.Mov.Reg32(asm.R0, asm.R0))
	default:
		g.Emit(asm.And.Imm(asm.R0, int32(1)<<(8*to.Size)-1))
	}
}
