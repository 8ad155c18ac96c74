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
// On a function of a file (Files) there are no trampolines: the stack is left alone, and the
// instructions that leave the function, and those that it ends with a jump to, are probed
// instead; a function whose code does not show them all is refused. Elsewhere the guest's stack holds a trampoline's address instead of the return address
// meanwhile; Context.Ret and Context.Stack show the real one. A guest with
// shadow stacks (CET) would not accept that: the machine offers none to it. A
// stack may be copied or moved under a call, and a function return twice (setjmp,
// vfork): a call is followed to the first return to its trampoline, and later ones go
// on where they should without a handler. Once a function was seen to return twice, its
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
	max   int
	table atomic.Pointer[instances] // nil while the code is gone; changes only while the world is stopped
	early atomic.Pointer[instances] // the one before, with borrowed trampolines: calls return by it, none begins
	cells []retCell                 // what the host has counted
	base  []retBase                 // what shared tables that are gone have counted

	leaves []*registration // of one without trampolines

	abandoned atomic.Uint64
	underWay  atomic.Uint64 // when it was unregistered

	// again: the function has returned twice. From then on a record is used again only
	// for the same activation as its last one, which the host alone sees to.
	again atomic.Bool
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
		return notEntryError(at)
	case unreturnable[at.sym.Name]:
		return newError(CodeBlacklisted, fmt.Sprintf("%s must not have a kretprobe", at.sym.Name), "it returns on another stack")
	case !p.usesLeaves(at.sym.User) && p.walksStacks(at.addr) != "":
		return newError(CodeWalksStacks, fmt.Sprintf("%s is code of %s, which looks up return addresses on its stacks and ends the program at one that it does not know", at.sym.Name, p.walksStacks(at.addr)),
			"--at-rets probes the returns and leaves the stack alone")
	case p.usesLeaves(at.sym.User) && rp.MaxActive > maxLeft:
		return newError(CodeNoInstances, fmt.Sprintf("%d instances", rp.MaxActive), fmt.Sprintf("at most %d in a file of the guest's", maxLeft))
	case !p.usesLeaves(at.sym.User) && p.can[guest.Level(at.sym.User)].NoExec != "" && len(p.padding(at.sym.User)) == 0:
		return newError(CodeHostCannot, "there is no memory for the trampolines of a kretprobe yet", p.can[guest.Level(at.sym.User)].NoExec)
	case at.sym.User && p.oneSpace:
		return newError(CodeHostCannot, "this target cannot access the stack with the rights of user code", "")
	case rp.DataSize < 0 || rp.DataSize > MaxDataSize:
		return newError(CodeDataSize, fmt.Sprintf("%d bytes of private data", rp.DataSize), fmt.Sprintf("0 to %d", MaxDataSize))
	case rp.Pre != nil || rp.Post != nil || rp.Fault != nil:
		return newError(CodeHandlers, "a kretprobe has an entry and a return handler", "Pre, Post and Fault must be nil")
	case rp.MaxActive > maxInstances:
		return newError(CodeNoInstances, fmt.Sprintf("%d instances", rp.MaxActive), fmt.Sprintf("at most %d", maxInstances))
	}
	if p.usesLeaves(at.sym.User) {
		if _, err := p.leaves(at.sym); err != nil {
			return err
		}
		if rp.MaxActive <= 0 {
			r.ret.max = defaultLeft
		}
	}
	return nil
}

// walksStacks names the runtime of the code at addr that no return address may be replaced
// for, or "".
func (k *core) walksStacks(addr guest.GVA) string {
	if w, ok := k.target.Symbols().(StackWalker); ok {
		return w.WalksStacks(addr)
	}
	return ""
}

// notEntryError refuses a place that is not the entry of a function.
func notEntryError(at place) *Error {
	return newError(CodeNotEntry, fmt.Sprintf("%s+%#x is not the entry of a function", at.sym.Name, uint64(at.addr-at.sym.Addr)), "")
}

// maxActive returns the number of instances that rp is to have.
func (e *Engine) maxActive(rp *Kretprobe) int {
	if rp.MaxActive <= 0 {
		return max(10, 2*len(e.cpus))
	}
	return rp.MaxActive
}

// fillInfo fills in what only a kretprobe has. Callers hold Engine.view or
// Engine.mu.
func (rp *retprobe) fillInfo(i *Info) {
	i.Type = 'r'
	i.MaxActive = rp.max
	for _, t := range rp.tables() {
		i.NoStage = t.noStage
		var buf [8]byte
		t.sweep(0, t.n, t.shared(), buf[:])
		i.InUse, i.HighWater = i.InUse+t.inUse(), max(i.HighWater, t.highMark())
	}
	if rp.again.Load() {
		i.NoStage = "the function returns twice"
	}
}

// tables returns those of rp whose calls it follows, the one for new calls last.
func (rp *retprobe) tables() (all []*instances) {
	for _, t := range [...]*instances{rp.early.Load(), rp.table.Load()} {
		if t != nil {
			all = append(all, t)
		}
	}
	return all
}

// retBase are the counts of one vCPU in tables that are gone.
type retBase struct{ handled, filtered, missed, returns atomic.Uint64 }

// guestCounts returns the counts of a vCPU in the guest.
func (rp *retprobe) guestCounts(cpu int) (handled, filtered, missed, returns uint64) {
	b := &rp.base[cpu]
	handled, filtered, missed, returns = b.handled.Load(), b.filtered.Load(), b.missed.Load(), b.returns.Load()
	if t := rp.table.Load(); t != nil && t.shared() {
		h, f, m := t.counts(cpu)
		handled, filtered, missed, returns = handled+h, filtered+f, missed+m, returns+t.cell(cpu, cellReturns).Load()
	}
	return handled, filtered, missed, returns
}

// outstandingCalls returns how many calls were counted as handled and neither as returned
// nor as abandoned. The world is stopped. A guest that writes to its counts may say
// that there are fewer than none.
func (rp *retprobe) outstandingCalls() uint64 {
	s := rp.reg.totals(make([]Stats, len(rp.cells)))
	return uint64(max(0, int64(s.Handled-s.Returns-s.Abandoned-s.UnderWay)))
}

// close is end for a probe that is unregistered. Calls that can be seen to be abandoned
// are; all others are under way.
func (rp *retprobe) close(w World) {
	for _, t := range rp.tables() {
		var buf [8]byte
		t.reclaim(w, buf[:])
	}
	rp.underWay.Store(rp.outstandingCalls())
	rp.end()
}

// abandon is end for a probe whose code goes away: calls that are outstanding are
// abandoned.
func (rp *retprobe) abandon() {
	rp.abandoned.Add(rp.outstandingCalls())
	rp.end()
}

// end takes the table from rp, with its counts: what is outstanding returns without a
// handler. It returns the table, or nil. The world is stopped, or nothing has run yet.
func (rp *retprobe) end() *instances {
	t := rp.table.Load()
	if t == nil {
		return nil
	}
	for i := range rp.base {
		b := &rp.base[i]
		h, f, m, r := rp.guestCounts(i)
		b.handled.Store(h)
		b.filtered.Store(f)
		b.missed.Store(m)
		b.returns.Store(r)
	}
	for _, t := range rp.tables() {
		t.words[wordRun].Store(0)
		t.dead.Store(true)
	}
	rp.table.Store(nil)
	rp.early.Store(nil)
	return t
}
