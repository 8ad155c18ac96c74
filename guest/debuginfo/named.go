package debuginfo

import (
	"debug/dwarf"
	"slices"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/types"
)

// Limits on reading by name.
const (
	maxNames = 1 << 20
	maxWhole = 1 << 22 // entries of types that are read for names
)

// names are the types and functions of a program, as offsets of entries until they
// are needed.
type names struct {
	tagged      map[types.Tag]map[string]dwarf.Offset
	functions   map[string]dwarf.Offset
	unmangled   map[string]dwarf.Offset // in namespaces, with a linker name equal to the source name: extern "C" in C++, no_mangle in Rust
	enumerators map[string]dwarf.Offset // the enumeration of each enumerator
	whole       map[dwarf.Offset]btf.Type
	declared    map[dwarf.Offset]string // of the unit being read: scopes of types that it completes elsewhere
	left        int
	names       int // names that may still be read
}

// tags are C's tags, by the tags of entries.
var tags = map[dwarf.Tag]types.Tag{
	dwarf.TagStructType: types.TagStruct, dwarf.TagClassType: types.TagStruct, dwarf.TagUnionType: types.TagUnion, dwarf.TagEnumerationType: types.TagEnum, dwarf.TagTypedef: types.TagNone, dwarf.TagBaseType: types.TagNone,
}

// index reads the names of all units. Only the first entry of a name is kept: a type
// in several files counts as one. Entries after a damaged one in the same unit are
// not known.
func (i *Info) index() *names {
	if i.named != nil {
		return i.named
	}
	x := &names{tagged: map[types.Tag]map[string]dwarf.Offset{}, functions: map[string]dwarf.Offset{}, unmangled: map[string]dwarf.Offset{}, enumerators: map[string]dwarf.Offset{}, whole: map[dwarf.Offset]btf.Type{}, left: maxWhole, names: maxNames}
	for _, tag := range tags {
		x.tagged[tag] = map[string]dwarf.Offset{}
	}
	i.named = x
	for _, u := range i.units {
		r := i.data.Reader()
		r.Seek(u.Entry.Offset)
		if e, err := r.Next(); err != nil || e == nil || !e.Children {
			continue
		}
		x.declared = nil
		i.noteAll(x, r, "", 0)
	}
	return x
}

// maxScopes bounds the nesting of namespaces.
const maxScopes = 32

// noteAll records the names of the entries up to the end of siblings, and those in
// namespaces and classes; scope is their prefix.
func (i *Info) noteAll(x *names, r *dies.Reader, scope string, depth int) {
	for ; x.names > 0; x.names-- {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == 0 {
			return
		}
		scope := x.scope(e, scope)
		i.note(x, e, scope)
		if e.Children && depth < maxScopes && isScope(r.Unit(), e.Tag) {
			name, ok := e.Val(dwarf.AttrName).(string)
			if !ok {
				name = "(anonymous namespace)"
			}
			i.noteAll(x, r, scope+name+"::", depth+1)
			continue
		}
		if skip(r, e) != nil {
			return
		}
	}
}

// scope returns the prefix of an entry's name: that of its declaration, if it
// completes one, as the type of a C++ type unit does.
func (x *names) scope(e *dwarf.Entry, scope string) string {
	if _, ok := tags[e.Tag]; !ok {
		return scope
	}
	if e.Val(dwarf.AttrDeclaration) == true && scope != "" {
		if x.declared == nil {
			x.declared = map[dwarf.Offset]string{}
		}
		x.declared[e.Offset] = scope
	}
	if at, ok := e.Val(dwarf.AttrSpecification).(dwarf.Offset); ok {
		if of, known := x.declared[at]; known {
			return of
		}
	}
	return scope
}

// isScope reports whether entries with this tag contain names.
func isScope(u *dies.Unit, t dwarf.Tag) bool {
	switch t {
	case dwarf.TagNamespace, dwarf.TagModule:
		return true
	case dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType:
		return u != nil && !hasNone(u, dwarf.TagStructType)
	}
	return false
}

// Attributes of the linker's name.
var linkageNames = []dwarf.Attr{dwarf.AttrLinkageName, 0x2007} // the second was MIPS's

// note records the name of an entry.
func (i *Info) note(x *names, e *dwarf.Entry, scope string) {
	name, _ := e.Val(dwarf.AttrName).(string)
	if declared, _ := e.Val(dwarf.AttrDeclaration).(bool); declared {
		return
	}
	first := func(m map[string]dwarf.Offset, scope, name string) {
		if name == "" {
			return
		}
		if _, ok := m[scope+name]; !ok {
			m[scope+name] = e.Offset
		}
	}
	if e.Tag == dwarf.TagSubprogram {
		first(x.functions, scope, name)
		mangled := false
		for _, a := range linkageNames {
			if f := i.attribute(e, a); f != nil {
				name, _ := f.Val.(string)
				first(x.functions, "", name)
				mangled = true
			}
		}
		if !mangled && scope != "" {
			first(x.unmangled, "", name)
		}
		return
	}
	tag, ok := tags[e.Tag]
	if !ok {
		return
	}
	first(x.tagged[tag], scope, name)
	if tag == types.TagEnum && e.Children {
		r := i.data.Reader()
		r.Seek(e.Offset)
		if _, err := r.Next(); err != nil {
			return
		}
		t := typeReader{Info: i, left: maxTypes}
		for v := t.next(r); v != nil; v = t.next(r) {
			name, _ := v.Val(dwarf.AttrName).(string)
			first(x.enumerators, scope, name)
			if t.skip(r, v) != nil {
				return
			}
		}
	}
}

