package debuginfo

import (
	"debug/dwarf"
	"errors"
	"slices"
)

// Entries of calls, and their attributes, in GNU's version before DWARF 5 (3.4).
const (
	tagGNUCallSite, tagGNUCallSiteParameter          = dwarf.Tag(0x4109), dwarf.Tag(0x410a)
	attrGNUCallValue, attrGNUCallTarget, attrGNUTail = dwarf.Attr(0x2111), dwarf.Attr(0x2113), dwarf.Attr(0x2115)
)

// Limits on reading calls.
const (
	maxCallEntries   = 1 << 15 // of one function
	maxTailFunctions = 16      // that one may reach by tail calls
	maxTailCalls     = 32      // of all of these
	maxCopies        = 16      // functions of one name in a unit
	maxArguments     = 16      // of one call
)

// Why the values passed by a call are not known.
var (
	errNoCall      = errors.New("debug information does not know the call")
	errNotPassed   = errors.New("the caller does not say what it has passed")
	errOtherCalled = errors.New("the caller has called another function, which has continued here")
	errTailCalls   = errors.New("the function may have come to itself by tail calls")
)

// Call is a call of a function, as described in its caller.
type Call struct {
	// Target is the address that the call goes to, in terms of the caller's registers
	// at the call, if the call is through a pointer. The passed values are known only
	// if it is Function, the beginning of the callee in question.
	Target   *Location
	Function uint64

	passed [regIP]passed
}

// passed is a value passed in a register.
type passed struct {
	value Location
	err   error
}

// PassedValue returns the value passed in a register, by its number (Location.Reg),
// in terms of the caller's registers at the call.
func (c *Call) PassedValue(reg int) (Location, error) {
	if reg < 0 || reg >= len(c.passed) {
		return Location{}, errNotPassed
	}
	return c.passed[reg].value, c.passed[reg].err
}

// callSite is a call, as described in its caller.
type callSite struct {
	*dwarf.Entry
	passed []*dwarf.Entry
}

// function is a function with code of its own.
type function struct {
	unit int
	*instance
}

// Call returns the description of the call that returns to ret, of the function
// around callee. It fails if the function was reached by another function's tail
// call, or by one of its own, because the passed values are then not known.
func (i *Info) Call(ret, callee uint64) (c Call, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	f, err := i.functionAt(callee)
	if err != nil {
		return c, err
	}
	caller, err := i.functionAt(ret - 1) // the call may be the last instruction
	if err != nil {
		return c, err
	}
	sites, err := i.calls(caller)
	if err != nil {
		return c, err
	}
	k := slices.IndexFunc(sites, func(s callSite) bool { return s.returnAddr() == ret && !s.tail() })
	if k < 0 {
		return c, errNoCall
	}
	site := sites[k]
	c.Function = f.entry
	value := func(f *dwarf.Field) (Location, error) {
		code, ok := f.Val.([]byte)
		if !ok {
			return Location{}, errDamaged
		}
		x := expression{code: code, frame: func() (number, error) { return i.frameBase(caller.unit, ret-1) }, address: i.units[caller.unit].Address}
		l, err := x.location()
		l.Memory = false
		return l, err
	}
	if at, ok := site.origin(); ok {
		if !i.belongsTo(at, f) {
			return c, errOtherCalled
		}
	} else if t := field(site.Entry, dwarf.AttrCallTarget, attrGNUCallTarget); t != nil {
		l, err := value(t)
		if err != nil {
			return c, err
		}
		c.Target = &l
	} else {
		return c, errNoCall
	}
	if err := i.checkTailCalls(f); err != nil {
		return c, err
	}
	for n := range c.passed {
		c.passed[n].err = errNotPassed
	}
	for _, e := range site.passed {
		where, _ := e.Val(dwarf.AttrLocation).([]byte)
		v := field(e, dwarf.AttrCallValue, attrGNUCallValue)
		if n, ok := registerOf(where); ok && v != nil {
			c.passed[n].value, c.passed[n].err = value(v)
		}
	}
	return c, nil
}

// functionAt returns the function around an address.
func (i *Info) functionAt(addr uint64) (function, error) {
	n, ok := i.unitAt(addr)
	if !ok {
		return function{}, errors.New("no debug information is of this place")
	}
	c, err := i.contents(n)
	if err != nil {
		return function{}, err
	}
	around := c.instancesAround(addr)
	if len(around) == 0 || around[len(around)-1].inlined {
		return function{}, errNoCall
	}
	return function{n, around[len(around)-1]}, nil
}

// calls returns the calls made by a function, including those made by functions
// inlined in it.
func (i *Info) calls(f function) (out []callSite, err error) {
	r := i.data.Reader()
	r.Seek(f.at)
	top, err := r.Next()
	if err != nil || top == nil {
		return nil, errDamaged
	}
	depth := 0
	if top.Children {
		depth = 1
	}
	for n := 0; depth > 0; n++ {
		e, err := r.Next()
		switch {
		case err != nil || e == nil || n == maxCallEntries:
			return nil, errDamaged
		case e.Tag == 0:
			depth--
			continue
		case e.Tag == dwarf.TagCallSite || e.Tag == tagGNUCallSite:
			out = append(out, callSite{Entry: e})
		case (e.Tag == dwarf.TagCallSiteParameter || e.Tag == tagGNUCallSiteParameter) && len(out) > 0:
			if k := len(out) - 1; len(out[k].passed) < maxArguments {
				out[k].passed = append(out[k].passed, e)
			}
		case e.Tag == dwarf.TagSubprogram:
			if err := skip(r, e); err != nil {
				return nil, err
			}
			continue
		}
		if e.Children {
			depth++
		}
	}
	return out, nil
}

