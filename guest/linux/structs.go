package linux

import (
	"errors"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// Read fills p with the guest's bytes at addr or fails, like guest.AddressSpace's
// method of that name. The data is not trusted.
type Read func(addr guest.GVA, p []byte) error

// Lookup returns the address of a symbol of the running kernel, or the offset of a
// per-CPU variable from a GS base.
type Lookup func(name string) (guest.GVA, bool)

// finder looks up the fields and symbols for a reader of a kernel's structures, and
// records the missing ones.
type finder struct {
	types  *Types // nil if not known
	lookup Lookup

	missing []string
}

// need is a field that is needed: its path, or several joined by |, of which the
// first existing one counts.
type need struct {
	to   *field
	path string
}

// fields finds all the fields, or records that feature is off and returns false.
func (f *finder) fields(feature string, all ...need) bool {
	for _, n := range all {
		err := error(ErrNoTypes)
		for _, path := range strings.Split(n.path, "|") {
			if f.types == nil {
				break
			}
			if *n.to, err = f.types.field(path); err == nil {
				break
			}
		}
		if err != nil {
			f.missing = append(f.missing, fmt.Sprintf("%s: %v", feature, err))
			return false
		}
	}
	return true
}

// symbol finds a symbol, or records that feature is off.
func (f *finder) symbol(feature, name string) (guest.GVA, bool) {
	addr, ok := f.lookup(name)
	if !ok {
		f.missing = append(f.missing, fmt.Sprintf("%s: the kernel has no symbol %s", feature, name))
	}
	return addr, ok
}

// word is a field of the size of a pointer, at a structure's beginning.
var word = field{Size: 8}

// value reads the number in field x of the structure at addr.
func (read Read) value(addr guest.GVA, x field) (uint64, error) {
	if x.Size > 8 {
		return 0, fmt.Errorf("a field of %d bytes is no number", x.Size)
	}
	var b [8]byte
	if err := read(addr+guest.GVA(x.Off), b[:x.Size]); err != nil {
		return 0, err
	}
	v := le64(b[:])
	if x.Bits != 0 {
		v = v >> x.Shift & (1<<x.Bits - 1)
	}
	return v, nil
}

// valueOrZero is value, or 0 if it cannot be read.
func (read Read) valueOrZero(addr guest.GVA, x field) uint64 {
	v, _ := read.value(addr, x)
	return v
}

// follow follows the pointers in fields, from the structure at addr on.
func (read Read) follow(addr guest.GVA, fields ...field) (guest.GVA, error) {
	for _, x := range fields {
		next, err := read.value(addr, x)
		if err != nil {
			return 0, err
		}
		if next == 0 {
			return 0, errNull
		}
		addr = guest.GVA(next)
	}
	return addr, nil
}

// Errors about the contents of the guest's memory.
var (
	errNull = errors.New("a null pointer")
	errLoop = errors.New("a list leads back into itself")
	errMany = errors.New("a list is longer than the limit")
)

// list calls each with the address of each structure that a list (struct list_head)
// links by its field link, at most left of them, from the list's head on. It ends at
// the first error.
func (read Read) list(head guest.GVA, link field, left *int, each func(guest.GVA) error) error {
	seen := map[guest.GVA]bool{}
	for at := head; ; {
		next, err := read.value(at, word)
		if err != nil {
			return err
		}
		at = guest.GVA(next)
		switch {
		case at == head:
			return nil
		case seen[at]:
			return errLoop
		case *left <= 0:
			return errMany
		}
		*left--
		seen[at] = true
		if err := each(at - guest.GVA(link.Off)); err != nil {
			return err
		}
	}
}
