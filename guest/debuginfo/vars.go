package debuginfo

import (
	"cmp"
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/types"
)

// Variable is a variable or a parameter, as visible to the code at an address.
type Variable struct {
	Name      string
	Function  string // its function; "" for a variable of the file
	Parameter bool
	// Inlined: Function is inlined into another one here.
	Inlined bool
	// Type contains only the requested members of structures. For a reference it is
	// the type of the target.
	Type btf.Type
	// Declared is the type in the source.
	Declared btf.Type

	Where Location // of a reference the location of the target
	Why   error    // why its value is not known here; nil: see Where
	// Pieces are the parts of a value in several places: Why says so.
	Pieces []Piece

	typeAt dwarf.Offset // 0: no type
}

// Values returns the type of the variable with all members of its values.
func (i *Info) Values(v Variable) (t btf.Type, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	t = v.Type
	if v.typeAt != 0 {
		t = i.valuesOf(v.typeAt)
		if to, ok := types.Reference(t); ok {
			// The target of a reference was not read only for its name.
			t = i.referredType(v.typeAt, to)
		}
	}
	return t, nil
}

// referredType returns the target type of the reference at an offset, with its
// members.
func (i *Info) referredType(at dwarf.Offset, otherwise btf.Type) btf.Type {
	for range maxLinks {
		e := i.entryAt(at)
		if e == nil {
			break
		}
		to, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
		if !ok {
			break
		}
		if e.Tag == dwarf.TagReferenceType || e.Tag == dwarf.TagRvalueReferenceType {
			return i.valuesOf(to)
		}
		at = to
	}
	return otherwise
}

// NoVariableError is returned for an unknown name.
type NoVariableError struct {
	Name string
	Have []string // the known names
}

// Error lists the known names.
func (e *NoVariableError) Error() string {
	if len(e.Have) == 0 {
		return fmt.Sprintf("no variable %s: no variables are known here", e.Name)
	}
	return fmt.Sprintf("no variable %s: these are %s", e.Name, strings.Join(e.Have, ", "))
}

// maxVariables bounds the variables of one function.
const maxVariables = 1 << 12

// declared is an entry that declares something.
type declared struct {
	*dwarf.Entry
	of    *instance // nil: it belongs to the file
	depth int       // depth of enclosing blocks; negative in a block without code
}

// Variables returns the variables visible to the code at addr, of the functions that
// contain it: the innermost first. Inlined functions that begin at addr come after
// the ones around them, as if addr were not yet in them. If in is set, the function
// of that name comes first.
func (i *Info) Variables(addr uint64, in string) (out []Variable, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	n, all, err := i.visibleDeclarations(addr, in)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		out = append(out, i.variable(n, d, addr, nil))
	}
	return out, nil
}

// Parameters returns the parameters of the function that contains the code at addr,
// not of functions inlined into it, which may have variables of the same names.
func (i *Info) Parameters(addr uint64) (out []Variable, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	n, ok := i.unitAt(addr)
	if !ok {
		return nil, errors.New("no debug information is of this place")
	}
	c, err := i.contents(n)
	if err != nil {
		return nil, err
	}
	around := c.instancesAround(addr)
	k := slices.IndexFunc(around, func(x *instance) bool { return !x.inlined })
	if k < 0 {
		return nil, nil
	}
	own, err := i.declarations(around[k], addr)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, d := range own {
		if name := i.name(d.Entry, nil); d.Tag == dwarf.TagFormalParameter && name != "" && !seen[name] {
			seen[name] = true
			out = append(out, i.variable(n, d, addr, nil))
		}
	}
	return out, nil
}

// Variable returns the variable of that name, or a variable of its file. path has the
// requested members, each of which belongs to the one before or to its target. Errors
// are *NoVariableError, and errors in the format.
func (i *Info) Variable(addr uint64, in, name string, path []string) (_ Variable, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	n, all, err := i.visibleDeclarations(addr, in)
	if err != nil {
		return Variable{}, err
	}
	missing := &NoVariableError{Name: name}
	for _, d := range all {
		have := i.name(d.Entry, nil)
		if have == name {
			return i.variable(n, d, addr, path), nil
		}
		missing.Have = append(missing.Have, have)
	}
	d, err := i.fileVariable(n, addr, name)
	switch {
	case err != nil:
		return Variable{}, err
	case d.Entry == nil:
		return Variable{}, missing
	}
	return i.variable(n, d, addr, path), nil
}

