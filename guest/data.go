package guest

import (
	"debug/elf"
	"fmt"
	"slices"
	"sort"
)

// relaSize is the size of Elf64_Rela (System V ABI, "Relocation").
const relaSize = 24

// field is a part of text that the linker has filled in: an operand, or data, but
// never an opcode.
type field struct {
	addr GVA
	size uint8
}

// fieldSizes are the bytes that a relocation fills in (System V ABI, AMD64
// supplement, table 4.9); all other types fill in 4, or do not exist in a linked
// program.
var fieldSizes = map[elf.R_X86_64]uint8{
	elf.R_X86_64_NONE: 0, elf.R_X86_64_64: 8, elf.R_X86_64_PC64: 8, elf.R_X86_64_16: 2, elf.R_X86_64_PC16: 2, elf.R_X86_64_8: 1, elf.R_X86_64_PC8: 1,
	elf.R_X86_64_DTPMOD64: 8, elf.R_X86_64_DTPOFF64: 8, elf.R_X86_64_TPOFF64: 8, elf.R_X86_64_RELATIVE: 8, elf.R_X86_64_GOTOFF64: 8, elf.R_X86_64_SIZE64: 8,
	elf.R_X86_64_GLOB_DAT: 8, elf.R_X86_64_JMP_SLOT: 8,
}

// readRelocations records the fields in text of a program linked with --emit-relocs.
func (img *Image) readRelocations() error {
	for i := range img.file.Sections {
		if !img.file.Sections[i].Is(elf.SHT_RELA) {
			continue
		}
		table, err := img.file.Table(i, elf.SHT_RELA, relaSize)
		if err != nil {
			return imageError(err)
		}
		for ; len(table) > 0; table = table[relaSize:] {
			size, known := fieldSizes[elf.R_X86_64(uint32(le64(table[8:])))]
			if !known {
				size = 4
			}
			if addr := GVA(le64(table)); size != 0 && img.IsText(addr) {
				img.fields = append(img.fields, field{addr, size})
			}
		}
	}
	slices.SortFunc(img.fields, func(a, b field) int { return cmpAddr(a.addr, b.addr) })
	return nil
}

// noteObjects records the symbols of data in text.
func (img *Image) noteObjects() {
	for i := range img.all {
		s := &img.all[i]
		if s.Kind == SymData && s.Size != 0 && img.IsText(s.Addr) {
			img.objects = append(img.objects, s)
			img.largest = max(img.largest, s.Size)
		}
	}
}

// Data describes the data in [lo, hi) of the image's text by the image's own
// information: an object with a symbol; or a field that the linker has filled in and
// that contains lo, so that no instruction begins there. It returns "" if the image
// describes no data there.
func (img *Image) Data(lo, hi GVA) string {
	from := lo - min(lo, GVA(img.largest))
	for i := sort.Search(len(img.objects), func(i int) bool { return img.objects[i].Addr >= from }); i < len(img.objects) && img.objects[i].Addr < hi; i++ {
		if o := img.objects[i]; lo < o.Addr+GVA(o.Size) {
			return fmt.Sprintf("%s, an object", o.Name)
		}
	}
	for i := sort.Search(len(img.fields), func(i int) bool { return img.fields[i].addr > lo }) - 1; i >= 0 && lo-img.fields[i].addr < 8; i-- {
		if lo-img.fields[i].addr < GVA(img.fields[i].size) {
			return "a relocated field"
		}
	}
	return ""
}
