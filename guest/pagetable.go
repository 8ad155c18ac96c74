package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errTableSpace is the cause if the page tables do not fit into their memory.
var errTableSpace = errors.New("page tables do not fit the loader's memory: use less RAM or smaller segments")

// tableBuilder makes page tables in the guest's memory before it runs; Tables adds to
// them later. Tables that lead to a page allow everything; the entry that maps it
// decides.
type tableBuilder struct {
	base GPA    // of mem
	mem  []byte // room for tables; the root is the first page
	used int    // bytes of mem in use
}

// newTableBuilder starts with an empty root.
func newTableBuilder(base GPA, mem []byte) (*tableBuilder, error) {
	b := &tableBuilder{base: base, mem: mem}
	_, err := b.alloc()
	return b, err
}

// alloc returns the offset in mem of a new, empty table.
func (b *tableBuilder) alloc() (int, error) {
	off := b.used
	if len(b.mem)-off < PageSize {
		return 0, errTableSpace
	}
	clear(b.mem[off : off+PageSize])
	b.used += PageSize
	return off, nil
}

func (b *tableBuilder) get(off int) uint64    { return binary.LittleEndian.Uint64(b.mem[off:]) }
func (b *tableBuilder) set(off int, e uint64) { binary.LittleEndian.PutUint64(b.mem[off:], e) }

// entry returns the offset of the entry for va in the table of that level (1 to 3),
// adding tables on the way and splitting larger pages.
func (b *tableBuilder) entry(va GVA, level int) (int, error) {
	table := 0
	for l := 4; ; l-- {
		off := table + int(uint64(va)>>(12+9*(l-1))&511)*8
		if l == level {
			return off, nil
		}
		e := b.get(off)
		switch {
		case e&ptePresent == 0:
			next, err := b.alloc()
			if err != nil {
				return 0, err
			}
			b.set(off, uint64(b.base)+uint64(next)|ptePresent|pteWrite|pteUser|pteAccessed)
			table = next
		case l < 4 && e&ptePS != 0:
			next, err := b.alloc()
			if err != nil {
				return 0, err
			}
			step := uint64(1) << (12 + 9*(l-2))
			small := e
			if l == 2 {
				small &^= ptePS // in a PTE the bit means PAT
			}
			for i := range 512 {
				b.set(next+8*i, small+uint64(i)*step)
			}
			b.set(off, uint64(b.base)+uint64(next)|ptePresent|pteWrite|pteUser|pteAccessed)
			table = next
		default:
			table = int(e&pteAddr - uint64(b.base))
		}
	}
}

// mapRange maps size bytes, whole pages, at va to pa with the permission bits of
// flags, replacing any former mapping. With large it uses 2 MiB pages where va and pa
// allow.
func (b *tableBuilder) mapRange(va GVA, pa GPA, size, flags uint64, large bool) error {
	flags |= ptePresent | pteAccessed | pteDirty
	for size > 0 {
		step, level, e := uint64(page4K), 1, uint64(pa)|flags
		if large && uint64(va)%page2M == 0 && uint64(pa)%page2M == 0 && size >= page2M {
			step, level, e = page2M, 2, e|ptePS
		}
		off, err := b.entry(va, level)
		if err != nil {
			return fmt.Errorf("map %v: %w", va, err)
		}
		b.set(off, e)
		va, pa, size = va+GVA(step), pa+GPA(step), size-step
	}
	return nil
}

// unmapPage removes the 4 KiB page at va.
func (b *tableBuilder) unmapPage(va GVA) error {
	off, err := b.entry(va, 1)
	if err != nil {
		return fmt.Errorf("unmap %v: %w", va, err)
	}
	b.set(off, 0)
	return nil
}
