package probe

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// The memory of a kretprobe that runs in the guest, in words of 8 bytes:
//
//	line 0           used, limit, high, run, lost
//	line 1 + vCPU    handled, filtered, missed, returns, entry's block, return's block
//	then             the instances: state, return address, trampoline, task; data from the next line on
//
// used counts the activations that have an instance of these; at most limit may,
// which is MaxActive less those that have one of the host's. high is the largest that
// used - limit ever was. A state is 0 (free), the address of the return address on
// the stack (live), or that address with stateBusy: the activation is being
// begun or ended by its task, which alone may then do anything about it.
const (
	wordUsed = iota
	wordLimit
	wordHigh
	wordRun
	wordLost

	lineSize  = 64
	lineWords = lineSize / 8
)

// Words of a vCPU's line.
const (
	cellHandled = iota
	cellFiltered
	cellMissed
	cellReturns
	cellEntryBlock
	cellReturnBlock
)

// Words of an instance, and the lowest bit of its state.
const (
	instState = iota
	instRet
	instTramp
	instTask

	stateBusy = 1
)

// retStage is a kretprobe's instances in the guest, with a trampoline for each
// and the code behind those. It is there for ever: unregistering the probe only
// ends the running of the return stage. A later kretprobe at the same place with
// the same code gets it again, once nothing is under way.
type retStage struct {
	core   *core
	rp     atomic.Pointer[retprobe] // whom it is lent to, or was
	key    retKey
	user   bool
	site   guest.GVA
	prof   StackProfile
	tasks  *guest.Profile // nil: whose stack it is cannot be told
	max    int
	n      int // instances: a power of two, more than max, so that one is used again late
	stride int // bytes from one to the next
	cpus   int

	base  guest.GVA // of the memory
	words []atomic.Uint64
	bytes []byte

	tramps guest.GVA     // the first trampoline
	end    guest.GVA     // of all code
	exit   guest.GVA     // the exit for arrivals that the guest knows no activation for
	placed []placedStage // what may fault
	entry  *Stage        // what the detour calls
}

// retKey is what must be alike for a retStage to be used again: a task that was
// preempted in the code of the entry may come back at any time.
type retKey struct {
	site      guest.GVA
	user      bool
	n, stride int
	code      string
}

// stageKey returns what the code of x depends on, besides its blocks.
func stageKey(x *Stage) string {
	if x == nil {
		return "none"
	}
	return fmt.Sprintf("%x %v %x %d %v|", x.Code, x.Fixups, x.Reads, x.Stack, x.NoStrings)
}

// maxReturnCode is how much executable memory of a privilege the kretprobes that
// run in the guest may take.
const maxReturnCode = 2 << 20

// minInstances is the least number of instances in the guest: few calls come to one
// that another place on the stack has used.
const minInstances = 64

// errNotShared is why a kretprobe stays on the host.
var errNotShared = errors.New("this guest has no memory that host and guest share")

// stageReturns makes what rp needs to run in the guest.
func (e *Engine) stageReturns(rp *retprobe, st *site) (*retStage, error) {
	mem := e.opt.placer
	if mem == nil {
		return nil, errNotShared
	}
	prof, ok := e.opt.placer.StackProfile(st.user)
	if !ok || int64(int32(prof.Mask)) != int64(prof.Mask) {
		return nil, errors.New("the guest has no profile that says which vCPU a stack belongs to")
	}
	g := &retStage{
		core: &e.core,
		user: st.user, site: st.addr, prof: prof, tasks: e.profile(), cpus: len(e.cpus),
		n: max(minInstances, 2<<bits.Len(uint(rp.max-1))), stride: lineSize + (rp.probe.DataSize+lineSize-1)&^(lineSize-1),
	}
	if t := g.tasks; t != nil && (t.StackMask != prof.Mask || t.StackMagic != prof.Magic || t.MagicOff != prof.MagicOff) {
		g.tasks = nil // it is about other stacks
	}
	g.key = retKey{st.addr, g.user, g.n, g.stride, stageKey(rp.probe.Stage) + stageKey(rp.probe.ReturnStage)}
	t := &e.tramps
	for i, idle := range t.idle[g.key] {
		if idle.rests() {
			t.idle[g.key] = slices.Delete(t.idle[g.key], i, i+1)
			idle.lend(rp)
			return idle, nil
		}
	}
	if t.code[guest.Level(g.user)] > maxReturnCode {
		return nil, errors.New("kretprobes in the guest have used up their memory: reset the guest")
	}
	if uint64(g.n)*uint64(g.stride) > math.MaxInt32/2 {
		return nil, errors.New("its instances take too much memory")
	}
	var err error
	if g.base, g.bytes, err = mem.AllocShared(lineSize*(1+g.cpus)+g.n*g.stride, g.user); err != nil {
		return nil, err
	}
	g.words = guest.AtomicWords(g.bytes)
	if err := g.write(e, rp.probe); err != nil {
		return nil, err
	}
	for i := range g.n {
		g.inst(i, instTramp).Store(uint64(g.tramps) + uint64(i*trampSize))
	}
	g.lend(rp)
	return g, nil
}

