package guest

import "fmt"

// FaultReason says why a guest virtual address could not be used.
type FaultReason uint8

// The reasons. The zero value is invalid.
const (
	FaultNotPresent   FaultReason = iota + 1 // an entry's present bit is clear
	FaultNonCanonical                        // not a 48-bit address, or a 57-bit address with 5-level paging
	FaultReserved                            // an entry has a reserved bit set (SDM Vol. 3, 4.7)
	FaultNoMemory                            // a table or the page is outside guest memory
	FaultNotWritable                         // a write to a read-only page
	FaultNotUser                             // a CPL3 access to a supervisor page
)

// String describes the reason.
func (r FaultReason) String() string {
	switch r {
	case FaultNotPresent:
		return "not mapped"
	case FaultNonCanonical:
		return "not a canonical address"
	case FaultReserved:
		return "page-table entry with a reserved bit set"
	case FaultNoMemory:
		return "mapped outside guest memory"
	case FaultNotWritable:
		return "read-only page"
	case FaultNotUser:
		return "supervisor page"
	default:
		return fmt.Sprintf("fault reason %d", uint8(r))
	}
}

// PageFaultError is returned for a guest virtual address to which the guest's page
// tables do not give access.
type PageFaultError struct {
	VA     GVA
	Level  int // of the entry at fault: 5 (PML5E) or 4 (PML4E) to 1 (PTE); 0 if the fault is in the address or the page itself
	Reason FaultReason
}

// Error names the address, the level and the reason.
func (e *PageFaultError) Error() string {
	if e.Level == 0 {
		return fmt.Sprintf("guest address %v: %v", e.VA, e.Reason)
	}
	return fmt.Sprintf("guest address %v: %v (page-table level %d)", e.VA, e.Reason, e.Level)
}

// Mapping is the translation of one guest virtual address: the most permissive
// use that the tables allow, before CR0.WP, SMEP, SMAP and protection keys.
type Mapping struct {
	PA       GPA    // of the address itself, not of its page
	Size     uint64 // of the page: 4 KiB, 2 MiB or 1 GiB
	Writable bool   // R/W set at every level
	User     bool   // U/S set at every level
	NoExec   bool   // XD set at some level
}

// AddressSpace is guest memory seen through page tables of 4 levels (SDM Vol. 3,
// 4.5), or of 5 (Levels5). It is a small value: copy it freely. It caches no
// translation, because the guest changes its tables without notice; every access
// walks them again, reading each entry exactly once. Methods may be called from any
// thread, at any time, and allocate only to report an error.
type AddressSpace struct {
	mem  *Memory
	root GPA
	user bool
	deep bool
	home Home
	pins *TextPins
}

// WithPins returns the address space in which pinned pages of text are at the memory
// where they were patched. Translate still follows the page tables.
func (as AddressSpace) WithPins(pins *TextPins) AddressSpace {
	as.pins = pins
	return as
}

// Home is a range of virtual memory at a fixed physical address, whatever the tables
// say: the kernel's image of a guest whose tables do not exist yet.
type Home struct {
	Start GVA
	Size  uint64 // bytes; 0: not used
	PA    GPA
}

// NewAddressSpace returns the address space of the tables at root. Bits of
// root that are not part of the address in CR3 (PCID, PWT, PCD) are dropped.
func NewAddressSpace(mem *Memory, root GPA) AddressSpace {
	return AddressSpace{mem: mem, root: root & pteAddr}
}

// Root returns the physical address of the top-level table.
func (as AddressSpace) Root() GPA { return as.root }

// AsUser returns as restricted to the rights of CPL3: an access to a supervisor page
// fails with FaultNotUser. Code that performs an access in place of user code (an
// emulated push) must use it, or the guest's user code could reach the guest kernel's
// memory through its probe.
func (as AddressSpace) AsUser() AddressSpace {
	as.user = true
	return as
}

// Levels5 returns as with tables of 5 levels: CR4.LA57 (SDM Vol. 3, 4.5).
func (as AddressSpace) Levels5() AddressSpace {
	as.deep = true
	return as
}

