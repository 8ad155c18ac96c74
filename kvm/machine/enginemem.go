package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// engineMemory is the engine's memory in a Linux guest. It comes after the
// guest's own, and the kernel does not use it as RAM. The kernel's page tables
// get entries for it in the part of the image's mapping (level2_kernel_pgt,
// Linux, arch/x86/kernel/head_64.S) that comes after the image and is empty.
// That is one table, which all address spaces of the kernel share. Linux clears
// the entries after its image there once, early (cleanup_highmap,
// arch/x86/mm/init_64.c). The engine's memory is mapped after that.
//
// The engine's page tables are in RAM that is in the kernel's direct map and
// that the kernel never uses (linux.BootOptions.Reserve). The kernel walks its
// own tables through that map, for example when it checks for pages that are
// writable and executable at the end of the boot (ptdump_check_wx).
type engineMemory struct {
	tables, exec, far, data guest.MemoryRange
	home                    guest.Home
	execAt, dataAt          guest.GVA

	mu   sync.Mutex
	mem  *guest.Memory
	pmd  guest.GPA // level2_kernel_pgt; 0: nothing is mapped yet
	pud  guest.GPA // level3_kernel_pgt, which points to pmd
	used uint64    // bytes of tables
}

const (
	page2M          = 2 << 20
	page1G          = 1 << 30
	engineTableSize = 1 << 20
	kernelMapSize   = 1 << 30 // the size that level2_kernel_pgt maps, from linux.KernelMap on

	// holeStart is where the 2 GiB below linux.KernelMap begin: nothing is there, in any
	// address space (Linux, Documentation/arch/x86/x86_64/mm.rst, "unused hole").
	holeStart = linux.KernelMap - 2<<30
)

// appendRanges returns ram and the engine's ranges.
func (e *engineMemory) appendRanges(ram []guest.MemoryRange) []guest.MemoryRange {
	last := ram[len(ram)-1]
	next := (max(uint64(last.Base)+last.Size, 4<<30) + page1G - 1) &^ (page1G - 1)
	take := func(name string, size uint64, kind guest.RangeKind) guest.MemoryRange {
		r := guest.MemoryRange{Name: name, Base: guest.GPA(next), Size: size, Kind: kind}
		next += size
		return r
	}
	e.exec = take("kernel exec", guest.ExecSize, guest.RangeExec)
	e.far = take("kernel far", guest.FarSize, guest.RangeExec)
	e.data = take("kernel data", guest.DataSize, guest.RangeShared)
	return append(ram, e.exec, e.far, e.data)
}

// reset chooses where the engine's memory will be in a guest that is about to
// boot, with its kernel at home.
func (e *engineMemory) reset(mem *guest.Memory, home guest.Home, tables guest.MemoryRange, b *guest.BootState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mem, e.home, e.tables, e.pmd, e.pud, e.used = mem, home, tables, 0, 0, 0
	// A 2 MiB page stays free after the image, so that running off its end faults.
	e.execAt = guest.GVA((uint64(home.Start)+home.Size+page2M-1)&^(page2M-1)) + page2M
	e.dataAt = e.execAt + guest.ExecSize + page2M
	b.KernelExec = guest.Area{GVA: e.execAt, GPA: e.exec.Base, Size: guest.ExecSize}
	b.KernelData = guest.Area{GVA: e.dataAt, GPA: e.data.Base, Size: guest.DataSize}
	b.KernelFar = e.far
	b.Tables = e
}

// mapped reports whether the memory is mapped in the guest.
func (e *engineMemory) mapped() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pmd != 0
}

// Bits of page-table entries (SDM Vol. 3, tables 4-18 to 4-20).
const (
	ptePresent = 1 << 0
	pteWrite   = 1 << 1
	pteUsed    = 1<<5 | 1<<6 // accessed, dirty
	ptePS      = 1 << 7
	pteNX      = 1 << 63
	pteAddr    = 0x000f_ffff_ffff_f000
)

// attach maps the memory, and sets home to the part of the image's mapping that
// the kernel still has. The guest has passed cleanup_highmap, and as uses the
// kernel's tables. If the place is occupied, it returns an error without having
// changed anything. Precondition: the world is stopped.
func (e *engineMemory) attach(as guest.AddressSpace) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	pmd, err := e.find(as)
	if err != nil {
		return err
	}
	table, err := e.mem.Slice(pmd, guest.PageSize)
	if err != nil {
		return err
	}
	type area struct {
		va    guest.GVA
		pa    guest.GPA
		size  uint64
		flags uint64
	}
	areas := []area{
		{e.execAt, e.exec.Base, guest.ExecSize, ptePresent | pteUsed | ptePS},
		{e.dataAt, e.data.Base, guest.DataSize, ptePresent | pteUsed | ptePS | pteWrite | pteNX},
	}
	for _, a := range areas {
		for off := uint64(0); off < a.size; off += page2M {
			if v := e.entry(table, a.va+guest.GVA(off)); binary.LittleEndian.Uint64(v) != 0 {
				return fmt.Errorf("the guest has mapped something at %v", a.va+guest.GVA(off))
			}
		}
	}
	for _, a := range areas {
		for off := uint64(0); off < a.size; off += page2M {
			binary.LittleEndian.PutUint64(e.entry(table, a.va+guest.GVA(off)), uint64(a.pa)+off|a.flags)
		}
	}
	// The kernel clears the room of its image that it does not use (after
	// _brk_end). That no longer belongs to the image, and Map can use it.
	start := uint64(e.home.Start)
	for end := start + e.home.Size; end > start; {
		last := (end - 1) &^ (page2M - 1)
		if binary.LittleEndian.Uint64(e.entry(table, guest.GVA(last))) != 0 {
			break
		}
		end = max(last, start)
		e.home.Size = end - start
	}
	e.pmd = pmd
	e.pud, _ = as.Table(e.home.Start, 3) // it exists, because the table that it points to does
	return nil
}

