// Package source connects definitions with a guest's debug information: the places of lines, the places of variables, and how
// definitions name addresses.
package source

import (
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Slide returns the distance of the guest's program from the addresses in its debug information.
func Slide(info *debuginfo.Info, img guest.View) (uint64, error) {
	name, addr, ok := info.Anchor()
	if !ok {
		return 0, nil
	}
	s, err := img.Lookup(name)
	if errors.Is(err, guest.ErrSymbolNotFound) {
		return 0, nil // no Linux
	}
	return uint64(s.Addr) - addr, err
}

// Variables are the variables of a guest's code, by its debug information.
type Variables struct {
	Image func() guest.View               // of the current boot
	Info  func() (*debuginfo.Info, error) // read when it is first asked for
	In    string                          // of several inlined functions at one place the one that comes first; "": the code's own
}

// Variable implements event.Variables.
func (v Variables) Variable(addr guest.GVA, name string, path []string) (event.Fetch, types.Type, error) {
	info, err := v.Info()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", event.ErrNoSource, err)
	}
	img := v.Image()
	by, err := Slide(info, img)
	if err != nil {
		return nil, nil, err
	}
	x, err := info.Variable(uint64(addr)-by, v.In, name, path)
	if err != nil {
		return nil, nil, err
	}
	f, err := Fetch(img, addr, by, x)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is %w", name, err)
	}
	if _, structure := types.Members(x.Type); structure && len(path) == 0 {
		return nil, nil, fmt.Errorf("%s is a structure: name a member, as %s.MEMBER", name, name)
	}
	return f, x.Type, nil
}

// Fetch returns where code at addr has a variable; by is the program's Slide. The error says why that is not known.
func Fetch(img guest.View, addr guest.GVA, by uint64, x debuginfo.Variable) (event.Fetch, error) {
	if errors.Is(x.Why, debuginfo.ErrElsewhere) {
		s, err := img.Lookup(x.Name)
		if err != nil {
			return nil, fmt.Errorf("in another file, and %w", err)
		}
		return event.Deref{Of: event.Immediate{Value: uint64(s.Addr)}}, nil
	}
	if x.Why != nil {
		return nil, x.Why
	}
	at, offset := event.Fetch(event.Immediate{}), x.Where.Offsets[0]
	switch x.Where.Base {
	case debuginfo.BaseRegister:
		at = event.Register{Reg: event.RegOf(x86.DwarfRegs[x.Where.Reg])}
	case debuginfo.BaseProgram:
		offset += int64(by)
	case debuginfo.BaseCFA:
		rule, ok := img.FrameRule(addr)
		base, named := rule.Base.GeneralReg()
		if !ok || rule.Outer || rule.Trap || !named {
			return nil, errors.New("in the function's frame, and where that is at this place is not known")
		}
		at = event.Register{Reg: event.RegOf(base)}
		if rule.Indirect {
			at = event.Deref{Offset: int64(rule.Inner), Of: at}
		}
		offset += int64(rule.CFA)
	}
	plus := func() event.Fetch { // at plus offset, as a number
		if i, ok := at.(event.Immediate); ok {
			return event.Immediate{Value: i.Value + uint64(offset)}
		}
		return event.Sum{Offset: offset, Of: at}
	}
	memory := func() event.Fetch { // the value there
		if _, absolute := at.(event.Immediate); absolute {
			return event.Deref{Of: plus()}
		}
		return event.Deref{Offset: offset, Of: at}
	}
	for _, next := range x.Where.Offsets[1:] {
		at, offset = memory(), next
	}
	switch {
	case x.Where.Memory:
		return memory(), nil
	case offset == 0:
		return at, nil
	}
	return plus(), nil
}

// CodePlace returns an address as definitions write it: as SYMBOL+OFFSET if only one symbol has the name.
func CodePlace(img guest.View, addr guest.GVA) event.Place {
	if s, ok := img.Find(addr); ok {
		p := event.Place{Module: event.ModuleOf(img, addr), Symbol: s.Name, Offset: uint64(addr - s.Addr)}
		if _, err := img.Lookup(p.FullName()); err == nil { // the name is that of one function
			return p
		}
	}
	return event.Place{Addr: addr}
}

// FunctionPlace returns a function as definitions write it: by its address if several have the name.
func FunctionPlace(img guest.View, sym guest.Symbol) event.Place {
	p := event.Place{Module: event.ModuleOf(img, sym.Addr), Symbol: sym.Name}
	if _, err := img.Lookup(p.FullName()); err != nil {
		return event.Place{Addr: sym.Addr}
	}
	return p
}

// Places returns the places of the code that belong to a place in the source. An error says why it has no code.
func Places(info *debuginfo.Info, at event.SourcePlace) ([]debuginfo.Place, error) {
	if at.Inline == "" {
		return info.Places(at.File, at.Line)
	}
	addrs, err := info.InlinedCopies(at.Inline)
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("no copy of a function %s is in others", at.Inline)
	}
	var out []debuginfo.Place
	for _, a := range slices.Clip(addrs) {
		out = append(out, debuginfo.Place{Addr: a, Function: at.Inline})
	}
	return out, err
}