// WithHome returns as with the range h.
func (as AddressSpace) WithHome(h Home) AddressSpace {
	as.home = h
	return as
}

// TextAt returns the physical address of va if its page is pinned: see WithPins.
func (as AddressSpace) TextAt(va GVA) (GPA, bool) { return as.pins.pageAt(va) }

// Translate walks the tables for va. Errors are *PageFaultError.
func (as AddressSpace) Translate(va GVA) (Mapping, error) {
	m, level, reason := as.walk(as.mem.Regions(), va, nil)
	if reason != 0 {
		return Mapping{}, &PageFaultError{VA: va, Level: level, Reason: reason}
	}
	return m, nil
}

// Maps reports whether Translate would succeed for va. It allocates nothing.
func (as AddressSpace) Maps(va GVA) bool {
	_, _, reason := as.walk(as.mem.Regions(), va, nil)
	return reason == 0
}

// Table returns the address of the table of that level through which va is mapped:
// level 1 has the entries of pages of 4 KiB. Errors are *PageFaultError: there is no
// such table.
func (as AddressSpace) Table(va GVA, level int) (GPA, error) {
	table, shift, at := as.root, uint(39), 4
	if as.deep {
		shift, at = 48, 5
	}
	for ; at > level; at, shift = at-1, shift-9 {
		e, ok := loadWord(as.mem.Regions(), table+GPA(uint64(va)>>shift&511)*8)
		switch {
		case !ok:
			return 0, &PageFaultError{VA: va, Level: at, Reason: FaultNoMemory}
		case e&ptePresent == 0 || e&ptePS != 0:
			return 0, &PageFaultError{VA: va, Level: at, Reason: FaultNotPresent}
		}
		table = GPA(e & pteAddr)
	}
	return table, nil
}

// walk does the work of Translate, and records in trail, unless that is nil, the
// entries that it reads. A reason of 0 is success. The number of entries read is at
// most 5 whatever the tables hold, so a table that points to itself is just another
// table.
func (as AddressSpace) walk(regions []Region, va GVA, trail *trail) (m Mapping, level int, reason FaultReason) {
	if off := uint64(va - as.home.Start); off < as.home.Size {
		return Mapping{PA: as.home.PA + GPA(off), Size: page4K, Writable: true}, 0, 0
	}
	if !va.Canonical() && (!as.deep || !va.CanonicalWide()) {
		return Mapping{}, 0, FaultNonCanonical
	}
	table := as.root
	and := uint64(pteWrite | pteUser) // permissions: all levels must agree
	or := uint64(0)                   // prohibitions: one level is enough
	shift := uint(39)
	level = 4
	if as.deep {
		shift, level = 48, 5
	}
	for ; ; level-- {
		at := table + GPA(uint64(va)>>shift&511)*8
		e, ok := loadWord(regions, at)
		if trail != nil {
			trail.addStep(Step{Level: level, At: at, Entry: e, Leaf: level == 1 || e&ptePS != 0}, ok)
		}
		if !ok {
			return Mapping{}, level, FaultNoMemory
		}
		if e&ptePresent == 0 {
			return Mapping{}, level, FaultNotPresent
		}
		and &= e
		or |= e
		if level == 1 || e&ptePS != 0 {
			if level >= 4 {
				return Mapping{}, level, FaultReserved // bit 7 of a PML4E or PML5E must be 0
			}
			size := uint64(1) << shift
			frame := e & pteAddr
			if level > 1 {
				frame &^= 1 << 12 // PAT (SDM Vol. 3, tables 4-16 and 4-18)
				if frame&(size-1) != 0 {
					return Mapping{}, level, FaultReserved
				}
			}
			if as.user && and&pteUser == 0 {
				return Mapping{}, level, FaultNotUser
			}
			return Mapping{
				PA:       GPA(frame | uint64(va)&(size-1)),
				Size:     size,
				Writable: and&pteWrite != 0,
				User:     and&pteUser != 0,
				NoExec:   or&pteNX != 0,
			}, level, 0
		}
		table = GPA(e & pteAddr)
		shift -= 9
	}
}
