package linux

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
)

// KernelMap is the beginning of the kernel's mapping of itself: code linked at this
// address plus x is loaded at physical address x (__START_KERNEL_map,
// Documentation/arch/x86/x86_64/mm.rst).
const KernelMap = 0xffff_ffff_8000_0000

// kernelImageSize is the size of that mapping in a kernel that can be slid
// (KERNEL_IMAGE_SIZE with CONFIG_RANDOMIZE_BASE).
const kernelImageSize = 1 << 30

// relocs are the words of a loaded kernel that depend on its address. The build
// appends them to the image (arch/x86/boot/compressed/Makefile,
// arch/x86/tools/relocs.c): addresses of 32 bits, to be sign-extended, in lists that
// are each preceded by a zero:
//
//	0, words of 64 bits; 0, words of 32 bits that the slide is taken from; 0, words of 32 bits
//
// Linux has no inverse ones since 6.15, and then omits their zero.
type relocs struct{ abs64, inv32, abs32 []byte }

// parseRelocs reads the relocations after the image; a kernel that cannot be slid has
// none. For each place, in must report that its n bytes at that physical address are
// in the loaded image.
func parseRelocs(b []byte, in func(pa, n uint64) bool) (r relocs, err error) {
	if len(bytes.Trim(b, "\x00")) == 0 {
		return relocs{}, nil
	}
	if len(b)%4 != 0 || le32(b) != 0 {
		return relocs{}, fmt.Errorf("relocations: the %d bytes after the image are not lists of relocations", len(b))
	}
	var lists [][]byte
	for at := 0; at < len(b); at += 4 {
		if le32(b[at:]) == 0 {
			lists = append(lists, b[at+4:at+4])
			continue
		}
		last := &lists[len(lists)-1]
		*last = (*last)[:len(*last)+4]
	}
	switch len(lists) {
	case 2:
		r = relocs{abs64: lists[0], abs32: lists[1]}
	case 3:
		r = relocs{lists[0], lists[1], lists[2]}
	default:
		return relocs{}, fmt.Errorf("relocations: %d lists, not 2 or 3", len(lists))
	}
	for _, x := range []struct {
		list []byte
		size uint64
	}{{r.abs64, 8}, {r.inv32, 4}, {r.abs32, 4}} {
		last := uint32(0)
		for at := 0; at < len(x.list); at += 4 {
			switch v := le32(x.list[at:]); {
			case v>>31 == 0 || !in(wordAt(v), x.size):
				return relocs{}, fmt.Errorf("relocations: %#x is not in the kernel", uint64(int64(int32(v))))
			case v < last:
				return relocs{}, fmt.Errorf("relocations: %#x follows %#x", uint64(int64(int32(v))), uint64(int64(int32(last))))
			default:
				last = v
			}
		}
	}
	return r, nil
}

// wordAt is the physical address of a word, from its entry.
func wordAt(v uint32) uint64 { return uint64(int64(int32(v))) - KernelMap }

// canSlide reports whether the kernel can be slid.
func (r *relocs) canSlide() bool { return len(r.abs64)+len(r.abs32) != 0 }

// apply slides the image at physical address lo.
func (r *relocs) apply(image []byte, lo, slide uint64) {
	le := binary.LittleEndian
	for l := r.abs64; len(l) > 0; l = l[4:] {
		w := image[wordAt(le32(l))-lo:]
		le.PutUint64(w, le64(w)+slide)
	}
	for l := r.abs32; len(l) > 0; l = l[4:] {
		w := image[wordAt(le32(l))-lo:]
		le.PutUint32(w, le32(w)+uint32(slide))
	}
	for l := r.inv32; len(l) > 0; l = l[4:] {
		w := image[wordAt(le32(l))-lo:]
		le.PutUint32(w, le32(w)-uint32(slide))
	}
}

// slidBytes returns b, which is loaded at physical address pa, as in a slid kernel,
// or nil if b contains a part of a relocated word.
func (r *relocs) slidBytes(b []byte, pa, slide uint64) []byte {
	b = bytes.Clone(b)
	le := binary.LittleEndian
	for _, x := range []struct {
		list []byte
		size uint64
		add  func(w []byte)
	}{
		{r.abs64, 8, func(w []byte) { le.PutUint64(w, le64(w)+slide) }},
		{r.abs32, 4, func(w []byte) { le.PutUint32(w, le32(w)+uint32(slide)) }},
		{r.inv32, 4, func(w []byte) { le.PutUint32(w, le32(w)-uint32(slide)) }},
	} {
		at := func(i int) uint64 { return wordAt(le32(x.list[4*i:])) }
		// The lists ascend (parseRelocs).
		for i := sort.Search(len(x.list)/4, func(i int) bool { return at(i)+x.size > pa }); i < len(x.list)/4 && at(i) < pa+uint64(len(b)); i++ {
			off := at(i) - pa
			if at(i) < pa || off+x.size > uint64(len(b)) {
				return nil
			}
			x.add(b[off:])
		}
	}
	return b
}

// slideWords adds to the words that are wholly in b, which is loaded at physical address pa, what a slide further by that many bytes does.
func (r *relocs) slideWords(b []byte, pa, by uint64) {
	if by == 0 {
		return
	}
	le, end := binary.LittleEndian, pa+uint64(len(b))
	each := func(list []byte, size uint64, add func(w []byte)) {
		at := func(i int) uint64 { return wordAt(le32(list[4*i:])) }
		for i := sort.Search(len(list)/4, func(i int) bool { return at(i) >= pa }); i < len(list)/4 && at(i)+size <= end; i++ {
			add(b[at(i)-pa:])
		}
	}
	each(r.abs64, 8, func(w []byte) { le.PutUint64(w, le64(w)+by) })
	each(r.abs32, 4, func(w []byte) { le.PutUint32(w, le32(w)+uint32(by)) })
	each(r.inv32, 4, func(w []byte) { le.PutUint32(w, le32(w)-uint32(by)) })
}