// rests reports whether no activation is under way.
func (g *retStage) rests() bool {
	for i := range g.n {
		if g.inst(i, instState).Load() != 0 {
			return false
		}
	}
	return true
}

// lend makes g that of rp, whose code it has.
func (g *retStage) lend(rp *retprobe) {
	g.max = rp.max
	g.rp.Store(rp)
	for i := range g.cpus {
		for _, w := range []int{cellHandled, cellFiltered, cellMissed, cellReturns} {
			g.cell(i, w).Store(0)
		}
	}
	g.words[wordUsed].Store(0)
	g.words[wordLost].Store(0)
	g.words[wordLimit].Store(uint64(g.max))
	g.words[wordHigh].Store(uint64(-int64(g.max)))
	g.words[wordRun].Store(1)
	block := func(x *Stage, cpu int) uint64 {
		if x == nil {
			return 0
		}
		return uint64(x.Block) + uint64(cpu)*x.Stride
	}
	for i := range g.cpus {
		g.cell(i, cellEntryBlock).Store(block(rp.probe.Stage, i))
		g.cell(i, cellReturnBlock).Store(block(rp.probe.ReturnStage, i))
	}
}

// write makes the code, and puts the part that is behind the trampolines into the
// guest.
func (g *retStage) write(e *Engine, p *Kretprobe) error {
	g.entry = g.entryStage(p.Stage)
	exit, err := e.opt.exitStage(g.user)(0, nil)
	if err != nil {
		return err
	}
	size := g.n*trampSize + len(g.returnCode(0, p.ReturnStage, exit.code))
	size = (size + lineSize - 1) &^ (lineSize - 1)
	err = e.code.Put(g.site, g.user, g, func(base guest.GVA) ([]byte, error) {
		g.tramps, g.end = base, base+guest.GVA(size)
		a := insn.NewAsm(uint64(base))
		common := a.NewLabel()
		for i := range g.n {
			// Behind the return address on the stack, which the host looks for there.
			a.Lea(8, insn.RSP, insn.At(insn.RSP, -8))
			a.Push(insn.Imm(i))
			a.Jmp(common)
			a.Align(trampSize)
		}
		a.Place(common)
		a.Append(g.returnCode(guest.GVA(a.PC()), p.ReturnStage, exit.code))
		return a.Code(), nil
	})
	if err == nil {
		e.tramps.code[guest.Level(g.user)] += size
	}
	return err
}

// cell returns a word of a vCPU's line.
func (g *retStage) cell(cpu, word int) *atomic.Uint64 {
	return &g.words[lineWords*(1+cpu)+word]
}

// inst returns a word of an instance.
func (g *retStage) inst(i, word int) *atomic.Uint64 {
	return &g.words[lineWords*(1+g.cpus)+i*(g.stride/8)+word]
}

// data returns a copy of the private memory of an instance.
func (g *retStage) data(i, n int) []byte {
	at := lineSize*(1+g.cpus) + i*g.stride + lineSize
	return slices.Clone(g.bytes[at : at+min(n, g.stride-lineSize)])
}

// Addresses of the parts in the guest.
func (g *retStage) cells() guest.GVA { return g.base + lineSize }
func (g *retStage) insts() guest.GVA { return g.base + guest.GVA(lineSize*(1+g.cpus)) }

// counts are Stage.Counts.
func (g *retStage) counts(cpu int) (hits, handled, filtered, missed uint64) {
	handled, filtered, missed = g.cell(cpu, cellHandled).Load(), g.cell(cpu, cellFiltered).Load(), g.cell(cpu, cellMissed).Load()
	if cpu == 0 {
		missed += g.words[wordLost].Load()
	}
	return handled + filtered + missed, handled, filtered, missed
}

// used returns how many activations have an instance here, as the guest says.
func (g *retStage) used() int64 {
	return min(max(0, int64(g.words[wordUsed].Load())), int64(g.max))
}

// high returns the most activations that there ever were at a time, those with an
// instance of the host's included, as the guest says.
func (g *retStage) high() int64 {
	return min(max(0, int64(g.words[wordHigh].Load())+int64(g.max)), int64(g.max))
}
