package types

import (
	"bytes"
	"fmt"
	"math"
	"sync"

	"github.com/cilium/ebpf/btf"
)

// MaxBTF is how many bytes of BTF are read at most. That of Debian's kernels has up to
// 6 MiB.
const MaxBTF = 16 << 20

// Read returns the types of a section .BTF as it is in files and in memory: those of a
// program, with base nil, or those that a module adds to its kernel's, base. They are
// decoded when they are asked for.
func Read(section []byte, base *btf.Spec) (*btf.Spec, error) {
	limit := MaxTypes
	if base != nil {
		limit = MaxModuleTypes
	}
	n, err := count(section)
	switch {
	case err != nil:
	case len(section) > MaxBTF:
		err = fmt.Errorf("%d bytes, more than %d", len(section), MaxBTF)
	case n > limit:
		err = fmt.Errorf("%d types, more than %d", n, limit)
	default:
		var spec *btf.Spec
		if spec, err = btf.LoadSplitSpecFromReader(bytes.NewReader(section), base); err == nil {
			return spec, nil
		}
	}
	return nil, fmt.Errorf("read BTF: %w", err)
}

// Info are the types of a guest's program, and of the modules that it has loaded. Its
// methods may be called from any goroutine.
type Info struct {
	mu      sync.Mutex // what reads a module's types reads the program's too, without their lock
	base    *btf.Spec
	modules map[string]*btf.Spec
}

// New returns the types of a program, which Read has returned.
func New(program *btf.Spec) *Info { return &Info{base: program, modules: map[string]*btf.Spec{}} }

// AddModule adds the types of a module, which Read has returned with those of the
// program as their base. Those of a module of that name that is there already go.
func (i *Info) AddModule(name string, module *btf.Spec) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.modules[name] = module
}

// RemoveModule takes the types of a module away.
func (i *Info) RemoveModule(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.modules, name)
}

// Func returns the prototype of a function: of that module, or with "" of the program or,
// where that does not have it, of any module. It is nil when it is not known.
func (i *Info) Func(module, name string) *btf.FuncProto {
	var proto *btf.FuncProto
	i.each(module, func(s *btf.Spec) bool {
		types, err := s.AnyTypesByName(name)
		if err != nil {
			return false
		}
		for _, t := range types {
			if f, ok := t.(*btf.Func); ok {
				if proto, ok = f.Type.(*btf.FuncProto); ok {
					return true
				}
			}
		}
		return false
	})
	return proto
}

// Struct returns the structure or union of that tag, of the program or of any module, or
// nil.
func (i *Info) Struct(tag string) btf.Type {
	var found btf.Type
	i.each("", func(s *btf.Spec) bool {
		types, err := s.AnyTypesByName(tag)
		if err != nil {
			return false
		}
		for _, t := range types {
			if _, ok := Members(t); ok {
				found = t
				return true
			}
		}
		return false
	})
	return found
}

// each calls f with the types of that module, or of all, until it returns true.
func (i *Info) each(module string, f func(*btf.Spec) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if module != "" {
		if s := i.modules[module]; s != nil {
			f(s)
		}
		return
	}
	if f(i.base) {
		return
	}
	for _, s := range i.modules {
		if f(s) {
			return
		}
	}
}

// Size returns the bytes of a value of that type, at least 0; ok is false where it has
// none, as a function or what is declared only.
func Size(t btf.Type) (n uint64, ok bool) {
	size, err := btf.Sizeof(t)
	if err != nil || size < 0 || size > math.MaxUint32 {
		return 0, false
	}
	return uint64(size), true
}
