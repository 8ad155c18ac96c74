package event

import (
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Scope is what the names in a definition can mean: those of a guest.
type Scope struct {
	Symbols probe.Symbols // nil: nothing is looked up
	Types   Types         // nil: no types are known
}

// ModuleOf returns the module of a kernel that the code at addr is of, "" for none.
func ModuleOf(symbols probe.Symbols, addr guest.GVA) string {
	if s, ok := symbols.(interface{ Module(addr guest.GVA) string }); ok {
		return s.Module(addr)
	}
	return ""
}

// Types are the types of a guest's program. Its methods may be called from any
// goroutine. *types.Info is one.
type Types interface {
	// Func returns the prototype of a function, of that module of a kernel where it is not
	// "", or nil where it is not known.
	Func(module, name string) *btf.FuncProto
	// Struct returns the structure or union of that tag, or nil.
	Struct(tag string) btf.Type
}
