package probe

import (
	"fmt"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// Kretprobe is a probe on the return of a guest function. Fill in where (at a
// function's entry) and the handlers, then Engine.RegisterKretprobe it. The
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
	// followed; nil follows all. On an optimized site whose probes all have such
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

	// FromGuest, when set, turns what Stage keeps in the private memory into what
	// Entry would have kept, in place: for the rare call that begins in the guest and
	// whose return the host handles (of a function that pops its arguments).
	FromGuest func(data []byte)

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

// RegisterKretprobe puts all of rs on the guest, or none, as Register does for
// kprobes. Besides the refusals there: not_entry, blacklisted (a function that
// returns on another stack), data_size, handlers and no_instances.
func (e *Engine) RegisterKretprobe(rs ...*Kretprobe) error { return e.RegisterAll(asProbes(rs)...) }

// CheckKretprobe is Check for a kretprobe.
func (e *Engine) CheckKretprobe(rp *Kretprobe) (Info, error) {
	if err := e.lock(); err != nil {
		return Info{}, err
	}
	defer e.mu.Unlock()
	r, err := rp.admitTo(e, e.newBatch(1))
	if err != nil {
		return Info{}, err
	}
	return e.info(r), nil
}

// admitTo checks rp in the kernel's order (kprobes A.2) and adds it to the
// batch, as yet without instances.
func (rp *Kretprobe) admitTo(e *Engine, b *batch) (*registration, *Error) {
	if rp == nil {
		return nil, newError(CodeBothOrNeither, "no probe", "")
	}
	if rp.reg == nil && !b.seen[&rp.Kprobe] {
		at, err := e.resolve(&rp.Kprobe)
		switch {
		case err != nil:
			return nil, err
		case !at.entry:
			return nil, newError(CodeNotEntry, fmt.Sprintf("%s+%#x is not the entry of a function", at.sym.Name, uint64(at.addr-at.sym.Addr)), "")
		case unreturnable[at.sym.Name]:
			return nil, newError(CodeBlacklisted, fmt.Sprintf("%s must not have a kretprobe", at.sym.Name), "it returns on another stack")
		case at.sym.User && e.oneSpace:
			return nil, newError(CodeHostCannot, "this target cannot access the stack with the rights of user code", "")
		}
	}
	switch {
	case rp.DataSize < 0 || rp.DataSize > MaxDataSize:
		return nil, newError(CodeDataSize, fmt.Sprintf("%d bytes of private data", rp.DataSize), fmt.Sprintf("0 to %d", MaxDataSize))
	case rp.Pre != nil || rp.Post != nil || rp.Fault != nil:
		return nil, newError(CodeHandlers, "a kretprobe has an entry and a return handler", "Pre, Post and Fault must be nil")
	case rp.MaxActive > maxInstances:
		return nil, newError(CodeNoInstances, fmt.Sprintf("%d instances", rp.MaxActive), fmt.Sprintf("at most %d", maxInstances))
	}
	if err := e.admit(b, &rp.Kprobe); err != nil {
		return nil, err
	}
	r := b.regs[len(b.regs)-1]
	r.ret = &retprobe{reg: r, probe: rp, max: e.maxActive(rp), cells: make([]retCell, len(e.cpus)), base: make([]retBase, len(e.cpus))}
	return r, nil
}

// maxActive returns the number of instances that rp is to have.
func (e *Engine) maxActive(rp *Kretprobe) int {
	if rp.MaxActive <= 0 {
		return max(10, 2*len(e.cpus))
	}
	return rp.MaxActive
}

// lend gives r a pool.
func (e *Engine) lend(r *registration) *Error {
	p, err := e.fillPool(r.ret, r.site)
	if err != nil {
		return err
	}
	r.ret.pool = p
	e.tryStage(r.ret, r.site)
	return nil
}

// tryStage makes what rp needs to run in the guest, if it has the stages and the
// target can.
func (e *Engine) tryStage(rp *retprobe, st *site) {
	if rp.probe.ReturnStage == nil {
		return
	}
	if why := e.can[guest.Level(st.user)].NoStage; why != "" {
		rp.noStage = why
		return
	}
	g, err := e.stageReturns(rp, st)
	if err != nil {
		rp.noStage = err.Error()
		return
	}
	rp.stage.Store(g)
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
			n, undecided := g.look(e, buf[:])
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

// reset gives rp a new pool after the guest, and every activation with it, was
// reset. The world is stopped.
func (rp *retprobe) reset(p *pool) {
	if rp.pool != nil {
		rp.abandoned.Add(uint64(rp.pool.used.Load()))
	}
	rp.pool = p
	rp.stage.Store(nil) // Save has taken its counts
}

// The run functions are those of kprobes for the handlers of a kretprobe.

func (e *Engine) runEntry(c *cpu, r *registration) (skip int) {
	depth := c.depth
	defer e.contain(c, r, "entry", depth)
	return r.ret.probe.Entry(&c.ctx)
}

func (e *Engine) runReturn(c *cpu, r *registration) {
	depth := c.depth
	defer e.contain(c, r, "return", depth)
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
