package event

import (
	"errors"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Scope is what the names in a definition can mean: those of a guest.
type Scope struct {
	Symbols probe.Symbols // nil: nothing is looked up
	Types   Types         // nil: no types are known
	// Variables are those that the code sees that is probed; nil: none are known.
	Variables Variables
	// Names are what addresses in records are called when these are shown; nil: Symbols.
	Names Names
}

// Names are what addresses are called, as by probe.Symbols. Find may be called from any
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
	// Variable returns where the code at addr has the value of a variable or a parameter,
	// and its type, in which structures need to have those members only that are asked
	// for: path are the names of the first, of one in that, and so on. An error is ErrNoSource,
	// or says what there is instead, or why the value cannot be had.
	Variable(addr guest.GVA, name string, path []string) (Fetch, btf.Type, error)
}

// ErrNoSource is returned where a guest has no debug information.
var ErrNoSource = errors.New("no debug information")

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
