package probe

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// unreturnable are functions that cannot have a kretprobe (the kernel's kretprobe
// blacklist): they return on another stack than they were called on.
var unreturnable = map[string]bool{"__switch_to": true}

// check implements kind, in the kernel's order (kprobes A.2).
func (x *retprobe) check(_ *registration, p *places, at place) *Error {
	rp := x.probe
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
		if _, err := p.leavePlaces(at.sym); err != nil {
			return err
		}
		if rp.MaxActive <= 0 {
			x.max = defaultLeft
		}
	}
	return nil
}

// walksStacks names the runtime of the code at addr if that runtime does not allow
// return addresses to be replaced, or "".
func (k *core) walksStacks(addr guest.GVA) string {
	if w, ok := k.target.Symbols().(StackWalker); ok {
		return w.WalksStacks(addr)
	}
	return ""
}

// notEntryError rejects a place that is not the entry of a function.
func notEntryError(at place) *Error {
	return newError(CodeNotEntry, fmt.Sprintf("%s+%#x is not the entry of a function", at.sym.Name, uint64(at.addr-at.sym.Addr)), "")
}

// maxActive returns the number of instances that rp is to have.
func (k *core) maxActive(rp *Kretprobe) int {
	if rp.MaxActive <= 0 {
		return max(10, 2*len(k.cpus))
	}
	return rp.MaxActive
}
