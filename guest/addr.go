package guest

import "fmt"

// GVA is a guest virtual address.
type GVA uint64

// GPA is a guest physical address. As the root of an address space it is the
// physical address of the top-level page table (CR3 without its low 12 bits).
type GPA uint64

// String returns the address as 0x and 16 hexadecimal digits.
func (a GVA) String() string { return fmt.Sprintf("0x%016x", uint64(a)) }

// String returns the address as 0x and its hexadecimal digits.
func (a GPA) String() string { return fmt.Sprintf("0x%x", uint64(a)) }

// Canonical reports whether a is a canonical 48-bit address (SDM Vol. 1,
// 3.3.7.1).
func (a GVA) Canonical() bool { return uint64(int64(a<<16)>>16) == uint64(a) }

// CanonicalWide reports whether a is a canonical 57-bit address, as in 5-level
// paging. With 4-level paging some of these are not canonical.
func (a GVA) CanonicalWide() bool { return uint64(int64(a<<7)>>7) == uint64(a) }

// Level returns the index of a privilege level in tables with one entry for each: 0
// for the kernel's, CPL0, and 1 for the user's, CPL3.
func Level(user bool) int {
	if user {
		return 1
	}
	return 0
}
