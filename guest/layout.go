package guest

import "fmt"

// Sizes of the regions behind the RAM, in bytes.
const (
	LoaderSize = 16 << 20 // page tables, GDT, boot-info blocks, command line, stacks
	ExecSize   = 8 << 20  // each exec area
)

// MemoryRange is one range of the physical memory map.
type MemoryRange struct {
	Name string
	Base GPA
	Size uint64
}

// Layout is the physical memory map of a bare guest. RAM starts at 0; the
// other ranges are ours, outside RAM so that no guest takes them for its own.
// Each is a memory slot by itself: the exec areas can be made read-only to the guest.
type Layout struct {
	RAM, Loader, KernelExec, UserExec MemoryRange
}

// Ranges returns the four ranges, RAM first.
func (l Layout) Ranges() []MemoryRange {
	return []MemoryRange{l.RAM, l.Loader, l.KernelExec, l.UserExec}
}

// LayoutFor returns the memory map of a guest with ram bytes of RAM: whole
// pages, at most MaxRAM. The loader's region starts at the first multiple of
// 1 GiB behind the RAM, and not below 1 GiB.
func LayoutFor(ram uint64) (Layout, error) {
	if ram == 0 || ram > MaxRAM || ram%PageSize != 0 {
		return Layout{}, fmt.Errorf("lay out guest memory: %d bytes of RAM: want a multiple of %d, up to %d GiB", ram, PageSize, uint64(MaxRAM)>>30)
	}
	base := GPA(alignUp(max(ram, page1G), page1G))
	return Layout{
		RAM:        MemoryRange{"ram", 0, ram},
		Loader:     MemoryRange{"loader", base, LoaderSize},
		KernelExec: MemoryRange{"kernel exec", base + LoaderSize, ExecSize},
		UserExec:   MemoryRange{"user exec", base + LoaderSize + ExecSize, ExecSize},
	}, nil
}

// alignUp rounds x up to a multiple of the power of two a.
func alignUp(x, a uint64) uint64 { return (x + a - 1) &^ (a - 1) }

// alignDown rounds x down to a multiple of the power of two a.
func alignDown(x, a uint64) uint64 { return x &^ (a - 1) }
