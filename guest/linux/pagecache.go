package linux

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Page is a page of guest memory with a part of a file: the one of the page cache that all
// share who map the file, or a copy of somebody's own.
type Page struct {
	PA guest.GPA
	// Busy: it is to be written to where the file is kept, or is being written.
	Busy bool
	// Other: it has other bytes than are known of the file there, so that what is at a place
	// of it is not known. FilePages does not look.
	Other bool

	// owner is the struct page or folio that says whose the page is, by these two words.
	owner          guest.GVA
	mapping, index uint64
}

// ErrNoPage is returned for a part of a file that is not in the guest's memory.
var ErrNoPage = errors.New("the guest does not have this part of the file in memory")

// errValue is an ErrNoPage.
var errValue = fmt.Errorf("%w: only a number of where it was", ErrNoPage)

// An entry of an xarray (include/linux/xarray.h).
const (
	entryKind     = 3    // its low bits: 0 is a pointer
	entryInternal = 2    // a node, or the number of a slot that the entry continues
	entryValue    = 1    // a number: of a page that has gone, or in a tmpfs where in the swap it is
	entryNode     = 4096 // from here on: a node
	maxXArray     = 16   // levels
	markDirty     = 0    // PAGECACHE_TAG_DIRTY
	markWriteback = 1    // PAGECACHE_TAG_WRITEBACK
	anyMark       = 1 << 20
	maxFolio      = 1 << 18 // pages
)

// Page returns the page of the page cache with the part of the file from index pages on.
// It is that of a stopped guest only if it is asked while that stands still. Errors are
// ErrNoPage and those of read.
func (x *Files) Page(in Inode, index uint64, read Read) (Page, error) {
	o := &x.f
	if host, err := read.value(in.Mapping, o.host); err != nil || guest.GVA(host) != in.Addr {
		return Page{}, errors.Join(ErrNoPage, err)
	}
	at, err := read.value(in.Mapping, o.head)
	if err != nil {
		return Page{}, err
	}
	slots, busy := uint64(o.slots.Size/8), false
	if at&entryKind != entryInternal { // a file of one page
		flags, err := read.value(in.Mapping, o.flags)
		if err != nil {
			return Page{}, err
		}
		if busy = flags >= anyMark; index != 0 {
			at = 0
		}
	}
	for level := 0; at&entryKind == entryInternal; level++ {
		node := guest.GVA(at &^ entryKind)
		if at < entryNode || level == maxXArray {
			return Page{}, ErrNoPage
		}
		shift, err := read.value(node, o.shift)
		if err != nil {
			return Page{}, err
		}
		slot := index >> (shift & 63)
		if level == 0 && slot >= slots {
			return Page{}, ErrNoPage
		}
		slot &= slots - 1
		if at, err = x.slot(node, slot, read); err != nil {
			return Page{}, err
		}
		if at&entryKind == entryInternal && at < entryNode { // the entry of a slot before it
			if slot = at >> 2; slot >= slots {
				return Page{}, ErrNoPage
			}
			if at, err = x.slot(node, slot, read); err != nil {
				return Page{}, err
			}
		}
		for _, mark := range []uint32{markDirty, markWriteback} {
			// Three maps of bits, one for each mark.
			bits, err := read.value(node, Field{Off: o.marks.Off + mark*o.marks.Size/3 + uint32(slot/64)*8, Size: min(8, o.marks.Size/3)})
			if err != nil {
				return Page{}, err
			}
			busy = bits>>(slot%64)&1 != 0 || mark != markDirty && busy
		}
	}
	if at == 0 || at&entryKind != 0 {
		if at&entryValue != 0 {
			return Page{}, errValue
		}
		return Page{}, ErrNoPage
	}
	p, err := x.pageOf(guest.GVA(at), read)
	if err != nil {
		return Page{}, err
	}
	// A folio may have several pages; it says itself whose it is.
	part := index - p.index
	if p.mapping != uint64(in.Mapping) || part >= maxFolio {
		return Page{}, ErrNoPage
	}
	// It is in the tree while it is being read, with anything in it.
	if flags, err := read.value(guest.GVA(at), o.pageFlags); err != nil || flags&x.read != x.read {
		return Page{}, errors.Join(ErrNoPage, err)
	}
	p.PA += guest.GPA(part * guest.PageSize)
	p.Busy = busy
	return p, nil
}

