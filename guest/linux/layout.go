package linux

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Bounds of a guest's RAM, in bytes.
const (
	minRAM = 128 << 20
	maxRAM = guest.MaxRAM
)

// Layout is the physical memory map of a guest that runs Linux: RAM from 0 on, with
// a hole for devices from 3 GiB to 4 GiB, and the rest of it from there.
type Layout struct {
	Low, High guest.MemoryRange // High may be empty
	// Tables is the memory for ACPI, which firmware would leave. It is in Low, and
	// Linux does not use it as RAM.
	Tables guest.MemoryRange
}

// Holes in RAM.
const (
	lowEnd   = 3 << 30
	highBase = 4 << 30
	ebda     = 0x9_fc00 // the last KiB below 640 KiB, which belongs to firmware
	tables   = 0xe_0000
	oneMiB   = 1 << 20
)

// LayoutFor returns the memory map of a guest with ram bytes of RAM, whole pages.
func LayoutFor(ram uint64) (Layout, error) {
	if ram < minRAM || ram > maxRAM || ram%guest.PageSize != 0 {
		return Layout{}, fmt.Errorf("%d bytes of memory for Linux: want a multiple of %d, from %d MiB to %d GiB", ram, guest.PageSize, minRAM>>20, uint64(maxRAM)>>30)
	}
	l := Layout{
		Low:    guest.MemoryRange{Name: "ram", Size: min(ram, lowEnd)},
		High:   guest.MemoryRange{Name: "high ram", Base: highBase},
		Tables: guest.MemoryRange{Name: "tables", Base: tables, Size: oneMiB - tables},
	}
	l.High.Size = ram - l.Low.Size
	return l, nil
}

// Ranges returns the RAM, ascending.
func (l *Layout) Ranges() []guest.MemoryRange {
	if l.High.Size == 0 {
		return []guest.MemoryRange{l.Low}
	}
	return []guest.MemoryRange{l.Low, l.High}
}

// e820 is the memory map for the kernel (Documentation/arch/x86/zero-page.rst).
func (l *Layout) e820() []e820Entry {
	const ram, reserved = 1, 2
	m := []e820Entry{
		{0, ebda, ram},
		{ebda, 0xa_0000 - ebda, reserved},
		{tables, oneMiB - tables, reserved},
		{oneMiB, l.Low.Size - oneMiB, ram},
	}
	if l.High.Size != 0 {
		m = append(m, e820Entry{highBase, l.High.Size, ram})
	}
	return m
}

type e820Entry struct {
	base, size uint64
	kind       uint32
}
