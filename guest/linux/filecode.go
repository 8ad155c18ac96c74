package linux

import (
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// FileCode returns the View's address for the byte of guest memory at pa, if it is in
// the page cache of a known file: one that has or had probes, or was given. It
// allocates nothing, and holds locks only briefly: hits call it.
func (v *View) FileCode(pa guest.GPA, read Read) (guest.GVA, bool) {
	list := v.files.list.Load()
	if list == nil || v.GoneReason() != "" {
		return 0, false
	}
	x := v.running.files
	mapping, index, err := x.pageOwner(pa, read)
	if err != nil {
		return 0, false
	}
	for _, f := range *list {
		f.mu.Lock()
		in, pages := f.inode, uint64(len(f.have))
		f.mu.Unlock()
		if in.Addr == 0 || in.Mapping != mapping || index >= pages {
			continue
		}
		if now, mode, err := x.inodeAt(in.Addr, read); err == nil && mode == modeRegular && now.isSame(in) && now.Mapping == mapping {
			return f.base + guest.GVA(index*guest.PageSize) + guest.GVA(pa%guest.PageSize), true
		}
	}
	return 0, false
}

// pageOwner returns the struct address_space of the page of the page cache at pa, and
// the number of that page in the file. The error is ErrNoPage if it is not in the
// page cache, or an error of read.
func (x *Files) pageOwner(pa guest.GPA, read Read) (mapping guest.GVA, index uint64, err error) {
	at := x.pages(read) + guest.GVA(uint64(pa)/guest.PageSize*x.page)
	// All but the first page of a compound page point to the first
	// (include/linux/page-flags.h, compound_head).
	if x.f.compound.Size != 0 {
		head, err := read.value(at, x.f.compound)
		if err != nil {
			return 0, 0, err
		}
		if head&1 != 0 {
			at = guest.GVA(head - 1)
		}
	}
	p, err := x.pageOf(at, read)
	if err != nil {
		return 0, 0, err
	}
	part := uint64(pa)/guest.PageSize - uint64(p.PA)/guest.PageSize
	if p.mapping == 0 || p.mapping&mappingFlags != 0 || part >= maxFolio {
		return 0, 0, ErrNoPage
	}
	return guest.GVA(p.mapping), p.index + part, nil
}

// FileName splits the name of the function symbol with the byte of a known file at an address of the view. The path is "" if the
// address is in no known file, and the function is "" if the file does not name it.
func (v Programs) FileName(addr guest.GVA, symbol string) (path, function string) {
	f := v.file(addr)
	if f == nil {
		return "", ""
	}
	function, _ = strings.CutPrefix(symbol, f.path+":")
	if _, offset := parseOffset(function); offset {
		function = ""
	}
	return f.path, function
}
