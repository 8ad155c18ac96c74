package guest

import (
	"debug/elf"
	"fmt"
	"slices"
)

// readSegments checks the program headers and keeps the PT_LOAD segments.
func (img *Image) readSegments() error {
	for i := range img.file.Progs {
		p := &img.file.Progs[i]
		part := fmt.Sprintf("program header %d", i)
		switch elf.ProgType(p.Type) {
		case elf.PT_INTERP:
			return &ImageError{part, "the program wants a dynamic loader (PT_INTERP)", "link with -static -no-pie"}
		case elf.PT_DYNAMIC:
			return &ImageError{part, "the program needs relocating (PT_DYNAMIC)", "link with -static -no-pie"}
		case elf.PT_LOAD:
		default:
			continue
		}
		if p.Memsz == 0 && p.Filesz == 0 {
			continue
		}
		data := img.file.Bytes(p.Off, p.Filesz)
		if err := checkLoad(part, p, data != nil, img.file.Size()); err != nil {
			return err
		}
		if len(img.Segments) == maxImageLoads {
			return &ImageError{part, fmt.Sprintf("more than %d PT_LOAD segments", maxImageLoads), "merge sections in the linker script"}
		}
		img.Segments = append(img.Segments, Segment{
			VAddr:   GVA(p.Vaddr),
			PAddr:   GPA(p.Paddr),
			Data:    data,
			MemSize: p.Memsz,
			R:       p.Flags&uint32(elf.PF_R) != 0,
			W:       p.Flags&uint32(elf.PF_W) != 0,
			X:       p.Flags&uint32(elf.PF_X) != 0,
			User:    p.Flags&PFUser != 0,
		})
	}
	if len(img.Segments) == 0 {
		return &ImageError{"program headers", "no PT_LOAD segment", "link the guest: it needs code to load"}
	}
	return checkOverlap(img.Segments)
}

// checkLoad checks one PT_LOAD header by itself; inFile says whether its bytes are in
// the file, of size bytes. Boot checks whether the segment fits into the guest's
// memory.
func checkLoad(part string, p *elf.Prog64, inFile bool, size int) error {
	const lastPage = ^uint64(PageSize - 1)
	switch {
	case p.Filesz > p.Memsz:
		return damagedError(part, "%d bytes in the file for %d bytes of memory", p.Filesz, p.Memsz)
	case !inFile:
		return damagedError(part, "%d bytes at offset %#x reach beyond the file's %d (truncated?)", p.Filesz, p.Off, size)
	case p.Memsz > MaxRAM:
		return damagedError(part, "%d bytes of memory, more than any guest can have (%d)", p.Memsz, uint64(MaxRAM))
	case p.Vaddr+p.Memsz < p.Vaddr || p.Vaddr+p.Memsz > lastPage:
		return damagedError(part, "%d bytes at virtual address %#x reach the last page of the address space", p.Memsz, p.Vaddr)
	case p.Paddr+p.Memsz < p.Paddr:
		return damagedError(part, "%d bytes at physical address %#x wrap around", p.Memsz, p.Paddr)
	case !GVA(p.Vaddr).Canonical() || !GVA(p.Vaddr+p.Memsz-1).Canonical() || int64(p.Vaddr^(p.Vaddr+p.Memsz-1)) < 0:
		return &ImageError{part, fmt.Sprintf("%d bytes at virtual address %#x are not all canonical 48-bit addresses", p.Memsz, p.Vaddr), "link the guest below 0x800000000000 or from 0xffff800000000000"}
	case p.Vaddr%PageSize != p.Paddr%PageSize:
		return &ImageError{part, fmt.Sprintf("virtual address %#x and physical address %#x have different offsets in their pages", p.Vaddr, p.Paddr), "align both alike in the linker script"}
	}
	return nil
}

// checkOverlap sorts the segments by virtual address and checks each against
// the others.
func checkOverlap(segs []Segment) error {
	slices.SortFunc(segs, func(a, b Segment) int { return cmpAddr(a.VAddr, b.VAddr) })
	for i := 1; i < len(segs); i++ {
		a, b := &segs[i-1], &segs[i]
		if b.VAddr <= a.lastAddr() {
			return damagedError("segments", "those at %v (%d bytes) and %v overlap in virtual memory", a.VAddr, a.MemSize, b.VAddr)
		}
		if a.lastAddr()/PageSize != b.VAddr/PageSize {
			continue
		}
		// They share a page, which has one frame and one set of permissions.
		const align = "align the second to 4096 in the linker script"
		if uint64(a.VAddr)-uint64(a.PAddr) != uint64(b.VAddr)-uint64(b.PAddr) {
			return &ImageError{"segments", fmt.Sprintf("those at %v and %v share a virtual page but not the physical one", a.VAddr, b.VAddr), align}
		}
		if a.User != b.User {
			return &ImageError{"segments", fmt.Sprintf("those at %v and %v share a page, and one is the kernel's, the other the user's", a.VAddr, b.VAddr), align}
		}
	}
	byPA := slices.Clone(segs)
	slices.SortFunc(byPA, func(a, b Segment) int { return cmpAddr(GVA(a.PAddr), GVA(b.PAddr)) })
	for i := 1; i < len(byPA); i++ {
		a, b := &byPA[i-1], &byPA[i]
		if uint64(b.PAddr)-uint64(a.PAddr) < a.MemSize {
			return &ImageError{"segments", fmt.Sprintf("those at %v and %v overlap in physical memory at %v", a.VAddr, b.VAddr, b.PAddr), "give them different load addresses (AT) in the linker script"}
		}
	}
	return nil
}