func (x *Files) slot(node guest.GVA, n uint64, read Read) (uint64, error) {
	return read.value(node, Field{Off: x.f.slots.Off + uint32(n)*8, Size: 8})
}

// pages returns where the struct pages of all memory are.
func (x *Files) pages(read Read) guest.GVA {
	if x.vmemmap == 0 {
		return structPages
	}
	return guest.GVA(read.valueOrZero(x.vmemmap, word))
}

// pageOf returns the page that a struct page or folio is about.
func (x *Files) pageOf(owner guest.GVA, read Read) (Page, error) {
	off := uint64(owner - x.pages(read))
	if off%x.page != 0 || off/x.page >= 1<<40 {
		return Page{}, ErrNoPage
	}
	p := Page{PA: guest.GPA(off / x.page * guest.PageSize), owner: owner}
	var err error
	if p.mapping, err = read.value(owner, x.f.pageMapping); err == nil {
		p.index, err = read.value(owner, x.f.pageIndex)
	}
	return p, err
}

// Mark is a word of the guest's memory.
type Mark struct {
	At   guest.GVA
	Word uint64
}

// Marks returns what says whose p is, as it was when p was found: the kernel changes that
// before the page is anybody else's.
func (x *Files) Marks(p *Page) [2]Mark {
	return [2]Mark{{p.owner + guest.GVA(x.f.pageMapping.Off), p.mapping}, {p.owner + guest.GVA(x.f.pageIndex.Off), p.index}}
}

// Flags in the word by which a page says whose it is (include/linux/page-flags.h,
// PAGE_MAPPING_FLAGS): a process's own, and what several share that had the same in it.
const (
	mappingFlags = 3
	mappingAnon  = 1
)

// Copy returns the page at pa, which a process has in the place of a file's. Errors are
// ErrNoPage, where it is not a process's own, and those of read.
func (x *Files) Copy(pa guest.GPA, read Read) (Page, error) {
	p, err := x.pageOf(x.pages(read)+guest.GVA(uint64(pa)/guest.PageSize*x.page), read)
	if err == nil && p.mapping&mappingFlags != mappingAnon {
		err = ErrNoPage
	}
	return p, err
}

// Mapping is a place where a process maps a page of a file.
type Mapping struct {
	Root guest.GPA // the process's top-level page table
	Addr guest.GVA
}

// maxMappings bounds the mappings of a file that are looked at.
const maxMappings = 1 << 16

// Mappings returns where processes map the part of the file from index pages on. Errors
// are those of read, and that there are too many.
func (x *Files) Mappings(in Inode, index uint64, read Read) ([]Mapping, error) {
	o := &x.f
	top, err := read.value(in.Mapping, o.tree)
	if err != nil {
		return nil, err
	}
	var out []Mapping
	todo := []guest.GVA{guest.GVA(top)}
	for n := 0; len(todo) > 0; n++ {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if at == 0 {
			continue
		}
		if n == 2*maxMappings {
			return out, errMany
		}
		// An interval tree: below is nothing that ends later (include/linux/interval_tree_generic.h).
		vma := at - guest.GVA(o.node.Off)
		if last, err := read.value(vma, o.last); err != nil {
			return out, err
		} else if last < index {
			continue
		}
		for _, side := range []Field{o.left, o.right} {
			next, err := read.value(at, side)
			if err != nil {
				return out, err
			}
			todo = append(todo, guest.GVA(next))
		}
		var v [3]uint64
		for i, f := range []Field{o.start, o.end, o.offset} {
			if v[i], err = read.value(vma, f); err != nil {
				return out, err
			}
		}
		if v[2] > index && len(todo) > 0 { // what is right of it begins later still
			todo = todo[:len(todo)-1]
		}
		if part := index - v[2]; v[1] > v[0] && part < (v[1]-v[0])/guest.PageSize {
			pgd, err := read.follow(vma, o.mm, o.pgd)
			if err != nil {
				return out, err
			}
			if root := x.tasks.physicalAddr(pgd, read); root != 0 {
				out = append(out, Mapping{root, guest.GVA(v[0] + part*guest.PageSize)})
			}
		}
	}
	return out, nil
}