// snapshotState returns the part of it that a snapshot stores: the size of the
// kernel's image, the kernel's tables, and the engine's tables.
func (e *engineMemory) snapshotState() (image uint64, pmd, pud, tables guest.GPA, used uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.home.Size, e.pmd, e.pud, e.tables.Base, e.used
}

// restoreState restores the values of snapshotState. Wrong values are found when
// a table is needed.
func (e *engineMemory) restoreState(l *snapshot.Linux) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Used > e.tables.Size || l.Used%guest.PageSize != 0 || l.Image > e.home.Size {
		return fmt.Errorf("%w: %d bytes of the engine's tables, %d of the kernel's image", snapshot.ErrDamaged, l.Used, l.Image)
	}
	e.home.Size, e.pmd, e.pud, e.tables.Base, e.used = l.Image, l.PMD, l.PUD, l.Tables, l.Used
	return nil
}

// entry returns the entry of va in the table of level 2.
func (e *engineMemory) entry(table []byte, va guest.GVA) []byte {
	return table[uint64(va)>>21&511*8:][:8]
}

// find returns level2_kernel_pgt: the table of level 2 that maps the kernel's image.
func (e *engineMemory) find(as guest.AddressSpace) (guest.GPA, error) {
	pmd, err := as.Table(e.home.Start, 2)
	if err != nil {
		return 0, fmt.Errorf("the kernel's page tables: %w", err)
	}
	if m, err := as.Translate(e.home.Start); err != nil || m.PA != e.home.PA {
		return 0, fmt.Errorf("the kernel's page tables do not have its image at %v", e.home.PA)
	}
	return pmd, nil
}

// errNotMapped: a booting guest cannot have executable memory of ours yet.
var errNotMapped = errors.New("the guest has not booted far enough for the engine's memory: its kernel still clears the mappings after its image")

// Map implements guest.Mapper, for single pages, in what the kernel's image leaves of its
// mapping and in the hole below that, for which level3_kernel_pgt gets tables of ours: all
// address spaces of the kernel share that one, too.
func (e *engineMemory) Map(va guest.GVA, pa guest.GPA, user bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case user:
		return errors.New("user memory of a Linux guest is the guest's")
	case e.pmd == 0:
		return errNotMapped
	case uint64(va)-holeStart >= linux.KernelMap+kernelMapSize-holeStart:
		return guest.ErrMapped
	}
	table, err := e.level2Table(va)
	if err != nil {
		return err
	}
	b, err := e.nextTable(e.entry(table, va))
	if err != nil {
		return err
	}
	pte := b[uint64(va)>>12&511*8:][:8]
	if binary.LittleEndian.Uint64(pte) != 0 {
		return guest.ErrMapped
	}
	binary.LittleEndian.PutUint64(pte, uint64(pa)|ptePresent|pteUsed)
	return nil
}

// level2Table returns the table of level 2 that maps va.
func (e *engineMemory) level2Table(va guest.GVA) ([]byte, error) {
	if uint64(va) >= linux.KernelMap {
		return e.mem.Slice(e.pmd, guest.PageSize)
	}
	if e.pud == 0 {
		return nil, guest.ErrMapped
	}
	top, err := e.mem.Slice(e.pud, guest.PageSize)
	if err != nil {
		return nil, err
	}
	return e.nextTable(top[uint64(va)>>30&511*8:][:8])
}

// nextTable returns the engine's table that entry points to. It creates the
// table if it does not exist.
func (e *engineMemory) nextTable(entry []byte) ([]byte, error) {
	word := binary.LittleEndian.Uint64(entry)
	if word == 0 {
		if e.used == e.tables.Size {
			return nil, errors.New("no memory is left for page tables")
		}
		next := e.tables.Base + guest.GPA(e.used)
		b, err := e.mem.Slice(next, guest.PageSize)
		if err != nil {
			return nil, err
		}
		clear(b)
		e.used += guest.PageSize
		word = uint64(next) | ptePresent | pteWrite | pteUsed
		binary.LittleEndian.PutUint64(entry, word)
	}
	at := guest.GPA(word & pteAddr)
	if word&ptePresent == 0 || word&ptePS != 0 || at-e.tables.Base >= guest.GPA(e.used) {
		return nil, guest.ErrMapped
	}
	return e.mem.Slice(at, guest.PageSize)
}
