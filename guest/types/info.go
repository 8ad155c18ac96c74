package types

import (
	"bytes"
	"fmt"
	"math"
	"sync"

	"github.com/cilium/ebpf/btf"
)

// MaxBTF is the most bytes of BTF that are read. Debian's kernels have up to 6 MiB.
const MaxBTF = 16 << 20

// Type is a type of a guest's program, for packages that do not look into it.
type Type = btf.Type

// FuncProto is the prototype of a function, likewise.
type FuncProto = btf.FuncProto

// Read returns the types of a section .BTF, from a file or from memory: a program's,
// with base nil, or those that a module adds to its kernel's, base. They are decoded
// lazily.
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
	program *btf.Spec
	module  func(name string) *btf.Spec

	mu sync.Mutex // reading a module's types also reads the program's, without their lock

	index index
}

// New returns the types of a program, a result of Read. module returns the types that
// a loaded module adds to them, or nil; it may be nil itself.
func New(program *btf.Spec, module func(name string) *btf.Spec) *Info {
	return &Info{program: program, module: module}
}

// Func returns the prototype of a function of the program or, if module is not "", of
// that module. It is nil if it is not known.
func (i *Info) Func(module, name string) *btf.FuncProto {
	spec := i.program
	if module != "" {
		if i.module == nil {
			return nil
		}
		if spec = i.module(module); spec == nil {
			return nil
		}
	}
	for _, t := range i.typesByName(spec, name) {
		if f, ok := t.(*btf.Func); ok {
			if proto, ok := f.Type.(*btf.FuncProto); ok {
				return proto
			}
		}
	}
	return nil
}

// Struct returns the structure or union of that tag of the program, or nil.
func (i *Info) Struct(tag string) btf.Type {
	for _, t := range i.typesByName(i.program, tag) {
		if _, ok := Members(t); ok {
			return t
		}
	}
	return nil
}

// typesByName returns the types with a name; damaged types have no name.
func (i *Info) typesByName(s *btf.Spec, name string) []btf.Type {
	i.mu.Lock()
	defer i.mu.Unlock()
	types, err := s.AnyTypesByName(name)
	if err != nil {
		return nil
	}
	return types
}

// Size returns the size of a value of that type, at least 0; ok is false if it has no
// size, for example a function or an incomplete type.
func Size(t btf.Type) (n uint64, ok bool) {
	size, err := btf.Sizeof(t)
	if err != nil || size < 0 || size > math.MaxUint32 {
		return 0, false
	}
	return uint64(size), true
}
