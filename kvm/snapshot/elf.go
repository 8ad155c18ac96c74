package snapshot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Bounds for a guest's page tables, which may refer back to themselves.
const (
	maxTables   = 1 << 16
	maxSegments = 0xffff - 2 // program headers, without the ones for notes (PN_XNUM)
)

// segment is memory at one range of virtual addresses, in a row in physical memory, too.
type segment struct {
	va   guest.GVA
	pa   guest.GPA
	size uint64
	flag elf.ProgFlag
}

// WriteELF writes an ELF core to w. Each vCPU is a thread. Memory is at the
// addresses at which the page tables of vCPU 0 map it; a Linux kernel's memory
// is where the kernel's own tables map it. Pages of zeros are not written to w.
// The first note has the data that ReadELF needs apart from memory. It returns
// w's errors. partial reports that the tables map more than the file can
// describe.
func (s *Snapshot) WriteELF(w io.WriterAt) (partial bool, err error) {
	segments, partial := s.mappedSegments()
	var notes bytes.Buffer
	if err := s.writeOwnNote(&notes); err != nil {
		return partial, err
	}
	for i := range s.CPUs {
		writeNote(&notes, "CORE", elf.NT_PRSTATUS, s.CPUs[i].prstatus(i))
		if x := s.CPUs[i].XSave; len(x) >= fxsaveSize {
			writeNote(&notes, "CORE", elf.NT_FPREGSET, x[:fxsaveSize])
		}
	}
	if l := s.Config.Linux; l != nil && l.CoreInfo != "" {
		writeNote(&notes, "VMCOREINFO", 0, []byte(l.CoreInfo))
	}
	h := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_CORE), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Phnum: uint16(1 + len(segments)),
	}
	h.Ehsize, h.Phentsize = uint16(binary.Size(h)), uint16(binary.Size(elf.Prog64{}))
	h.Phoff = uint64(h.Ehsize)
	at := h.Phoff + uint64(h.Phnum)*uint64(h.Phentsize)
	progs := []elf.Prog64{{Type: uint32(elf.PT_NOTE), Off: at, Filesz: uint64(notes.Len()), Align: 4}}
	data := (at + uint64(notes.Len()) + guest.PageSize - 1) &^ (guest.PageSize - 1)
	binary.LittleEndian.PutUint64(notes.Bytes()[ownHeader:], data)
	// place returns the file offset of the memory at pa. The ranges follow each
	// other in the file.
	place := func(pa guest.GPA) uint64 {
		at := data
		for _, r := range s.Config.RAM {
			if pa-r.Base < guest.GPA(r.Size) {
				return at + uint64(pa-r.Base)
			}
			at += r.Size
		}
		return at
	}
	for _, g := range segments {
		progs = append(progs, elf.Prog64{
			Type: uint32(elf.PT_LOAD), Flags: uint32(g.flag), Off: place(g.pa), Vaddr: uint64(g.va), Paddr: uint64(g.pa),
			Filesz: g.size, Memsz: g.size, // no Align: with one crash(8) takes the file for an older format (netdump.c, is_netdump)
		})
	}
	head := append(append(encode(&h), encode(progs)...), notes.Bytes()...)
	if _, err := w.WriteAt(head, 0); err != nil {
		return partial, err
	}
	end := int64(data)
	for _, r := range s.Config.RAM {
		end += int64(r.Size)
	}
	for _, r := range s.Memory {
		if int64(place(r.At))+int64(len(r.Bytes)) > end {
			return partial, fmt.Errorf("write core: %w: memory at %v", ErrDamaged, r.At)
		}
		if _, err := w.WriteAt(r.Bytes, int64(place(r.At))); err != nil {
			return partial, err
		}
	}
	// The last page, so that the file is as long as its headers say.
	if n := len(s.Memory); n == 0 || int64(place(s.Memory[n-1].At))+int64(len(s.Memory[n-1].Bytes)) < end {
		_, err = w.WriteAt([]byte{0}, end-1)
	}
	return partial, err
}

// fxsaveSize is the part of an XSAVE area that an fxsave writes (SDM Vol. 1, 10.5.1).
const fxsaveSize = 512

// writeNote writes a note of a core (ELF specification, part 2, "Note Section").
func writeNote(b *bytes.Buffer, name string, kind elf.NType, desc []byte) {
	b.Write(encode([]uint32{uint32(len(name) + 1), uint32(len(desc)), uint32(kind)}))
	for _, part := range [][]byte{append([]byte(name), 0), desc} {
		b.Write(part)
		b.Write(make([]byte, -len(part)&3))
	}
}

