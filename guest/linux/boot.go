package linux

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// BootOptions are the parameters of a kernel's boot.
type BootOptions struct {
	RAM     uint64 // bytes; LayoutFor defines the guest's memory
	Cmdline string
	Initrd  []byte    // nil: none
	RSDP    guest.GPA // address of the ACPI tables, which are in Layout.Tables; 0: no tables
	LA57    bool      // the vCPUs have 5-level paging
	Reserve uint64    // bytes of RAM, whole pages, that the kernel maps and never uses: BootState.Reserved
	// Slide is the distance of the kernel's virtual addresses from those that it was
	// linked at, in bytes; nil for a random one, or 0 if the command line has nokaslr
	// or the kernel has no relocations. See Kernel.Slides.
	Slide *uint64
}

// BootState is the result of Boot: the registers of the first vCPU, in 64-bit mode at
// CPL 0 with interrupts off, CR0.PG|WP|PE, EFER.LME|LMA|NXE. All other registers are
// 0. The other vCPUs wait for the kernel's startup interrupt.
type BootState struct {
	RIP      guest.GVA // startup_64, in the identity map of the first 4 GiB
	RSI      guest.GVA // the zero page
	CR3      guest.GPA
	CR4      uint64 // PAE, and LA57 if the tables have 5 levels
	GDT      guest.GVA
	GDTLimit uint16 // bytes - 1
	CS, DS   uint16 // flat segments; DS for all others too

	Slide uint64            // virtual, in bytes: 0 or a multiple of the kernel's alignment
	Image guest.MemoryRange // memory of the kernel, including its bss
	// Reserved is the memory of BootOptions.Reserve. The kernel has it in its direct
	// map, like all RAM, and preserves it as it preserves data of a boot loader that
	// it does not know (Documentation/arch/x86/boot.rst, setup_data).
	Reserved guest.MemoryRange

	// LocksChange: CPUs may be added later to a kernel that starts with one of
	// several, and that removes its lock prefixes until then.
	LocksChange bool
}

// Addresses of the data that the kernel reads before it has page tables of its own,
// all below the memory that the kernel reserves for itself.
const (
	gdtAt      = 0x1000
	zeroPageAt = 0x2000
	tablesAt   = 0x3000 // 7 pages at most
	cmdlineAt  = 0x1_0000
	maxCmdline = 0x1_0000
)

// Bits of CR4.
const (
	cr4PAE  = 1 << 5
	cr4LA57 = 1 << 12
)

// bootGDT are the flat segments required by the boot protocol
// (Documentation/arch/x86/boot.rst, "64-bit Boot Protocol").
var bootGDT = [...]uint64{2: 0x00af_9b00_0000_ffff, 3: 0x00cf_9300_0000_ffff}

// Boot writes everything the kernel needs to start into the guest's memory, like a
// boot loader and the kernel's own decompressor together: the kernel, relocated; the
// zero page, the command line, the initrd; a GDT and page tables that identity-map
// the first 4 GiB. The kernel is at the physical address that it was linked for. Each
// call writes all of it again.
func Boot(mem *guest.Memory, k *Kernel, o BootOptions) (*BootState, error) {
	st, err := boot(mem, k, o)
	if err != nil {
		return nil, fmt.Errorf("boot Linux: %w", err)
	}
	return st, nil
}

