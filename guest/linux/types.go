package linux

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Limits of BTF. Debian's largest kernels have 5 MB with 115,000 types, and modules
// some ten thousand. btf follows references recursively: the number of types bounds
// its stack, with about 2 KB for each.
const (
	maxTypeBytes   = 32 << 20
	maxTypes       = 1 << 18
	maxModuleTypes = 1 << 16
)

// ErrNoTypes is returned for a kernel without BTF.
var ErrNoTypes = errors.New("the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)")

// Types are the types of a kernel, or those that a module adds. They may be used from
// any goroutine.
type Types struct {
	Spec *btf.Spec
}

// Types returns the types in section .BTF of the image, or ErrNoTypes.
func (k *Kernel) Types() (*Types, error) {
	b := k.mem.Table(".BTF", "__start_BTF", "__stop_BTF").Data
	if len(b) == 0 {
		return nil, ErrNoTypes
	}
	return ReadTypes(b, nil)
}

// ReadTypes reads BTF as it is in memory: that of a kernel, with a base of nil, or
// that of a module of the kernel with the types base.
func ReadTypes(b []byte, base *Types) (*Types, error) {
	limit, spec := maxTypes, (*btf.Spec)(nil)
	if base != nil {
		limit, spec = maxModuleTypes, base.Spec
	}
	if !bytes.HasPrefix(b, []byte{0x9f, 0xeb}) {
		return nil, errors.New("not BTF: it has another magic number")
	}
	if len(b) > maxTypeBytes || tooManyTypes(b, limit) {
		return nil, fmt.Errorf("BTF of %d bytes has more than %d types or %d bytes", len(b), limit, maxTypeBytes)
	}
	spec, err := btf.LoadSplitSpecFromReader(bytes.NewReader(b), spec)
	if err != nil {
		return nil, fmt.Errorf("read BTF: %w", err)
	}
	return &Types{spec}, nil
}

// btfExtra is how many bytes follow struct btf_type, by kind: for each of its vlen
// elements, and once (include/uapi/linux/btf.h).
var btfExtra = [32]struct{ each, once uint64 }{
	1: {0, 4}, 3: {0, 12}, 4: {12, 0}, 5: {12, 0}, 6: {8, 0}, 13: {8, 0}, 14: {0, 4}, 15: {12, 0}, 17: {0, 4}, 19: {12, 0},
}

// tooManyTypes reports whether the types of b are more than limit.
func tooManyTypes(b []byte, limit int) bool {
	// struct btf_header: magic, version and flags, hdr_len, type_off, type_len.
	if len(b) < 24 {
		return false
	}
	from := uint64(le32(b[4:])) + uint64(le32(b[8:]))
	end := min(from+uint64(le32(b[12:])), uint64(len(b)))
	for n := 0; from+12 <= end; n++ {
		if n == limit {
			return true
		}
		info := le32(b[from+4:])
		x := btfExtra[info>>24&0x1f]
		from += 12 + x.once + x.each*uint64(info&0xffff)
	}
	return false
}

// Field is where a member is in a structure.
type Field struct {
	Off  uint32 // bytes
	Size uint32 // bytes

	// Of a bit field, in the Size bytes at Off: its lowest bit, and how many there
	// are; else 0.
	Shift, Bits uint32

	Type btf.Type
}

// Field finds a member by its path, the structure's name and the members' joined by
// dots: "task_struct.thread_info.flags". It looks into anonymous structures and
// unions, and through no pointer.
func (t *Types) Field(path string) (Field, error) {
	name, rest, _ := strings.Cut(path, ".")
	f := Field{}
	var s *btf.Struct
	if err := t.Spec.TypeByName(name, &s); err != nil {
		return f, fmt.Errorf("the kernel's types have no struct %s", name)
	}
	f.Type = s
	for rest != "" {
		name, rest, _ = strings.Cut(rest, ".")
		budget := maxMembers
		m, off, ok := member(f.Type, name, &budget)
		if !ok {
			return f, fmt.Errorf("the kernel's types have no %s: no member %s", path, name)
		}
		f.Off += uint32(off / 8)
		f.Type = m.Type
		if f.Bits = uint32(m.BitfieldSize); f.Bits != 0 {
			f.Shift = uint32(off % 8)
		}
	}
	size, err := btf.Sizeof(f.Type)
	if err != nil {
		return f, fmt.Errorf("the size of %s: %w", path, err)
	}
	f.Size = uint32(size)
	return f, nil
}

// maxMembers bounds the search for a member. No structure of Linux has 1,000.
const maxMembers = 1 << 14

// member finds a member of a structure or union, and its offset in bits.
func member(in btf.Type, name string, budget *int) (btf.Member, uint64, bool) {
	var members []btf.Member
	if s, ok := btf.As[*btf.Struct](in); ok {
		members = s.Members
	} else if u, ok := btf.As[*btf.Union](in); ok {
		members = u.Members
	}
	for _, m := range members {
		if *budget--; *budget < 0 {
			break
		}
		if m.Name == name {
			return m, uint64(m.Offset), true
		}
		if m.Name == "" {
			if found, off, ok := member(m.Type, name, budget); ok {
				return found, uint64(m.Offset) + off, true
			}
		}
	}
	return btf.Member{}, 0, false
}
