package guest

import (
	"crypto/sha256"
	"fmt"
	"sort"
	"sync"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// PFUser is the program header flag, in the range reserved for operating
// systems (PF_MASKOS), that makes a PT_LOAD segment accessible at CPL 3.
const PFUser = 0x0010_0000

// Limits of an image.
const (
	maxImageFile    = 256 << 20 // bytes of the file
	maxImageLoads   = 64        // PT_LOAD segments that are not empty
	MaxImageSymbols = 1 << 20
)

// Segment is one PT_LOAD segment. No two segments of an image overlap, in
// virtual or in physical addresses.
type Segment struct {
	VAddr   GVA
	PAddr   GPA
	Data    []byte // from the file; the rest up to MemSize is zero. Must not be changed
	MemSize uint64 // bytes, at least 1
	R, W, X bool
	User    bool // accessible at CPL 3
}

// Contains reports whether va is in the segment.
func (s *Segment) Contains(va GVA) bool { return uint64(va-s.VAddr) < s.MemSize }

// lastAddr returns the segment's last address.
func (s *Segment) lastAddr() GVA { return s.VAddr + GVA(s.MemSize-1) }

// Section is one section that occupies guest memory.
type Section struct {
	Name string
	Addr GVA
	Size uint64 // bytes
	W, X bool
}

// Range is a range of guest virtual addresses: Start up to, not including, End.
type Range struct{ Start, End GVA }

// Image is a parsed guest program. It does not change after ParseELF and can
// be used from any thread.
type Image struct {
	Entry    GVA
	Segments []Segment // ascending by VAddr
	Sections []Section // those in memory, ascending by Addr; empty when the file has no section table
	BuildID  string    // hexadecimal; empty if it has none
	SHA256   [sha256.Size]byte
	Path     string // of the file; "" for an image that is not a file

	*SymbolTable
	*Blacklist

	file    *elf.File
	text    []textRange // ascending, disjoint
	objects []*Symbol   // of data, in text; ascending
	largest uint64      // bytes of the largest of these
	fields  []field     // in text; ascending

	framesOnce sync.Once
	frames     []frameRow // ascending
	framesErr  error
}

// LoadFile reads and parses the ELF file at path, a regular file. Files above
// maxImageFile are rejected before they are read.
func LoadFile(path string) (*Image, error) { return loadFile(path, true) }

// LoadAny is LoadFile for the program of a guest that was booted elsewhere: how
// it is entered, and whether it is at the addresses that it was linked at, does
// not matter.
func LoadAny(path string) (*Image, error) { return loadFile(path, false) }

func loadFile(path string, boots bool) (*Image, error) {
	b, err := elf.ReadFile(path, maxImageFile)
	if err != nil {
		return nil, fmt.Errorf("load guest image %w", err)
	}
	img, err := parseELF(b, boots)
	if err != nil {
		return nil, fmt.Errorf("load guest image %s: %w", path, err)
	}
	img.Path = path
	return img, nil
}

// textRange is guest text whose bytes are in the file.
type textRange struct {
	start GVA
	data  []byte
	user  bool
}

// File returns the ELF file of the image. It must not be changed.
func (img *Image) File() []byte { return img.file.Bytes(0, uint64(img.file.Size())) }

// buildText finds the executable bytes: the bytes of executable segments and, if the
// file has a section table, only the bytes of its executable sections. Linkers put
// read-only data and the file's own headers into the executable segment if told not
// to separate code, and an int3 over a constant would not trap but corrupt it.
func (img *Image) buildText() {
	for i := range img.Segments {
		s := &img.Segments[i]
		if !s.X {
			continue
		}
		if len(img.Sections) == 0 {
			img.addText(s, 0, s.MemSize)
			continue
		}
		for _, sec := range img.Sections {
			if off := uint64(sec.Addr - s.VAddr); sec.X && off < s.MemSize {
				img.addText(s, off, off+sec.Size) // inside the segment: readSections
			}
		}
	}
}

// addText adds the bytes of a segment from lo to hi, as far as the file has
// them.
func (img *Image) addText(s *Segment, lo, hi uint64) {
	hi = min(hi, uint64(len(s.Data)))
	if lo >= hi {
		return
	}
	start := s.VAddr + GVA(lo)
	if n := len(img.text); n > 0 {
		// An instruction may reach from one section into the next.
		if t := &img.text[n-1]; t.start+GVA(len(t.data)) == start && s.Contains(t.start) {
			from := uint64(t.start - s.VAddr)
			t.data = s.Data[from:hi:hi]
			return
		}
	}
	img.text = append(img.text, textRange{start, s.Data[lo:hi:hi], s.User})
}

// findText returns the text range that contains addr, or nil.
func (img *Image) findText(addr GVA) *textRange {
	i := sort.Search(len(img.text), func(i int) bool { return img.text[i].start > addr }) - 1
	if i < 0 || uint64(addr-img.text[i].start) >= uint64(len(img.text[i].data)) {
		return nil
	}
	return &img.text[i]
}

// IsText reports whether the image has code at addr: a byte from the file, in an
// executable segment and, if there are sections, in an executable one.
func (img *Image) IsText(addr GVA) bool { return img.findText(addr) != nil }

// IsUserText reports whether the image has code for CPL 3 at addr.
func (img *Image) IsUserText(addr GVA) bool {
	t := img.findText(addr)
	return t != nil && t.user
}

// Code returns the image's own n bytes of code at addr, whatever the guest's memory
// holds now; fewer where the code ends, none where there is no code. The bytes are
// the image's own and must not be changed.
func (img *Image) Code(addr GVA, n int) []byte {
	t := img.findText(addr)
	if t == nil || n <= 0 {
		return nil
	}
	b := t.data[addr-t.start:]
	n = min(n, len(b))
	return b[:n:n]
}

// Constant returns the file's n bytes at addr, data or code, if the guest's segments
// are not writable there, or nil. They are the image's own and must not be changed.
func (img *Image) Constant(addr GVA, n int) []byte {
	for i := range img.Segments {
		s := &img.Segments[i]
		if off := uint64(addr - s.VAddr); !s.W && off < uint64(len(s.Data)) && n >= 0 && uint64(n) <= uint64(len(s.Data))-off {
			return s.Data[off:][:n:n]
		}
	}
	return nil
}

// Text returns the ranges of the image's code, ascending: the kernel's, or
// that of CPL 3.
func (img *Image) Text(user bool) []Range {
	var rs []Range
	for i := range img.text {
		if t := &img.text[i]; t.user == user {
			rs = append(rs, Range{t.start, t.start + GVA(len(t.data))})
		}
	}
	return rs
}

// segment returns the segment that holds addr, or nil.
func (img *Image) segment(addr GVA) *Segment {
	i := sort.Search(len(img.Segments), func(i int) bool { return img.Segments[i].VAddr > addr }) - 1
	if i < 0 || !img.Segments[i].Contains(addr) {
		return nil
	}
	return &img.Segments[i]
}

// sections returns the ranges of the sections of that name.
func (img *Image) sections(name string) (rs []Range) {
	for i := range img.Sections {
		if s := &img.Sections[i]; s.Name == name {
			rs = append(rs, Range{s.Addr, s.Addr + GVA(s.Size)})
		}
	}
	return rs
}

// section returns the section that holds addr, or nil.
func (img *Image) section(addr GVA) *Section {
	i := sort.Search(len(img.Sections), func(i int) bool { return img.Sections[i].Addr > addr }) - 1
	if i < 0 || uint64(addr-img.Sections[i].Addr) >= img.Sections[i].Size {
		return nil
	}
	return &img.Sections[i]
}

// bytesAt returns the n bytes of the file for addr, or nil if the image does not have
// all of them.
func (img *Image) bytesAt(addr GVA, n uint64) []byte {
	s := img.segment(addr)
	if s == nil {
		return nil
	}
	off := uint64(addr - s.VAddr)
	if off > uint64(len(s.Data)) || n > uint64(len(s.Data))-off {
		return nil
	}
	return s.Data[off : off+n : off+n]
}