// visibleDeclarations returns the declarations of the functions that contain addr.
func (i *Info) visibleDeclarations(addr uint64, in string) (n int, all []declared, err error) {
	n, ok := i.unitAt(addr)
	if !ok {
		return 0, nil, errors.New("no debug information is of this place")
	}
	c, err := i.contents(n)
	if err != nil {
		return 0, nil, err
	}
	around := c.instancesAround(addr)
	first := slices.IndexFunc(around, func(x *instance) bool { return in != "" && x.name == in })
	if first < 0 {
		first = max(0, slices.IndexFunc(around, func(x *instance) bool { return !x.inlined || x.entry != addr }))
	}
	seen := map[string]bool{}
	for _, x := range append(slices.Clone(around[first:]), around[:first]...) {
		own, err := i.declarations(x, addr)
		if err != nil {
			return 0, nil, err
		}
		for _, d := range own {
			if name := i.name(d.Entry, nil); name != "" && !seen[name] {
				seen[name] = true
				all = append(all, d)
			}
		}
	}
	return n, all, nil
}

// declarations returns the declarations of a function that are visible at addr: inner
// blocks first, and last those that are visible regardless of code, in which static
// variables have a location.
func (i *Info) declarations(of *instance, addr uint64) ([]declared, error) {
	all, e, err := i.children(of.at, func(e *dwarf.Entry) (in, hollow bool) {
		ranges, err := i.data.Ranges(e)
		return err == nil && (len(ranges) == 0 || within(ranges, addr)), len(ranges) == 0
	})
	if err != nil {
		return nil, err
	}
	for range maxLinks {
		origin, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
		if !ok {
			break
		}
		var abstract []declared
		abstract, e, err = i.children(origin, func(*dwarf.Entry) (in, hollow bool) { return true, false })
		if err != nil {
			return nil, err
		}
		all = append(all, abstract...)
	}
	for k := range all {
		all[k].of = of
	}
	return all, nil
}

// children returns the variables and parameters declared by an entry and its blocks,
// inner blocks first. block says of a block whether it counts, and whether it has no
// code: no address is in such a block, so its declarations hide nothing and come
// last.
func (i *Info) children(at dwarf.Offset, block func(*dwarf.Entry) (in, hollow bool)) ([]declared, *dwarf.Entry, error) {
	r := i.data.Reader()
	r.Seek(at)
	top, err := r.Next()
	if err != nil || top == nil {
		return nil, nil, errDamaged
	}
	var out []declared
	hollow := maxVariables // the depth from which on blocks have no code
	for depth := 0; top.Children && depth >= 0; {
		e, err := r.Next()
		if err != nil {
			return nil, nil, fmt.Errorf("read variables: %w", err)
		}
		switch {
		case e == nil || len(out) == maxVariables:
			return nil, nil, errDamaged
		case e.Tag == 0:
			if depth--; depth < hollow {
				hollow = maxVariables
			}
			continue
		case e.Tag == dwarf.TagVariable || e.Tag == dwarf.TagFormalParameter:
			d := declared{Entry: e, depth: depth}
			if depth >= hollow {
				d.depth -= maxVariables
			}
			out = append(out, d)
		case e.Tag == dwarf.TagLexDwarfBlock:
			in, empty := block(e)
			if !in {
				break
			}
			if e.Children {
				depth++
				if empty {
					hollow = min(hollow, depth)
				}
			}
			continue
		}
		if err := skip(r, e); err != nil {
			return nil, nil, err
		}
	}
	slices.SortStableFunc(out, func(a, b declared) int { return cmp.Compare(b.depth, a.depth) })
	return out, top, nil
}

// skip skips the children of e, which r has just read.
func skip(r *dies.Reader, e *dwarf.Entry) error {
	_, err := r.Pass(e)
	return err
}