// prstatus is a vCPU as a thread: struct elf_prstatus (Linux, include/linux/elfcore.h), with the registers of struct
// user_regs_struct (arch/x86/include/asm/user_64.h).
func (c *CPU) prstatus(number int) []byte {
	r, s := (*x86.Regs)(&c.Regs), &c.Sregs
	const pid, regs, size = 32, 112, 336
	b := make([]byte, size)
	binary.LittleEndian.PutUint32(b[pid:], uint32(number+1)) // thread 0 does not exist
	var words []uint64
	for _, n := range x86.PtRegs {
		words = append(words, *r.Reg(n))
	}
	words = append(words, ^uint64(0),
		r.RIP, uint64(s.CS.Selector), r.RFLAGS, r.RSP, uint64(s.SS.Selector), s.FS.Base, s.GS.Base,
		uint64(s.DS.Selector), uint64(s.ES.Selector), uint64(s.FS.Selector), uint64(s.GS.Selector))
	for i, v := range words {
		binary.LittleEndian.PutUint64(b[regs+8*i:], v)
	}
	return b
}

// page returns the bytes of memory from pa to the end of its page; nil are zeros.
func (s *Snapshot) page(pa guest.GPA) []byte {
	b := Find(s.Memory, pa)
	return b[:min(len(b), guest.PageSize-int(pa%guest.PageSize))]
}

// walker collects the mappings of page tables.
type walker struct {
	s        *Snapshot
	segments []segment
	tables   int
	partial  bool
}

// mappedSegments returns the parts of the guest's memory that the page tables of
// vCPU 0 map, by virtual address, and whether there are more.
func (s *Snapshot) mappedSegments() ([]segment, bool) {
	const pg, la57 = 1 << 31, 1 << 12
	w := walker{s: s}
	c := &s.CPUs[0].Sregs
	level := 4
	if c.CR4&la57 != 0 {
		level = 5
	}
	lower := guest.GPA(c.CR3 & pteAddr)
	upper := lower
	// With page-table isolation, a process's tables map almost nothing of the
	// kernel (arch/x86/mm/pti.c).
	if l := s.Config.Linux; l != nil && l.Past && l.Root != 0 {
		upper = l.Root
	}
	if c.CR0&pg == 0 {
		w.addLeaf(0, 0, s.Config.Memory, elf.PF_R|elf.PF_W|elf.PF_X)
	} else {
		w.table(lower, level, 0, elf.PF_W|elf.PF_X, 0, entries/2)
		w.table(upper, level, 0, elf.PF_W|elf.PF_X, entries/2, entries)
	}
	return w.segments, w.partial
}

// Bits of entries of page tables (SDM Vol. 3, tables 4-15 to 4-20).
const (
	ptePresent = 1 << 0
	pteWrite   = 1 << 1
	ptePS      = 1 << 7
	pteNX      = 1 << 63
	pteAddr    = 0x000f_ffff_ffff_f000
	entries    = 512
)

// table collects the mappings below the entries from first to end of a table.
// They can have the flags of may.
func (w *walker) table(at guest.GPA, level int, va uint64, may elf.ProgFlag, first, end int) {
	page := w.s.page(at)
	if w.tables++; w.tables > maxTables {
		w.partial = true
		return
	}
	for i := 8 * first; i < 8*end && i+8 <= len(page) && !w.partial; i += 8 {
		e := binary.LittleEndian.Uint64(page[i:])
		if e&ptePresent == 0 {
			continue
		}
		shift := 12 + 9*(level-1)
		next := va | uint64(i/8)<<shift
		flags := may
		if e&pteWrite == 0 {
			flags &^= elf.PF_W
		}
		if e&pteNX != 0 {
			flags &^= elf.PF_X
		}
		switch size := uint64(1) << shift; {
		case level == 1 || level <= 3 && e&ptePS != 0:
			top := 12 + 9*4 // of 5 levels, or of 4: the sign is that of the highest bit
			if w.s.CPUs[0].Sregs.CR4>>12&1 != 0 {
				top += 9
			}
			w.addLeaf(guest.GVA(int64(next<<(64-top))>>(64-top)), guest.GPA(e&pteAddr&^(size-1)), size, flags|elf.PF_R)
		default:
			w.table(guest.GPA(e&pteAddr), level-1, next, flags, 0, entries)
		}
	}
}

// addLeaf adds one mapping, as far as its memory exists.
func (w *walker) addLeaf(va guest.GVA, pa guest.GPA, size uint64, flag elf.ProgFlag) {
	for _, r := range w.s.Config.RAM {
		lo, hi := max(pa, r.Base), min(pa+guest.GPA(size), r.Base+guest.GPA(r.Size))
		if lo >= hi {
			continue
		}
		at, n := va+guest.GVA(lo-pa), uint64(hi-lo)
		if last := len(w.segments) - 1; last >= 0 {
			if p := &w.segments[last]; p.va+guest.GVA(p.size) == at && p.pa+guest.GPA(p.size) == lo && p.flag == flag {
				p.size += n
				continue
			}
		}
		if len(w.segments) == maxSegments {
			w.partial = true
			return
		}
		w.segments = append(w.segments, segment{at, lo, n, flag})
	}
}
