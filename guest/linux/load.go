package linux

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	debugelf "debug/elf"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// program is the loadable form of a kernel.
type program struct {
	segments []segment // ascending, none empty, not overlapping
	entry    uint64    // physical address of startup_64
	relocs   relocs
	header   []byte // the setup header of a bzImage, from setupHeader on; nil for an ELF file
}

// segment is one PT_LOAD segment.
type segment struct {
	pa, size uint64
	data     []byte // the rest up to size is zero
}

// Load reads the kernel at path, a bzImage or a vmlinux.
func Load(path string) (*Kernel, error) {
	b, err := elf.ReadFile(path, MaxImage)
	if err != nil {
		return nil, fmt.Errorf("load kernel %w", err)
	}
	k, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("load kernel %s: %w", path, err)
	}
	return k, nil
}

// Parse reads a kernel from a bzImage or a vmlinux, and keeps b. Errors wrap
// ErrNotKernel if b is not Linux, and otherwise say why it is invalid.
func Parse(b []byte) (*Kernel, error) {
	id := guest.ID{SHA256: sha256.Sum256(b)}
	var p program
	packing := ""
	if !bytes.HasPrefix(b, []byte(debugelf.ELFMAG)) {
		var err error
		if p.header, err = readSetupHeader(b); err != nil {
			return nil, err
		}
		if b, packing, err = Unpack(b); err != nil {
			return nil, err
		}
	}
	f, err := elf.Parse(b)
	if err != nil {
		if e := (*elf.Error)(nil); errors.As(err, &e) && e.Foreign {
			err = fmt.Errorf("%w: want a kernel for x86-64", err)
		}
		return nil, err
	}
	if guest.IsUserModeLinux(f) {
		return nil, fmt.Errorf("%w for a virtual machine: user-mode Linux is a program of its host; use a kernel that is built for x86 hardware", ErrNotKernel)
	}
	mem, err := f.Memory()
	if err != nil {
		return nil, err
	}
	if _, err := mem.ReadNames(f, debugelf.SHT_SYMTAB, MaxNames); err != nil {
		return nil, err
	}
	k, err := New(mem)
	switch {
	case err != nil:
		return nil, err
	case k == nil:
		return nil, fmt.Errorf("%w: an ELF file, but no Linux: want a bzImage or vmlinux", ErrNotKernel)
	}
	k.Packing = packing
	if err := p.load(f, b); err != nil {
		return nil, err
	}
	id.BuildID, id.Entry = f.BuildID(), guest.GVA(p.entry)
	k.ID, k.program = id, p
	return k, nil
}

// load reads the segments and the relocations after them.
func (p *program) load(f *elf.File, b []byte) error {
	for i := range f.Progs {
		s := &f.Progs[i]
		if debugelf.ProgType(s.Type) != debugelf.PT_LOAD || s.Memsz == 0 {
			continue
		}
		data := f.Bytes(s.Off, s.Filesz)
		switch {
		case data == nil:
			return fmt.Errorf("segment %d: %d bytes at offset %#x are not in the file's %d (truncated?)", i, s.Filesz, s.Off, f.Size())
		case s.Filesz > s.Memsz || s.Paddr > kernelImageSize || s.Memsz > kernelImageSize-s.Paddr:
			return fmt.Errorf("segment %d: %d bytes for %d at physical address %#x: a kernel is below %#x", i, s.Filesz, s.Memsz, s.Paddr, kernelImageSize)
		}
		p.segments = append(p.segments, segment{s.Paddr, s.Memsz, data})
	}
	slices.SortFunc(p.segments, func(a, b segment) int { return cmp.Compare(a.pa, b.pa) })
	for i := range p.segments[min(1, len(p.segments)):] {
		if s := &p.segments[i]; s.pa+s.size > p.segments[i+1].pa {
			return fmt.Errorf("segments at physical addresses %#x and %#x overlap", s.pa, p.segments[i+1].pa)
		}
	}
	p.entry = f.Header.Entry
	if !p.loaded(p.entry, 1) {
		return fmt.Errorf("its entry %#x is not in it: want a vmlinux as the build of Linux makes it", p.entry)
	}
	var err error
	p.relocs, err = parseRelocs(b[f.End():], p.loaded)
	return err
}

// loaded reports whether n bytes at pa come from the file.
func (p *program) loaded(pa, n uint64) bool {
	for i := range p.segments {
		if s := &p.segments[i]; pa-s.pa < uint64(len(s.data)) {
			return n <= uint64(len(s.data))-(pa-s.pa)
		}
	}
	return false
}

// extent returns the physical addresses of the loaded kernel, including its bss and
// brk.
func (p *program) extent() (lo, hi uint64) {
	if len(p.segments) == 0 {
		return 0, 0
	}
	last := p.segments[len(p.segments)-1]
	return p.segments[0].pa, last.pa + last.size
}

// place loads the kernel, slid, into dst, which begins at the extent's lo and has
// room for all of it, or for the part that comes from the file.
func (p *program) place(dst []byte, slide uint64) {
	lo, _ := p.extent()
	clear(dst)
	for i := range p.segments {
		s := &p.segments[i]
		copy(dst[s.pa-lo:], s.data)
	}
	p.relocs.apply(dst, lo, slide)
}
