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
