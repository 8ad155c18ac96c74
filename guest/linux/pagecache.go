package linux

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Page is a page of guest memory with a part of a file: the page of the page cache,
// shared by all that map the file, or a process's private copy.
type Page struct {
	PA guest.GPA
	// Busy: it has to be written back, or is being written back.
	Busy bool
	// Other: its bytes differ from the file's known bytes, so it is not known which
	// code is there. FilePages does not check this.
	Other bool

	// owner is the struct page or folio that identifies the page's owner by these two
	// words.
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
	entryValue    = 1    // a number: of a page that was evicted, or in a tmpfs its place in the swap
	entryNode     = 4096 // from here on: a node
	maxXArray     = 16   // levels
	markDirty     = 0    // PAGECACHE_TAG_DIRTY
	markWriteback = 1    // PAGECACHE_TAG_WRITEBACK
	anyMark       = 1 << 20
	maxFolio      = 1 << 18 // pages
)

// Page returns the page of the page cache with the part of the file from index pages
// on. The result is reliable only if the guest is stopped during the call. Errors are
// ErrNoPage and any error of read.
func (x *Files) Page(in inode, index uint64, read Read) (Page, error) {
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
			bits, err := read.value(node, field{Off: o.marks.Off + mark*o.marks.Size/3 + uint32(slot/64)*8, Size: min(8, o.marks.Size/3)})
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
	// A folio may have several pages; it identifies its owner itself.
	part := index - p.index
	if p.mapping != uint64(in.Mapping) || part >= maxFolio {
		return Page{}, ErrNoPage
	}
	// It is in the tree while it is being read, with arbitrary contents.
	if flags, err := read.value(guest.GVA(at), o.pageFlags); err != nil || flags&x.read != x.read {
		return Page{}, errors.Join(ErrNoPage, err)
	}
	p.PA += guest.GPA(part * guest.PageSize)
	p.Busy = busy
	return p, nil
}

func (x *Files) slot(node guest.GVA, n uint64, read Read) (uint64, error) {
	return read.value(node, field{Off: x.f.slots.Off + uint32(n)*8, Size: 8})
}

// pages returns the address of the struct pages of all memory.
func (x *Files) pages(read Read) guest.GVA {
	if x.vmemmap == 0 {
		return structPages
	}
	return guest.GVA(read.valueOrZero(x.vmemmap, word))
}

// pageOf returns the page of a struct page or folio.
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

// Marks returns the words that identify the owner of p, as they were when p was
// found: the kernel changes them before the page gets another owner.
func (x *Files) Marks(p *Page) [2]Mark {
	return [2]Mark{{p.owner + guest.GVA(x.f.pageMapping.Off), p.mapping}, {p.owner + guest.GVA(x.f.pageIndex.Off), p.index}}
}

// Flags in the word by which a page identifies its owner (include/linux/page-flags.h,
// PAGE_MAPPING_FLAGS): a process's own page, and one that several share because it
// had the same contents.
const (
	mappingFlags = 3
	mappingAnon  = 1
)

// Copy returns the page at pa, which a process has in place of a file's. Errors are
// ErrNoPage, if it is not a process's own, and any error of read.
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
	// Own: what the process writes there is its own. It is so of all mappings where the kernel does not tell.
	Own bool
}

// Flags of a struct vm_area_struct (include/linux/mm.h).
const (
	vmWrite  = 1 << 1
	vmShared = 1 << 3
)

// maxMappings bounds the mappings of a file that are examined.
const maxMappings = 1 << 16

// mappings returns the places where processes map the part of the file from index
// pages on. It fails if read fails, or if there are too many.
func (x *Files) mappings(in inode, index uint64, read Read) ([]Mapping, error) {
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
		// An interval tree: no descendant ends later
		// (include/linux/interval_tree_generic.h).
		vma := at - guest.GVA(o.node.Off)
		if last, err := read.value(vma, o.last); err != nil {
			return out, err
		} else if last < index {
			continue
		}
		for _, side := range []field{o.left, o.right} {
			next, err := read.value(at, side)
			if err != nil {
				return out, err
			}
			todo = append(todo, guest.GVA(next))
		}
		var v [3]uint64
		for i, f := range []field{o.start, o.end, o.offset} {
			if v[i], err = read.value(vma, f); err != nil {
				return out, err
			}
		}
		if v[2] > index && len(todo) > 0 { // nodes to the right begin even later
			todo = todo[:len(todo)-1]
		}
		if part := index - v[2]; v[1] > v[0] && part < (v[1]-v[0])/guest.PageSize {
			pgd, err := read.follow(vma, o.mm, o.pgd)
			if err != nil {
				return out, err
			}
			flags := uint64(vmWrite)
			if o.vmFlags.Size != 0 {
				if flags, err = read.value(vma, o.vmFlags); err != nil {
					return out, err
				}
			}
			if root := x.tasks.physicalAddr(pgd, read); root != 0 {
				out = append(out, Mapping{root, guest.GVA(v[0] + part*guest.PageSize), flags&(vmWrite|vmShared) == vmWrite})
			}
		}
	}
	return out, nil
}
