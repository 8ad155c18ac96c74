package guest

import "fmt"

// Sizes of the regions after the RAM, in bytes.
const (
	LoaderSize = 16 << 20 // page tables, GDT, boot-info blocks, command line, stacks
	ExecSize   = 8 << 20  // each exec area
	FarSize    = 16 << 20 // pages for Tables.Map, for each privilege
	DataSize   = 64 << 20 // memory that both the engine and the guest write, for each privilege
)

// MemoryRange is one range of the physical memory map.
type MemoryRange struct {
	Name string
	Base GPA
	Size uint64
	Kind RangeKind
}

// RangeKind is the use of a range of memory.
type RangeKind uint8

// The kinds. The zero value is the guest's own memory.
const (
	RangeRAM    RangeKind = iota
	RangeExec             // the engine's code; no vCPU writes there
	RangeShared           // memory shared by the engine and its code in the guest
)

// Layout is the physical memory map of a bare guest. RAM starts at 0; the other
// ranges are ours, outside RAM so that no guest uses them as its own. Each is a
// separate memory slot: the engine's code can be made read-only for the guest.
type Layout struct {
	RAM, Loader, KernelExec, UserExec MemoryRange

	// Far pages are mapped one by one, at addresses that are chosen later.
	KernelFar, UserFar MemoryRange

	// Data is not executable. Data that code of CPL0 relies on is out of reach of
	// CPL3.
	KernelData, UserData MemoryRange
}

// Ranges returns all ranges in ascending order, RAM first.
func (l Layout) Ranges() []MemoryRange {
	return []MemoryRange{l.RAM, l.Loader, l.KernelExec, l.UserExec, l.KernelFar, l.UserFar, l.KernelData, l.UserData}
}

// LayoutFor returns the memory map of a guest with ram bytes of RAM: whole pages, at
// most MaxRAM. The loader's region starts at the first multiple of 1 GiB after the
// RAM, but not below 1 GiB.
func LayoutFor(ram uint64) (Layout, error) {
	if ram == 0 || ram > MaxRAM || ram%PageSize != 0 {
		return Layout{}, fmt.Errorf("lay out guest memory: %d bytes of RAM: want a multiple of %d, up to %d GiB", ram, PageSize, uint64(MaxRAM)>>30)
	}
	l := Layout{RAM: MemoryRange{Name: "ram", Size: ram}}
	next := GPA(alignUp(max(ram, page1G), page1G))
	take := func(name string, size uint64, kind RangeKind) MemoryRange {
		r := MemoryRange{name, next, size, kind}
		next += GPA(size)
		return r
	}
	l.Loader = take("loader", LoaderSize, RangeRAM)
	l.KernelExec = take("kernel exec", ExecSize, RangeExec)
	l.UserExec = take("user exec", ExecSize, RangeExec)
	l.KernelFar = take("kernel far", FarSize, RangeExec)
	l.UserFar = take("user far", FarSize, RangeExec)
	l.KernelData = take("kernel data", DataSize, RangeShared)
	l.UserData = take("user data", DataSize, RangeShared)
	return l, nil
}

// alignUp rounds x up to a multiple of the power of two a.
func alignUp(x, a uint64) uint64 { return (x + a - 1) &^ (a - 1) }

// alignDown rounds x down to a multiple of the power of two a.
func alignDown(x, a uint64) uint64 { return x &^ (a - 1) }