func boot(mem *guest.Memory, k *Kernel, o BootOptions) (*BootState, error) {
	layout, err := LayoutFor(o.RAM)
	if err != nil {
		return nil, err
	}
	for _, r := range layout.Ranges() {
		if _, err := mem.Slice(r.Base, int(r.Size)); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	head := setupHeader(k.program.header)
	if head == nil {
		head = newSetupHeader()
		if _, ok := k.mem.Lookup("__pgtable_l5_enabled"); ok {
			head[xloadFlags] |= xlf5Level
		}
	}
	b := &booter{mem: mem, k: k, head: head, layout: layout}
	if err := b.checkCmdline(o.Cmdline); err != nil {
		return nil, err
	}
	st := &BootState{CR3: tablesAt, CR4: cr4PAE, RIP: guest.GVA(k.program.entry), RSI: zeroPageAt, GDT: gdtAt, GDTLimit: uint16(8*len(bootGDT) - 1), CS: 0x10, DS: 0x18}
	st.LocksChange = b.has("nosmp") || slices.ContainsFunc(b.words, func(w string) bool { return strings.HasPrefix(w, "maxcpus=") })
	kaslr := !b.has("nokaslr")
	if st.Slide, err = k.slide(kaslr, o.Slide); err != nil {
		return nil, err
	}
	if st.Image, err = b.placeKernel(st.Slide); err != nil {
		return nil, err
	}
	initrd, err := b.placeInitrd(o.Initrd, uint64(st.Image.Base)+st.Image.Size)
	if err != nil {
		return nil, err
	}
	if o.LA57 && head.u16(xloadFlags)&xlf5Level != 0 && !b.has("no5lvl") {
		st.CR4 |= cr4LA57
	}
	data := uint64(0)
	if o.Reserve != 0 {
		top := initrd
		if top == 0 {
			// A page of RAM remains above it: memory that the kernel reserves does
			// not count for the end of its memory (max_pfn), and pages after that
			// have no node.
			top = b.layout.Low.Size - guest.PageSize
		}
		if data, err = b.placeReserved(o.Reserve, top, uint64(st.Image.Base)+st.Image.Size); err != nil {
			return nil, err
		}
		st.Reserved = guest.MemoryRange{Name: "reserved", Base: guest.GPA(data + guest.PageSize), Size: o.Reserve}
	}
	b.zeroPage(o, kaslr, initrd, data)
	b.pageTables(st.CR4&cr4LA57 != 0)
	gdt := b.bytes(gdtAt, guest.PageSize)
	clear(gdt)
	for i, d := range bootGDT {
		binary.LittleEndian.PutUint64(gdt[8*i:], d)
	}
	return st, nil
}

// booter is the shared state of the steps of Boot.
type booter struct {
	mem    *guest.Memory
	k      *Kernel
	head   setupHeader
	layout Layout
	words  []string // of the command line
}

// bytes returns n bytes of memory that is known to exist.
func (b *booter) bytes(pa guest.GPA, n int) []byte {
	p, err := b.mem.Slice(pa, n)
	if err != nil {
		panic("BUG: boot Linux: " + err.Error())
	}
	return p
}

// checkCmdline checks the command line against the kernel's limit, and writes it.
func (b *booter) checkCmdline(line string) error {
	limit := min(int(b.head.u32(cmdlineSize)), maxCmdline-1)
	switch {
	case len(line) > limit:
		return fmt.Errorf("command line of %d bytes: this kernel takes at most %d", len(line), limit)
	case strings.IndexByte(line, 0) >= 0:
		return fmt.Errorf("command line %q: contains a NUL byte", line)
	}
	b.words = strings.Fields(line)
	p := b.bytes(cmdlineAt, len(line)+1)
	p[copy(p, line)] = 0
	return nil
}

// has reports whether the command line has the word.
func (b *booter) has(word string) bool { return slices.Contains(b.words, word) }

// Slides returns by how much the kernel's addresses can be moved: any multiple of
// align, up to and including last; 0 and 0 if it has no relocations. This leaves
// engineRoom bytes of the kernel's own mapping after the image.
func (k *Kernel) Slides() (align, last uint64) {
	if !k.program.relocs.canSlide() {
		return 0, 0
	}
	align = 2 << 20
	if h := setupHeader(k.program.header); h != nil {
		if a := uint64(h.u32(kernelAlign)); a&(a-1) == 0 && a > align {
			align = a
		}
	}
	_, hi := k.program.extent()
	if hi+engineRoom > kernelImageSize {
		return 0, 0
	}
	return align, (kernelImageSize - engineRoom - hi) &^ (align - 1)
}

// engineRoom is the number of bytes of addresses after the kernel that are kept free
// for the engine's mappings (level2_kernel_pgt has one entry for each 2 MiB).
const engineRoom = 128 << 20

// slide chooses the slide.
func (k *Kernel) slide(kaslr bool, want *uint64) (uint64, error) {
	align, last := k.Slides()
	switch {
	case want != nil && *want != 0 && align == 0:
		return 0, errors.New("this kernel has no relocations (CONFIG_RANDOMIZE_BASE), so it can only be at the addresses that it was linked for")
	case want != nil && *want != 0 && (*want%align != 0 || *want > last):
		return 0, fmt.Errorf("slide %#x: want a multiple of %#x up to %#x", *want, align, last)
	case want != nil:
		return *want, nil
	case !kaslr || align == 0:
		return 0, nil
	}
	var r [8]byte
	if _, err := rand.Read(r[:]); err != nil {
		return 0, err
	}
	return le64(r[:]) % (last/align + 1) * align, nil
}

// placeKernel writes the kernel.
func (b *booter) placeKernel(slide uint64) (guest.MemoryRange, error) {
	lo, hi := b.k.program.extent()
	if lo < oneMiB || hi > b.layout.Low.Size {
		return guest.MemoryRange{}, fmt.Errorf("the kernel takes %#x to %#x of memory: give the guest at least %d MiB", lo, hi, max(hi>>20+1, minRAM>>20))
	}
	b.k.program.place(b.bytes(guest.GPA(lo), int(hi-lo)), slide)
	return guest.MemoryRange{Name: "kernel", Base: guest.GPA(lo), Size: hi - lo}, nil
}

// placeInitrd writes the initrd as high as the kernel accepts it, above the image.
func (b *booter) placeInitrd(initrd []byte, kernelEnd uint64) (at uint64, err error) {
	if len(initrd) == 0 {
		return 0, nil
	}
	top, n := min(b.layout.Low.Size, uint64(b.head.u32(initrdAddrMax))+1), uint64(len(initrd))
	if n > top || (top-n)&^(guest.PageSize-1) < kernelEnd {
		return 0, fmt.Errorf("initrd of %d MiB: %d MiB are free between the kernel and %#x: give the guest more memory, or a smaller initrd", n>>20, (top-min(top, kernelEnd))>>20, top)
	}
	at = (top - n) &^ (guest.PageSize - 1)
	copy(b.bytes(guest.GPA(at), len(initrd)), initrd)
	return at, nil
}

// reservedType is the type of a setup_data that is unknown to kernels.
const reservedType = 0x47505242

// placeReserved writes a setup_data of n bytes below top, with only the header in its
// first page, and returns its address.
func (b *booter) placeReserved(n, top, kernelEnd uint64) (at uint64, err error) {
	n += guest.PageSize
	if n > top || (top-n)&^(guest.PageSize-1) < kernelEnd {
		return 0, fmt.Errorf("no room for %d KiB beside the kernel and its initrd: give the guest more memory", n>>10)
	}
	at = (top - n) &^ (guest.PageSize - 1)
	p, le := b.bytes(guest.GPA(at), int(n)), binary.LittleEndian
	clear(p)
	const header = 16 // next, type, len
	le.PutUint32(p[8:], reservedType)
	le.PutUint32(p[12:], uint32(n-header))
	return at, nil
}

// zeroPage writes struct boot_params.
func (b *booter) zeroPage(o BootOptions, kaslr bool, initrd, data uint64) {
	p, le := b.bytes(zeroPageAt, guest.PageSize), binary.LittleEndian
	clear(p)
	copy(p[setupSects:headerLimit], b.head[setupSects:])
	p[typeOfLoader] = 0xff // a loader without a number
	p[loadFlags] |= loadedHigh
	p[loadFlags] &^= kaslrFlag
	if kaslr {
		p[loadFlags] |= kaslrFlag // the kernel then randomizes where it maps memory
	}
	le.PutUint16(p[vidMode:], 0xffff)
	le.PutUint32(p[cmdLinePtr:], cmdlineAt)
	le.PutUint32(p[ramdiskImage:], uint32(initrd))
	le.PutUint32(p[ramdiskSize:], uint32(len(o.Initrd)))
	le.PutUint64(p[acpiRSDP:], uint64(o.RSDP))
	le.PutUint64(p[setupData:], data)
	for i, e := range b.layout.e820() {
		at := p[e820Table+20*i:]
		le.PutUint64(at, e.base)
		le.PutUint64(at[8:], e.size)
		le.PutUint32(at[16:], e.kind)
		p[e820Entries]++
	}
}

// pageTables identity-maps the first 4 GiB, in pages of 2 MiB.
func (b *booter) pageTables(la57 bool) {
	const link, page = 0x3, 0x83 // present, writable; and a large page (SDM Vol. 3, 4.5.4)
	levels := 2                  // levels of single tables above the tables of pages
	if la57 {
		levels = 3
	}
	t := b.bytes(tablesAt, (levels+4)*guest.PageSize)
	clear(t)
	put := func(table, i int, e uint64) {
		binary.LittleEndian.PutUint64(t[table*guest.PageSize+8*i:], e)
	}
	for l := range levels - 1 {
		put(l, 0, uint64(tablesAt+(l+1)*guest.PageSize)|link)
	}
	for g := range 4 {
		put(levels-1, g, uint64(tablesAt+(levels+g)*guest.PageSize)|link)
		for i := range 512 {
			put(levels+g, i, uint64(g)<<30|uint64(i)<<21|page)
		}
	}
}
