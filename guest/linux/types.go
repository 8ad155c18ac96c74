package linux

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// ErrNoTypes is returned for a kernel without BTF.
var ErrNoTypes = errors.New("the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")

// Types are the types of a kernel, or the types that a module adds. They may be used
// from any goroutine.
type Types struct {
	Spec *btf.Spec
}

// Types returns the types in section .BTF of the image, or ErrNoTypes.
func (k *Kernel) Types() (*Types, error) {
	k.typesOnce.Do(func() {
		b := k.mem.Table(".BTF", "__start_BTF", "__stop_BTF").Data
		if len(b) == 0 {
			k.typesErr = ErrNoTypes
			return
		}
		k.types, k.typesErr = readTypes(b, nil)
	})
	return k.types, k.typesErr
}

// readTypes reads BTF from memory: a kernel's, with a nil base, or a module's, with
// the kernel's types as base.
func readTypes(b []byte, base *Types) (*Types, error) {
	var in *btf.Spec
	if base != nil {
		in = base.Spec
	}
	spec, err := types.Read(b, in)
	if err != nil {
		return nil, err
	}
	return &Types{spec}, nil
}

// field is the place of a member in a structure.
type field struct {
	Off  uint32 // bytes
	Size uint32 // bytes

	// For a bit field, in the Size bytes at Off: its lowest bit, and its width; else
	// 0.
	Shift, Bits uint32

	Type btf.Type
}

// field finds a member by its path, the structure's name and the members' joined by
// dots: "task_struct.thread_info.flags". It looks into anonymous structures and
// unions, but does not follow pointers.
func (t *Types) field(path string) (field, error) {
	name, rest, _ := strings.Cut(path, ".")
	f := field{}
	var s *btf.Struct
	if err := t.Spec.TypeByName(name, &s); err != nil {
		return f, fmt.Errorf("the kernel's types have no struct %s", name)
	}
	f.Type = s
	for rest != "" {
		name, rest, _ = strings.Cut(rest, ".")
		m, found, _ := types.Member(f.Type, name)
		if !found {
			return f, fmt.Errorf("the kernel's types have no %s: no member %s", path, name)
		}
		f.Off += uint32(m.Offset / 8)
		f.Type = m.Type
		if f.Bits = uint32(m.Width); f.Bits != 0 {
			f.Shift = uint32(m.Offset % 8)
		}
	}
	size, err := btf.Sizeof(f.Type)
	if err != nil {
		return f, fmt.Errorf("the size of %s: %w", path, err)
	}
	f.Size = uint32(size)
	return f, nil
}
