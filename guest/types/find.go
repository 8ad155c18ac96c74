package types

import (
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf/btf"
)

// Tag is the tag before a type's name in C.
type Tag string

// The tags. The last one is that of typedefs, and of C's own types.
const (
	TagStruct Tag = "struct"
	TagUnion  Tag = "union"
	TagEnum   Tag = "enum"
	TagNone   Tag = ""
)

// TagOf returns the tag of a type in C.
func TagOf(t btf.Type) (tag Tag, ok bool) {
	switch t.(type) {
	case *btf.Struct:
		return TagStruct, true
	case *btf.Union:
		return TagUnion, true
	case *btf.Enum:
		return TagEnum, true
	case *btf.Typedef, *btf.Int, *btf.Float:
		return TagNone, true
	}
	return "", false
}

// TypeByName returns the program's type that C writes with this tag and this name, or
// nil.
func (i *Info) TypeByName(tag Tag, name string) btf.Type {
	for _, t := range i.typesByName(i.program, name) {
		if has, ok := TagOf(t); ok && has == tag {
			return t
		}
	}
	return nil
}

// index has the program's types by name.
type index struct {
	once        sync.Once
	tagged      map[Tag][]string
	enumerators map[string]enumerator
}

type enumerator struct {
	value uint64
	of    *btf.Enum
}

// loadIndex reads all types of the program once, and keeps only their names.
func (i *Info) loadIndex() *index {
	x := &i.index
	x.once.Do(func() {
		x.tagged, x.enumerators = map[Tag][]string{}, map[string]enumerator{}
		i.mu.Lock()
		all := i.program.Copy()
		i.mu.Unlock()
		for t, err := range all.All() {
			if err != nil {
				return // damaged: only the types before it are known
			}
			if tag, ok := TagOf(t); ok && t.TypeName() != "" {
				x.tagged[tag] = append(x.tagged[tag], t.TypeName())
			}
			if e, ok := t.(*btf.Enum); ok {
				for _, v := range e.Values {
					x.enumerators[v.Name] = enumerator{v.Value, e}
				}
			}
		}
		for tag, names := range x.tagged {
			slices.Sort(names)
			x.tagged[tag] = slices.Compact(names)
		}
	})
	return x
}

// Names returns the names of all types with this tag, sorted.
func (i *Info) Names(tag Tag) []string { return slices.Clone(i.loadIndex().tagged[tag]) }

// Enumerator returns the value of an enumerator of that name, and its enumeration.
func (i *Info) Enumerator(name string) (value uint64, of *btf.Enum, ok bool) {
	e, ok := i.loadIndex().enumerators[name]
	return e.value, e.of, ok
}

// TypesNamed returns the structures, unions or enumerations with this tag whose names match, sorted by name: of the program or, if module is
// not "", those that this module adds.
func (i *Info) TypesNamed(module string, tag Tag, match func(name string) bool) (all []btf.Type) {
	if module == "" {
		for _, name := range i.loadIndex().tagged[tag] {
			if match(name) {
				if t := i.TypeByName(tag, name); t != nil {
					all = append(all, t)
				}
			}
		}
		return all
	}
	if i.module == nil {
		return nil
	}
	spec := i.module(module)
	if spec == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for t, err := range spec.All() {
		if err != nil {
			break // damaged: only the types before it are known
		}
		if has, ok := TagOf(t); ok && has == tag && t.TypeName() != "" && match(t.TypeName()) {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b btf.Type) int { return strings.Compare(a.TypeName(), b.TypeName()) })
	return slices.CompactFunc(all, func(a, b btf.Type) bool { return a.TypeName() == b.TypeName() })
}