// variable describes a declaration.
func (i *Info) variable(n int, d declared, addr uint64, path []string) (v Variable) {
	v = Variable{Name: i.name(d.Entry, nil), Parameter: d.Tag == dwarf.TagFormalParameter, Type: (*btf.Void)(nil)}
	if d.of != nil {
		v.Function, v.Inlined = d.of.name, d.of.inlined
	}
	if f := i.attribute(d.Entry, dwarf.AttrType); f != nil {
		t := typeReader{Info: i, left: maxTypes}
		if at, ok := f.Val.(dwarf.Offset); ok {
			v.Type, v.typeAt = t.read(at, path, 0), at
		}
	}
	if v.Declared = v.Type; v.Declared != nil {
		if to, ok := types.Reference(v.Type); ok {
			v.Type = to
			defer func() { v.follow() }()
		}
	}
	if f := i.attribute(d.Entry, dwarf.AttrConstValue); f != nil {
		v.Where, v.Why = constantLocation(f.Val)
		return v
	}
	f, owner := i.attributeOwner(d.Entry, dwarf.AttrLocation)
	switch {
	case f == nil && (d.of == nil || d.Val(dwarf.AttrDeclaration) == true): // extern, possibly in a function
		v.Why = ErrElsewhere
	case f == nil:
		v.Why = errOptimizedOut
	default:
		v.Where, v.Pieces, v.Why = i.location(i.data.UnitOf(owner.Offset), f, addr, func() (number, error) { return i.frameBase(n, addr) })
		switch {
		case v.Why != nil:
		case v.Where.Base == BaseEntry:
			v.Why = ErrEntryValue
		case v.Parameter && isConstant(f) && v.Where.Memory && d.of != nil && !d.of.inlined:
			v.Where, v.Pieces, v.Why = i.passedLocation(n, d, addr, v.Where)
		}
	}
	return v
}

// follow turns the location of a reference into the location of its target.
func (v *Variable) follow() {
	switch l := &v.Where; {
	case v.Why != nil && !errors.Is(v.Why, ErrEntryValue), len(l.Offsets) == 0:
	case !l.Memory:
		l.Memory = true
	case len(l.Offsets) > maxSteps:
		v.Why = errDamaged
	default:
		l.Offsets = append(slices.Clone(l.Offsets), 0)
	}
}

// ErrElsewhere is Variable.Why of a variable defined in another file: look up the
// symbol of that name.
var ErrElsewhere = errors.New("another file has it")

// location evaluates an attribute for addr; a value in several places has pieces, and
// errPieces.
func (i *Info) location(u *dies.Unit, f *dwarf.Field, addr uint64, frame func() (number, error)) (Location, []Piece, error) {
	code, err := listsOf(u).expression(f, addr)
	if err != nil {
		return Location{}, nil, err
	}
	x := expression{code: code, frame: frame, address: u.Address}
	l, err := x.location()
	if err == nil && l.Base == BaseProgram && l.Offsets[0] == 0 {
		err = errOptimizedOut // code that the linker has dropped is at 0
	}
	return l, x.pieces, err
}

// frameBase returns the base of the frame locations of variables of the function
// around addr.
func (i *Info) frameBase(n int, addr uint64) (number, error) {
	c, err := i.contents(n)
	if err != nil {
		return number{}, err
	}
	around := c.instancesAround(addr)
	if len(around) == 0 {
		return number{}, errDamaged
	}
	e := i.entryAt(around[len(around)-1].at)
	if e == nil {
		return number{}, errDamaged
	}
	f, owner := i.attributeOwner(e, dwarf.AttrFrameBase)
	if f == nil {
		return number{}, errDamaged
	}
	l, _, err := i.location(i.data.UnitOf(owner.Offset), f, addr, func() (number, error) { return number{}, errDamaged })
	return number{l.Base, l.Reg, l.Offsets}, err
}

// constantLocation is the location of a constant value.
func constantLocation(v any) (Location, error) {
	switch v := v.(type) {
	case int64:
		return Location{Offsets: []int64{v}}, nil
	case uint64:
		return Location{Offsets: []int64{int64(v)}}, nil
	case []byte:
		if len(v) <= 8 {
			return Location{Offsets: []int64{int64(binary.LittleEndian.Uint64(append(slices.Clone(v), make([]byte, 8)...)))}}, nil
		}
	}
	return Location{}, errors.New("a constant of more than 8 bytes")
}
