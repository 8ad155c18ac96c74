package probe

import (
	"fmt"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// Kretprobe is a probe on the return of a guest function. Fill in where (at a
// function's entry) and the handlers, then Engine.Register it. The
// embedded Kprobe stands for it everywhere else: Engine.Unregister(&r.Kprobe),
// Enable, Disable, Info and Stats. Its Filter decides which calls are followed;
// Pre, Post and Fault must be nil. Disabling it ends the following of new
// calls; the return handler still runs for those under way.
//
// A call that is followed has an instance from entry to return, however often
// its task is switched away and wherever it goes on. The function may be
// recursive. Where it is left in another way than by its return, the instance
// is given back when its stack is used again, or, where the image has a guest
// profile (guest.Profile), when its task is gone or has unwound its stack (see
// Info.InUse).
//
// The guest's stack holds a trampoline's address instead of the return address
// meanwhile; Context.Ret and Context.Stack show the real one. A guest with
// shadow stacks (CET) would not accept that: the machine offers none to it. A
// function that returns twice (setjmp, vfork) is followed to its first return;
// its later ones find where to go on without a handler. Once one was seen, its
// instances are kept for the callers that they were used for, and calls from
// elsewhere miss when there is none left.
type Kretprobe struct {
	Kprobe

	// Entry runs at the function's entry. Nonzero means that this call is not
	// followed; it counts as filtered. nil follows all.
	Entry func(*Context) int

	// Return runs when the function has returned: Regs.RIP is where the caller
	// goes on, Regs.RSP the caller's, and Regs.RAX (and RDX) the result, which may
	// be changed. A change of Regs.RIP has no effect, as in the kernel. Of several
	// kretprobes on one function the oldest runs first. nil does nothing.
	Return func(*Context)

	// ReturnStage, when set, is Return in the form of machine code, and
	// Kprobe.Stage then Filter and Entry: in RAX it returns whether the call is not
	// followed; nil follows all. Stage keeps in the private memory what Entry does: a call
	// that begins in the guest can return by way of the host. On an optimized site whose probes all have such
	// forms both run in the guest, and neither the call nor its return takes an exit.
	// In RDX both find the address of the activation's private memory, of DataSize
	// bytes, aligned to 64. The context of the return stage is that of the return:
	// ip is where the caller goes on, sp the caller's, ax the result; behind its 168
	// bytes stand the first words of the private memory, as far as Reads has bits for
	// them. Neither can
	// change a register. Calls are followed by instances in memory that the guest
	// shares; the limit is MaxActive for these and the host's together. Once the
	// function was seen to return twice, the probe goes to the host for good. Several
	// kretprobes on one place of the stack see each other's trampolines as return
	// address, where the programs look at the stack themselves.
	ReturnStage *Stage

	// MaxActive is the number of calls that can be followed at a time; further
	// ones count as missed. 0 or less stands for the kernel's default, the larger
	// of 10 and twice the number of vCPUs. After registration it is the number in
	// force.
	MaxActive int

	// DataSize is the size of Context.Data, 0 to MaxDataSize.
	DataSize int
}

// MaxDataSize is the largest Kretprobe.DataSize, in bytes: the kernel's
// KRETPROBE_MAX_DATA_SIZE.
const MaxDataSize = 4096

// maxInstances is the largest Kretprobe.MaxActive: 1 MiB of trampolines.
const maxInstances = 1 << 16

// unreturnable are functions that no kretprobe may be on (the kernel's
// kretprobe blacklist): they return on another stack than they were called on.
var unreturnable = map[string]bool{"__switch_to": true}

// retprobe is what a registration of a kretprobe has besides that of a kprobe.
type retprobe struct {
	reg   *registration
	probe *Kretprobe
	max   int   // instances
	pool  *pool // nil while the code is gone; changes only while the world is stopped, by Reload
	cells []retCell

	abandoned atomic.Uint64

	stage   atomic.Pointer[retStage] // in the guest; nil: it cannot run there
	noStage string                   // then why, if it has the stages; guarded by Engine.view, or not yet published
	again   atomic.Bool              // the function returns twice: only the host keeps instances apart for that
	base    []retBase                // by vCPU
}

// retCell holds the counts of one kretprobe on one vCPU.
type retCell struct {
	returns atomic.Uint64
	_       [56]byte
}

// registration implements Probe.
func (rp *Kretprobe) registration(e *Engine) *registration {
	if rp == nil {
		return nil
	}
	r := rp.Kprobe.registration(e)
	r.kind, r.check = kindKretprobe, (*registration).checkReturn
	r.ret = &retprobe{reg: r, probe: rp, max: e.maxActive(rp), cells: make([]retCell, len(e.cpus)), base: make([]retBase, len(e.cpus))}
	return r
}

// checkReturn makes the checks of a kretprobe in the kernel's order (kprobes A.2).
func (r *registration) checkReturn(p *places, at place) *Error {
	rp := r.ret.probe
	switch {
	case !at.entry:
		return notEntry(at)
	case unreturnable[at.sym.Name]:
		return newError(CodeBlacklisted, fmt.Sprintf("%s must not have a kretprobe", at.sym.Name), "it returns on another stack")
	case at.sym.User && p.oneSpace:
		return newError(CodeHostCannot, "this target cannot access the stack with the rights of user code", "")
	case rp.DataSize < 0 || rp.DataSize > MaxDataSize:
		return newError(CodeDataSize, fmt.Sprintf("%d bytes of private data", rp.DataSize), fmt.Sprintf("0 to %d", MaxDataSize))
	case rp.Pre != nil || rp.Post != nil || rp.Fault != nil:
		return newError(CodeHandlers, "a kretprobe has an entry and a return handler", "Pre, Post and Fault must be nil")
	case rp.MaxActive > maxInstances:
		return newError(CodeNoInstances, fmt.Sprintf("%d instances", rp.MaxActive), fmt.Sprintf("at most %d", maxInstances))
	}
	return nil
}

// notEntry refuses a place that is not the entry of a function.
func notEntry(at place) *Error {
	return newError(CodeNotEntry, fmt.Sprintf("%s+%#x is not the entry of a function", at.sym.Name, uint64(at.addr-at.sym.Addr)), "")
}

// maxActive returns the number of instances that rp is to have.
func (e *Engine) maxActive(rp *Kretprobe) int {
	if rp.MaxActive <= 0 {
		return max(10, 2*len(e.cpus))
	}
	return rp.MaxActive
}

// returning is what a kretprobe needs where it is.
type returning struct {
	pool    *pool
	stage   *retStage // nil: it cannot run in the guest,
	noStage string    // if it has the stages, for this reason
}

// prepareReturns makes what rp needs on st.
func (e *Engine) prepareReturns(rp *retprobe, st *site) (*returning, *Error) {
	p, err := e.fillPool(rp, st)
	if err != nil {
		return nil, err
	}
	x := &returning{pool: p}
	if rp.probe.ReturnStage == nil {
		return x, nil
	}
	if x.noStage = e.can[guest.Level(st.user)].NoStage; x.noStage != "" {
		return x, nil
	}
	g, why := e.stageReturns(rp, st)
	if why != nil {
		x.noStage = why.Error()
		return x, nil
	}
	x.stage = g
	return x, nil
}

// settleReturns ends the registration of r, which was installed or was not.
func (e *Engine) settleReturns(r *registration, installed bool) {
	switch {
	case installed:
		r.ret.probe.MaxActive = r.ret.max
	case r.ret.pool != nil:
		e.tramps.giveBack(r.ret.pool.inst)
		r.ret.leaveGuest(&e.tramps)
	}
}

// fillPool makes a pool for a kretprobe on st.
func (e *Engine) fillPool(rp *retprobe, st *site) (*pool, *Error) {
	e.reapOrphans()
	n := rp.max + spareInstances(rp.max)
	list, err := e.borrow(n, st.user, st.addr)
	if err != nil {
		x := newError(CodeNoInstances, "no memory for the trampolines", fmt.Sprintf("%d instances", n))
		x.Cause = err
		return nil, x
	}
	return newPool(rp, list, e.profile()), nil
}

// reapOrphans makes instances of unregistered probes available again, as far
// as they have come back or never will.
func (e *Engine) reapOrphans() {
	var buf [8]byte
	var last *pool
	for _, in := range e.tramps.orphans {
		if p := in.pool.Load(); p != last {
			e.sweep(p, 0, len(p.inst), buf[:])
			last = p
		}
	}
	e.tramps.reap()
}

// retInfo fills in what only a kretprobe has. Callers hold Engine.view or
// Engine.mu.
func (e *Engine) retInfo(rp *retprobe, i *Info) {
	i.Type = 'r'
	i.MaxActive, i.NoStage = rp.max, rp.noStage
	if rp.again.Load() {
		i.NoStage = "the function returns twice"
	}
	if p := rp.pool; p != nil {
		var buf [8]byte
		e.sweep(p, 0, len(p.inst), buf[:])
		i.InUse, i.HighWater = int(p.used.Load()), int(p.high.Load())
		if g := rp.stage.Load(); g != nil {
			n, undecided := g.look(&e.core, buf[:])
			i.InUse += n
			i.HighWater = max(i.HighWater, int(g.high()))
			if undecided {
				p.undecided.Store(true)
			}
		}
	}
}

// bury ends the pool of a kretprobe that was unregistered: what is outstanding
// returns without a handler. The world is stopped.
func (rp *retprobe) bury(t *trampolines) {
	if rp.pool == nil {
		return
	}
	rp.leaveGuest(t)
	rp.pool.dead.Store(true)
	t.retire(rp.pool)
}

// begin gives rp what it needs on its site: nil for nothing, because the code is
// gone. Activations of before are gone as well, with the guest that was reset. The
// world is stopped, or rp is not on its site yet.
func (rp *retprobe) begin(x *returning) {
	if rp.pool != nil {
		rp.abandoned.Add(uint64(rp.pool.used.Load()))
	}
	if x == nil {
		x = &returning{}
	}
	rp.pool, rp.noStage = x.pool, x.noStage
	rp.stage.Store(x.stage) // Save has taken the counts of the one before
}

// The run functions are those of kprobes for the handlers of a kretprobe.

func (c *cpu) runEntry(r *registration) (skip int) {
	depth := c.depth
	defer c.contain(&r.tally, "entry", depth)
	return r.ret.probe.Entry(&c.ctx)
}

func (c *cpu) runReturn(r *registration) {
	depth := c.depth
	defer c.contain(&r.tally, "return", depth)
	r.ret.probe.Return(&c.ctx)
}

// readWord and writeWord access a word of the interrupted code's stack, with its rights.
func (c *cpu) readWord(s State, addr uint64) (guest.GVA, bool) {
	c.mem.root, c.mem.cpl = s.Root, s.CPL
	if c.mem.Read(addr, c.word[:]) != nil {
		return 0, false
	}
	return guest.GVA(le.Uint64(c.word[:])), true
}

func (c *cpu) writeWord(s State, addr uint64, v guest.GVA) bool {
	c.mem.root, c.mem.cpl = s.Root, s.CPL
	le.PutUint64(c.word[:], uint64(v))
	return c.mem.Write(addr, c.word[:]) == nil
}
