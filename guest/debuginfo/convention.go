package debuginfo

import (
	"debug/dwarf"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// Languages whose functions pass parameters by their own rules (DWARF 5, 7.12, and
// later registrations).
const (
	langD     = 0x13
	langGo    = 0x16
	langHS    = 0x18
	langOCaml = 0x1b
	langRust  = 0x1c
	langSwift = 0x1e
	langZig   = 0x27
)

var ownConventions = map[int64]string{langD: "D", langGo: "Go", langHS: "Haskell", langOCaml: "OCaml", langRust: "Rust", langSwift: "Swift", langZig: "Zig"}

// ccNoCall is DW_CC_nocall: the compiler has given a function a convention of its own.
const ccNoCall = 3

// Convention returns why the parameters of a function are not where the System V ABI
// puts the prototype's parameters; "" if they are, or if the function is not known.
func (i *Info) Convention(name string) (why string) {
	err := i.withNames(func(x *names) {
		if at, ok := x.function(name); ok {
			why = i.conventionAt(x, at)
		}
	})
	if err != nil {
		return err.Error()
	}
	return why
}

// conventionAt is Convention for the function at an offset.
func (i *Info) conventionAt(x *names, at dwarf.Offset) string {
	e := i.entryAt(at)
	if e == nil {
		return ""
	}
	if f := i.attribute(e, dwarf.AttrCalling); f != nil {
		if how, _ := f.Val.(int64); how == ccNoCall {
			return "the compiler passes its parameters in places of its own (DW_CC_nocall)"
		}
	}
	of := i.ownConvention(at)
	if of == "" {
		return ""
	}
	var p *btf.FuncProto
	i.readTypes(x, func(t *typeReader) { p, _ = t.prototype(at) })
	if !passedLikeC(of, p) {
		return of + " passes parameters by rules of its own"
	}
	return ""
}

// FuncAt returns the prototype of the function with this name and its code at addr, or nil: of several with the name it is the one whose
// code is there. why is Convention's.
func (i *Info) FuncAt(name string, addr uint64) (p *btf.FuncProto, why string) {
	err := i.withNames(func(x *names) {
		if at, ok := i.namedAt(x, name, addr); ok {
			i.readTypes(x, func(t *typeReader) { p, _ = t.prototype(at) })
			why = i.conventionAt(x, at)
		}
	})
	if err != nil {
		return nil, err.Error()
	}
	return p, why
}

// namedAt returns the entry of the function with this name and its code at addr, or the first with the name if no code there has it.
func (i *Info) namedAt(x *names, name string, addr uint64) (at dwarf.Offset, ok bool) {
	at, ok = x.function(name)
	n, in := i.unitAt(addr)
	if !ok || !in {
		return at, ok
	}
	c, err := i.contents(n)
	if err != nil {
		return at, ok
	}
	for _, f := range c.instances {
		if f.inlined || f.entry != addr || f.name != name && !i.isLinkedAs(f.at, name) {
			continue
		}
		of := f.at
		for range maxLinks { // a copy need not have all parameters
			e := i.entryAt(of)
			if e == nil {
				break
			}
			next, copied := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
			if !copied {
				return of, true
			}
			of = next
		}
	}
	return at, ok
}

// isLinkedAs reports whether a function has this name for the linker.
func (i *Info) isLinkedAs(at dwarf.Offset, name string) bool {
	e := i.entryAt(at)
	for _, a := range linkageNames {
		if e == nil {
			break
		}
		if f := i.attribute(e, a); f != nil && f.Val == name {
			return true
		}
	}
	return false
}

// ownConvention names the language of the function at an offset if it has its own
// rules for parameters; "" for C and the like.
func (i *Info) ownConvention(at dwarf.Offset) string {
	u := i.data.UnitOf(at)
	if u == nil || u.Entry == nil {
		return ""
	}
	lang, _ := u.Entry.Val(dwarf.AttrLanguage).(int64)
	return ownConventions[lang]
}

// passedLikeC reports whether a function of a language with its own rules has its
// parameters where C has them: in Rust this is true of numbers and pointers.
func passedLikeC(language string, p *btf.FuncProto) bool {
	return language == ownConventions[langRust] && p != nil && passedAsInC(p)
}

// passedAsInC reports whether parameters and result are numbers and pointers, each in
// one register.
func passedAsInC(p *btf.FuncProto) bool {
	one := func(t btf.Type) bool {
		size, ok := types.Size(t)
		switch types.Strip(t).(type) {
		case *btf.Int, *btf.Enum, *btf.Pointer, *btf.Float:
			return ok && size <= 8
		case *btf.Void:
			return true
		}
		return false
	}
	if !one(p.Return) {
		return false
	}
	for _, x := range p.Params {
		if !one(x.Type) {
			return false
		}
	}
	return true
}