// returnAddr is the address that a call returns to.
func (c callSite) returnAddr() uint64 {
	attr := dwarf.AttrCallReturnPC
	if c.Tag == tagGNUCallSite {
		attr = dwarf.AttrLowpc
	}
	pc, _ := c.Val(attr).(uint64)
	return pc
}

// origin is the entry of the called function.
func (c callSite) origin() (dwarf.Offset, bool) {
	attr := dwarf.AttrCallOrigin
	if c.Tag == tagGNUCallSite {
		attr = dwarf.AttrAbstractOrigin
	}
	at, ok := c.Val(attr).(dwarf.Offset)
	return at, ok
}

// tail reports whether the call is a jump, after which the function's frame is gone.
func (c callSite) tail() bool {
	f := field(c.Entry, dwarf.AttrCallTailCall, attrGNUTail)
	return f != nil && f.Val == true
}

// field returns the first of these attributes that e has, or nil.
func field(e *dwarf.Entry, attrs ...dwarf.Attr) *dwarf.Field {
	for _, a := range attrs {
		if f := e.AttrField(a); f != nil {
			return f
		}
	}
	return nil
}

// originsOf returns an entry and the entries that it is a copy of, or completes.
func (i *Info) originsOf(at dwarf.Offset) (out []dwarf.Offset) {
	for range maxLinks {
		out = append(out, at)
		e := i.entryAt(at)
		if e == nil {
			break
		}
		next, ok := origin(e)
		if !ok {
			break
		}
		at = next
	}
	return out
}

// belongsTo reports whether an entry belongs to the function, and not to another copy
// of it.
func (i *Info) belongsTo(at dwarf.Offset, f function) bool {
	if at == f.at {
		return true
	}
	if all := i.instancesOf(f.unit, at); len(all) > 0 {
		return len(all) == 1 && all[0].at == f.at
	}
	a, b := i.entryAt(at), i.entryAt(f.at)
	return a != nil && b != nil && i.name(a, nil) == f.name && i.external(a) && i.external(b)
}

// external reports whether other units know a function by its name.
func (i *Info) external(e *dwarf.Entry) bool {
	f := i.attribute(e, dwarf.AttrExternal)
	return f != nil && f.Val == true
}

// instancesOf returns the functions of a unit with code of their own for an entry.
func (i *Info) instancesOf(n int, at dwarf.Offset) (out []*instance) {
	c, err := i.contents(n)
	if err != nil {
		return nil
	}
	own := i.originsOf(at)
	name := ""
	if e := i.entryAt(at); e != nil {
		name = i.name(e, nil)
	}
	for k := range c.instances {
		x := &c.instances[k]
		if !x.inlined && x.name == name && len(out) <= maxCopies {
			out = append(out, x)
		}
	}
	if len(out) > maxCopies {
		return out // too many to examine: any of them
	}
	return slices.DeleteFunc(out, func(x *instance) bool {
		return !slices.ContainsFunc(i.originsOf(x.at), func(of dwarf.Offset) bool { return slices.Contains(own, of) })
	})
}

// checkTailCalls returns an error if a function may reach itself by tail calls, its
// own or by functions it reaches: then its arguments may not be the ones passed by
// its caller. GDB makes the same check (func_verify_no_selftailcall).
func (i *Info) checkTailCalls(f function) error {
	todo, asked := []function{f}, 0
	for k := 0; k < len(todo); k++ {
		sites, err := i.calls(todo[k])
		if err != nil {
			return err
		}
		for _, c := range sites {
			if !c.tail() {
				continue
			}
			at, ok := c.origin()
			if asked++; !ok || asked > maxTailCalls || i.belongsTo(at, f) {
				return errTailCalls
			}
			all := i.instancesOf(todo[k].unit, at)
			if len(all) == 0 || len(todo)+len(all) > maxTailFunctions {
				return errTailCalls // of another unit: unknown
			}
			for _, x := range all {
				if x.at == f.at {
					return errTailCalls
				}
				if !slices.ContainsFunc(todo, func(o function) bool { return o.at == x.at }) {
					todo = append(todo, function{todo[k].unit, x})
				}
			}
		}
	}
	return nil
}

// registerOf returns the register, if a location description consists of nothing
// else.
func registerOf(code []byte) (int, bool) {
	x := expression{code: code}
	switch {
	case len(code) == 1 && code[0] >= opReg0 && code[0] < opReg0+regIP:
		return int(code[0] - opReg0), true
	case len(code) > 1 && code[0] == opRegx:
		x.code = code[1:]
		n := x.uleb()
		return int(n), x.err == nil && len(x.code) == 0 && n < regIP
	}
	return 0, false
}

// WithEntryValue is the location of a value whose function was entered with v in
// l.Reg (BaseEntry).
func (l Location) WithEntryValue(v uint64) Location {
	l.Offsets = slices.Clone(l.Offsets)
	l.Base, l.Reg = BaseNone, 0
	l.Offsets[0] += int64(v)
	return l
}