// readTypes lets f read types with everything that they refer to.
func (i *Info) readTypes(x *names, f func(*typeReader)) {
	t := &typeReader{Info: i, left: x.left, whole: x.whole}
	f(t)
	t.finish()
	x.left = t.left
}

// TypeByName returns the program's type that C writes with this tag and this name, or
// nil.
func (i *Info) TypeByName(tag types.Tag, name string) (t btf.Type) {
	err := i.withNames(func(x *names) {
		if at, ok := x.tagged[tag][name]; ok {
			t = i.readType(x, at)
		}
	})
	if err != nil {
		return nil
	}
	return t
}

// withNames calls f with the names; an error says that the file has changed.
func (i *Info) withNames(f func(*names)) (err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer guard(&err)()
	f(i.index())
	return nil
}

// readType reads the type of an entry.
func (i *Info) readType(x *names, at dwarf.Offset) (out btf.Type) {
	i.readTypes(x, func(t *typeReader) { out = t.read(at, nil, 0) })
	return out
}

// function returns the entry of a function.
func (x *names) function(name string) (at dwarf.Offset, ok bool) {
	if at, ok = x.functions[name]; !ok {
		at, ok = x.unmangled[name]
	}
	return at, ok
}

// Names returns all names with this tag, sorted.
func (i *Info) Names(tag types.Tag) (out []string) {
	err := i.withNames(func(x *names) {
		for n := range x.tagged[tag] {
			out = append(out, n)
		}
	})
	if err != nil {
		return nil
	}
	slices.Sort(out)
	return out
}

// Enumerator returns the value of an enumerator of that name, and its enumeration.
func (i *Info) Enumerator(name string) (value uint64, of *btf.Enum, ok bool) {
	err := i.withNames(func(x *names) {
		if at, known := x.enumerators[name]; known {
			of, _ = i.readType(x, at).(*btf.Enum)
		}
	})
	if err != nil || of == nil {
		return 0, nil, false
	}
	n := slices.IndexFunc(of.Values, func(v btf.EnumValue) bool { return v.Name == name })
	if n < 0 {
		return 0, nil, false
	}
	return of.Values[n].Value, of, true
}

// Func returns the prototype of a function of the program as in its source, or nil.
func (i *Info) Func(name string) (p *btf.FuncProto) {
	err := i.withNames(func(x *names) {
		if at, ok := x.function(name); ok {
			i.readTypes(x, func(t *typeReader) { p, _ = t.prototype(at) })
		}
	})
	if err != nil {
		return nil
	}
	return p
}

// prototype reads the prototype of the function at an offset, nil if it is not a
// function, and the entries that describe its parameters.
func (t *typeReader) prototype(at dwarf.Offset) (p *btf.FuncProto, params []dwarf.Offset) {
	r := t.data.Reader()
	r.Seek(at)
	e, err := r.Next()
	if err != nil || e == nil {
		return nil, nil
	}
	typeOf := func(e *dwarf.Entry) btf.Type {
		if f := t.attribute(e, dwarf.AttrType); f != nil {
			if at, ok := f.Val.(dwarf.Offset); ok {
				return t.read(at, nil, 0)
			}
		}
		return (*btf.Void)(nil)
	}
	passed := func(e *dwarf.Entry) btf.Type {
		if t.isByReference(e, &t.left) {
			return types.NewIndirect(typeOf(e))
		}
		return typeOf(e)
	}
	p = &btf.FuncProto{Return: passed(e)}
	if !e.Children {
		return p, params
	}
	for pack := false; ; {
		e := t.next(r)
		switch {
		case e == nil && pack:
			pack = false
			continue
		case e == nil:
			return p, params
		case e.Tag == tagGNUParameterPack && e.Children && !pack:
			pack = true // its parameters are in it
			continue
		case e.Tag == dwarf.TagFormalParameter && e.Val(dwarf.AttrVarParam) == true: // a result of Go
		case e.Tag == dwarf.TagFormalParameter:
			name := t.name(e, nil)
			p.Params, params = append(p.Params, btf.FuncParam{Name: name, Type: passed(e)}), append(params, e.Offset)
		case e.Tag == dwarf.TagUnspecifiedParameters:
			p.Params, params = append(p.Params, btf.FuncParam{Type: (*btf.Void)(nil)}), append(params, e.Offset)
		}
		if t.skip(r, e) != nil {
			return p, params
		}
	}
}
