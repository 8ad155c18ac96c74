package event

import (
	"errors"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Scope is the meaning of the names in a definition, in one guest.
type Scope struct {
	Symbols probe.Symbols // nil: no lookups
	Types   Types         // nil: not known
	// Variables are the variables visible to the probed code; nil: not known.
	Variables Variables
	// Names are the names for addresses in records when these are printed; nil:
	// Symbols.
	Names Names
}

// Names maps addresses to names, like probe.Symbols. Find may be called from any
// goroutine.
type Names interface {
	Find(addr guest.GVA) (guest.Symbol, bool)
}

func (s Scope) names() Names {
	if s.Names != nil {
		return s.Names
	}
	return s.Symbols
}

// Variables are the variables of a guest's program, by its debug information.
type Variables interface {
	// Variable returns how the code at addr can fetch a variable or a parameter, and
	// its type, in which structures need only the members in path: the names of a
	// member, of one in that, and so on. An error is ErrNoSource, or says which names
	// exist instead, or why the value is not available.
	Variable(addr guest.GVA, name string, path []string) (Fetch, btf.Type, error)
}

// ErrNoSource is returned if a guest has no debug information.
var ErrNoSource = errors.New("no debug information")

// ModuleOf returns the kernel module of the code at addr, "" if it is in none.
func ModuleOf(symbols probe.Symbols, addr guest.GVA) string {
	if s, ok := symbols.(interface{ Module(addr guest.GVA) string }); ok {
		return s.Module(addr)
	}
	return ""
}

// Types are the types of a guest's program. Its methods may be called from any
// goroutine. *types.Info is one.
type Types interface {
	// Func returns the prototype of a function (of that module of a kernel if module
	// is not ""), or nil if it is not known.
	Func(module, name string) *btf.FuncProto
	// Struct returns the structure or union of that tag, or nil.
	Struct(tag string) btf.Type
}
