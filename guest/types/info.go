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

// Type is a type of a guest's program, for those who do not look into it.
type Type = btf.Type

// FuncProto is the prototype of a function, likewise.
type FuncProto = btf.FuncProto

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
	program *btf.Spec
	module  func(name string) *btf.Spec

	mu sync.Mutex // what reads a module's types reads the program's too, without their lock

	index index
}

// New returns the types of a program, which Read has returned. Module returns those that
// a module which is loaded adds to them, or nil; it may be nil itself.
func New(program *btf.Spec, module func(name string) *btf.Spec) *Info {
	return &Info{program: program, module: module}
}

// Func returns the prototype of a function of the program, or of that module where it is
// not "". It is nil when it is not known.
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
	for _, t := range i.named(spec, name) {
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
	for _, t := range i.named(i.program, tag) {
		if _, ok := Members(t); ok {
			return t
		}
	}
	return nil
}

// named returns what has a name; damaged types have none.
func (i *Info) named(s *btf.Spec, name string) []btf.Type {
	i.mu.Lock()
	defer i.mu.Unlock()
	types, err := s.AnyTypesByName(name)
	if err != nil {
		return nil
	}
	return types
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
