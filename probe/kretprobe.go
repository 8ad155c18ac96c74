package probe

// Kretprobe is a probe on the return of a guest function. Fill in the place (a
// function's entry) and the handlers, then Engine.Register it. Everywhere else pass
// the embedded Kprobe: Engine.Unregister(&r.Kprobe), Enable, Disable, Info and Stats.
// Its Filter decides which calls are followed; Pre, Post and Fault must be nil.
// Disabling it stops the following of new calls; the return handler still runs for
// those under way.
//
// A call that is followed has an instance from entry to return, however often its
// task is scheduled out and wherever it resumes. The function may be recursive. If it
// is left otherwise than by its return, the instance is freed when its stack is used
// again or, if the image has a guest profile (guest.Profile), when its task is gone
// or has unwound its stack (see Info.InUse).
//
// On a function of a file (Files) there are no trampolines, and the stack is not
// changed. Instead the engine probes the instructions that leave the function or a
// function that it ends with a jump to. A function whose code does not show all of
// them is rejected. Elsewhere the guest's stack holds a trampoline's address in place
// of the return address while the call runs; Context.Ret and Context.Stack show the
// real one. A guest with shadow stacks (CET) would not accept that, so the machine
// does not offer CET to it. A stack may be copied or moved during a call, and a
// function may return twice (setjmp, vfork): a call is followed to the first return
// to its trampoline, and later ones resume at the right place without a handler. Once
// a function was seen to return twice, its instances are kept for the callers that
// they were used for, and calls from elsewhere miss when no instance is left.
type Kretprobe struct {
	Kprobe

	// Entry runs at the function's entry. Nonzero means that this call is not
	// followed; it counts as filtered. nil follows all.
	Entry func(*Context) int

	// Return runs when the function has returned: Regs.RIP is the address that the
	// caller resumes at, Regs.RSP is the caller's, and Regs.RAX (and RDX) is the
	// result, which may be changed. A change of Regs.RIP has no effect, as in the
	// kernel. Of several kretprobes on one function the oldest runs first. nil does
	// nothing.
	Return func(*Context)

	// ReturnStage, when set, is Return in the form of machine code, and Kprobe.Stage
	// then Filter and Entry: in RAX it returns whether the call is not followed; nil
	// follows all. Stage keeps in the private memory what Entry does: a call that
	// begins in the guest can return by way of the host. On an optimized site whose
	// probes all have such forms both run in the guest, and neither the call nor its
	// return takes an exit. In RDX both find the address of the activation's private
	// memory, of DataSize bytes, aligned to 64. The context of the return stage is
	// that of the return: ip is where the caller resumes, sp the caller's, ax the
	// result; after its 168 bytes come the first words of the private memory, as far
	// as Reads has bits for them. Neither can change a register. Calls are followed
	// by instances in memory that the guest shares; the limit is MaxActive for these
	// and the host's together. Once the function was seen to return twice, the probe
	// goes to the host for good. Several kretprobes on one place of the stack see
	// each other's trampolines as return address, where the programs look at the
	// stack themselves.
	ReturnStage *Stage

	// MaxActive is the number of calls that can be followed at a time; further ones
	// count as missed. 0 or less means the kernel's default, the larger of 10 and
	// twice the number of vCPUs. After registration it is the number in force.
	MaxActive int

	// DataSize is the size of Context.Data, 0 to MaxDataSize.
	DataSize int
}

// MaxDataSize is the largest Kretprobe.DataSize, in bytes: the kernel's
// KRETPROBE_MAX_DATA_SIZE.
const MaxDataSize = 4096

// maxInstances is the largest Kretprobe.MaxActive: 1 MiB of trampolines.
const maxInstances = 1 << 16

// registration implements Probe.
func (rp *Kretprobe) registration(g *registry) *registration {
	if rp == nil {
		return nil
	}
	r := rp.Kprobe.registration(g)
	r.kind = &retprobe{reg: r, probe: rp, max: g.maxActive(rp), cells: make([]retCell, len(g.cpus)), base: make([]retBase, len(g.cpus))}
	return r
}
