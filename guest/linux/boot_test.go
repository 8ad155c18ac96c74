package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

// bootKernel is a kernel whose data has a word for each kind of relocation, after 64
// bytes of text.
func bootKernel(inverse bool) []byte {
	const data = kerneltest.Base + 0x1000
	d := binary.LittleEndian.AppendUint64(nil, kerneltest.Base+0x10)
	d = binary.LittleEndian.AppendUint32(d, uint32(kerneltest.Base&0xffff_ffff+0x20))
	d = binary.LittleEndian.AppendUint32(d, 0x1234_5678)
	b := kerneltest.ELF(
		kerneltest.Section{Name: ".text", Addr: kerneltest.Base, Data: bytes.Repeat([]byte{0x90}, 64), X: true},
		kerneltest.Section{Name: "__ex_table", Addr: data, Data: d, Zero: 0x2000},
		kerneltest.Section{Name: ".rodata", Addr: kerneltest.Base + 0x8000, Data: []byte("Linux version 6.1.0-test (gcc)\n\x00")},
	)
	if inverse {
		return append(b, kerneltest.Relocs([]uint64{data}, []uint64{data + 8}, []uint64{data + 12})...)
	}
	return append(b, kerneltest.Relocs([]uint64{data}, []uint64{data + 8})...)
}

func ram(t testing.TB, n int) *guest.Memory {
	t.Helper()
	mem := &guest.Memory{}
	if err := mem.Add(0, make([]byte, n), "ram"); err != nil {
		t.Fatal(err)
	}
	return mem
}

func TestBoot(t *testing.T) {
	const slide = 0x1460_0000
	for _, tt := range []struct {
		name    string
		kernel  []byte
		o       BootOptions
		slide   uint64
		inverse uint32
		la57    bool
		kaslr   byte
		tooLong int
	}{
		{name: "inverse list", kernel: kerneltest.BzImage(bootKernel(true)), slide: slide, inverse: 0x1_1234_5678 - slide, kaslr: kaslrFlag, tooLong: 256},
		{name: "two lists", kernel: kerneltest.BzImage(kerneltest.Pack(t, bootKernel(false))["gzip"]), o: BootOptions{LA57: true}, slide: slide, inverse: 0x1234_5678, la57: true, kaslr: kaslrFlag, tooLong: 256},
		{name: "no KASLR", kernel: kerneltest.BzImage(bootKernel(true)), o: BootOptions{LA57: true, Cmdline: "quiet no5lvl nokaslr x"}, inverse: 0x1234_5678, tooLong: 256},
		{name: "vmlinux", kernel: bootKernel(true), o: BootOptions{LA57: true, Cmdline: "xnokaslr"}, slide: slide, inverse: 0x1_1234_5678 - slide, kaslr: kaslrFlag, tooLong: 2048},
	} {
		k, err := Parse(tt.kernel)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if k.Version != "6.1.0-test" {
			t.Errorf("%s: version %q", tt.name, k.Version)
		}
		mem := ram(t, minRAM)
		tt.o.RAM, tt.o.Initrd, tt.o.RSDP, tt.o.Reserve = minRAM, []byte("an initrd"), 0xe_0000, 1<<20
		if tt.slide != 0 {
			tt.o.Slide = &tt.slide
		}
		st, err := Boot(mem, k, tt.o)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		wantCR4 := uint64(cr4PAE)
		if tt.la57 {
			wantCR4 |= cr4LA57
		}
		if st.RIP != 0x100_0000 || st.Slide != tt.slide || st.CR4 != wantCR4 || st.Image.Base != 0x100_0000 || st.Image.Size != 0x8020 {
			t.Errorf("%s: %+v", tt.name, st)
		}
		all, _ := mem.Slice(0, minRAM)
		le := binary.LittleEndian
		data := all[0x100_1000:]
		if got := le.Uint64(data); got != kerneltest.Base+0x10+tt.slide {
			t.Errorf("%s: word of 64 bits is %#x", tt.name, got)
		}
		if got := le.Uint32(data[8:]); got != uint32(kerneltest.Base&0xffff_ffff+0x20+tt.slide) {
			t.Errorf("%s: word of 32 bits is %#x", tt.name, got)
		}
		if got := le.Uint32(data[12:]); got != tt.inverse {
			t.Errorf("%s: inverse word is %#x, want %#x", tt.name, got, tt.inverse)
		}
		zp := all[st.RSI:][:guest.PageSize]
		if got := string(zp[headerMagic:][:4]); got != "HdrS" || zp[typeOfLoader] != 0xff || zp[loadFlags]&(loadedHigh|kaslrFlag) != loadedHigh|tt.kaslr || le.Uint64(zp[acpiRSDP:]) != 0xe_0000 {
			t.Errorf("%s: zero page: %q, flags %#x", tt.name, got, zp[loadFlags])
		}
		line := all[le.Uint32(zp[cmdLinePtr:]):]
		if got := string(line[:bytes.IndexByte(line, 0)]); got != tt.o.Cmdline {
			t.Errorf("%s: command line %q", tt.name, got)
		}
		if at, n := le.Uint32(zp[ramdiskImage:]), le.Uint32(zp[ramdiskSize:]); string(all[at:][:n]) != "an initrd" || at != minRAM-guest.PageSize {
			t.Errorf("%s: initrd at %#x, %d bytes", tt.name, at, n)
		}
		// The reserved memory is data of the boot loader, whose length the kernel
		// knows.
		r := st.Reserved
		head := all[le.Uint64(zp[setupData:]):]
		if at := le.Uint64(zp[setupData:]); r.Size != 1<<20 || uint64(r.Base) != at+guest.PageSize || uint64(r.Base)+r.Size > minRAM-guest.PageSize ||
			le.Uint64(head) != 0 || le.Uint32(head[8:]) != reservedType || uint64(le.Uint32(head[12:]))+16 != r.Size+guest.PageSize {
			t.Errorf("%s: %#x reserved at %v, head at %#x: % x", tt.name, r.Size, r.Base, at, head[:16])
		}
		// Without an initrd above it there is RAM that is not reserved.
		bare := tt.o
		bare.Initrd = nil
		if st, err := Boot(ram(t, minRAM), k, bare); err != nil || uint64(st.Reserved.Base)+st.Reserved.Size >= minRAM {
			t.Errorf("%s: without an initrd: %+v, %v", tt.name, st, err)
		}
		// The tables map the first 4 GiB where they are.
		as := guest.NewAddressSpace(mem, st.CR3)
		if tt.la57 {
			top := le.Uint64(all[st.CR3:])
			as = guest.NewAddressSpace(mem, guest.GPA(top))
		}
		for _, va := range []guest.GVA{0, st.RIP, 0xffff_ffff} {
			if m, err := as.Translate(va); err != nil || m.PA != guest.GPA(va) || m.User || m.NoExec || !m.Writable {
				t.Errorf("%s: %v is mapped to %+v, %v", tt.name, va, m, err)
			}
		}
		if _, err := as.Translate(1 << 32); err == nil {
			t.Errorf("%s: 4 GiB is mapped", tt.name)
		}
		if cs, ds := le.Uint64(all[int(st.GDT)+int(st.CS):]), le.Uint64(all[int(st.GDT)+int(st.DS):]); cs>>40&0x9a != 0x9a || cs>>53&1 != 1 || ds>>40&0x92 != 0x92 {
			t.Errorf("%s: segments %#x and %#x", tt.name, cs, ds)
		}
		tt.o.Cmdline = strings.Repeat("c", tt.tooLong)
		if _, err := Boot(mem, k, tt.o); err == nil || !strings.Contains(err.Error(), "takes at most") {
			t.Errorf("%s: a command line of %d bytes: %v", tt.name, len(tt.o.Cmdline), err)
		}
		tt.o.Cmdline = tt.o.Cmdline[1:]
		if _, err := Boot(mem, k, tt.o); err != nil {
			t.Errorf("%s: a command line of %d bytes: %v", tt.name, len(tt.o.Cmdline), err)
		}
	}
}

// TestMemoryMap: the kernel's memory map says that all RAM is RAM, except for
// firmware's.
func TestMemoryMap(t *testing.T) {
	for _, size := range []uint64{minRAM, 3<<30 - guest.PageSize, 3 << 30, 3<<30 + guest.PageSize, 6 << 30} {
		l, err := LayoutFor(size)
		if err != nil {
			t.Fatal(err)
		}
		var ram, said uint64
		for _, r := range l.Ranges() {
			ram += r.Size
		}
		end := uint64(0)
		for _, e := range l.e820() {
			if e.base < end {
				t.Errorf("%d MiB: %#x is not behind %#x", size>>20, e.base, end)
			}
			end = e.base + e.size
			if e.kind != 1 {
				continue
			}
			said += e.size
			if !slices.ContainsFunc(l.Ranges(), func(r guest.MemoryRange) bool {
				return e.base >= uint64(r.Base) && end <= uint64(r.Base)+r.Size
			}) {
				t.Errorf("%d MiB: %#x to %#x is no RAM", size>>20, e.base, end)
			}
			if end > lowEnd && e.base < highBase {
				t.Errorf("%d MiB: RAM in the hole, %#x to %#x", size>>20, e.base, end)
			}
		}
		if ram != size || said != size-(1<<20-ebda) {
			t.Errorf("%d MiB: %d bytes of RAM, the kernel is told %d", size>>20, ram, said)
		}
	}
	for _, size := range []uint64{0, minRAM - guest.PageSize, minRAM + 1, maxRAM + guest.PageSize} {
		if _, err := LayoutFor(size); err == nil {
			t.Errorf("%d bytes were taken", size)
		}
	}
}

func TestBootRefused(t *testing.T) {
	huge := kerneltest.ELF(
		kerneltest.Section{Name: ".text", Addr: kerneltest.Base, Data: []byte{0x90}, X: true, Zero: minRAM},
		kerneltest.Section{Name: "__ex_table", Addr: kerneltest.Base + 2*minRAM, Data: []byte("Linux version 6.1.0-test (gcc)\n\x00")},
	)
	off, last, odd := uint64(2<<20), uint64(0), uint64(1<<20)
	k, err := Parse(bootKernel(true))
	if err != nil {
		t.Fatal(err)
	}
	align, limit := k.Slides()
	last = limit + align
	if align != 2<<20 || limit != 1<<30-engineRoom-18<<20 {
		t.Errorf("slides of %#x up to %#x", align, limit)
	}
	for _, tt := range []struct {
		name   string
		kernel []byte
		o      BootOptions
		want   string
	}{
		{"too large", huge, BootOptions{}, "the kernel takes 0x1000000 to 0x11000020 of memory: give the guest at least 273 MiB"},
		{"no relocations", huge, BootOptions{Slide: &off}, "this kernel has no relocations (CONFIG_RANDOMIZE_BASE)"},
		{"slide too far", bootKernel(true), BootOptions{Slide: &last}, "want a multiple of 0x200000 up to"},
		{"odd slide", bootKernel(true), BootOptions{Slide: &odd}, "want a multiple of 0x200000 up to"},
		{"initrd", bootKernel(true), BootOptions{Initrd: make([]byte, 112<<20)}, "initrd of 112 MiB: 111 MiB are free between the kernel and 0x8000000: give the guest more memory"},
		{"NUL", bootKernel(true), BootOptions{Cmdline: "a\x00b"}, "contains a NUL byte"},
		{"memory", bootKernel(true), BootOptions{RAM: 2 * minRAM}, "ram: guest memory 0x0, 268435456 bytes"},
	} {
		k, err := Parse(tt.kernel)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if tt.o.RAM == 0 {
			tt.o.RAM = minRAM
		}
		if _, err := Boot(ram(t, minRAM), k, tt.o); err == nil || !strings.HasPrefix(err.Error(), "boot Linux: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestRandomSlide: slides are in range, and differ.
func TestRandomSlide(t *testing.T) {
	k, err := Parse(bootKernel(false))
	if err != nil {
		t.Fatal(err)
	}
	align, last := k.Slides()
	seen := map[uint64]bool{}
	for range 64 {
		s, err := k.slide(true, nil)
		if err != nil || s%align != 0 || s > last {
			t.Fatalf("slide %#x, %v", s, err)
		}
		seen[s] = true
	}
	if len(seen) < 32 {
		t.Errorf("64 slides have %d values", len(seen))
	}
}

func TestBadKernels(t *testing.T) {
	bz := kerneltest.BzImage(bootKernel(true))
	change := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return b
	}
	elf32 := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 60)...)
	vmlinux := bootKernel(true)
	for _, tt := range []struct {
		name, want string
		b          []byte
		no         bool // wraps ErrNotKernel
	}{
		{"empty", "not a Linux kernel, but an empty file: want a bzImage or vmlinux", nil, true},
		{"script", "not a Linux kernel, but a script: want a bzImage or vmlinux", []byte("#!/bin/sh\n"), true},
		{"old", "bzImage of boot protocol 2.07: want 2.08 or later", change(bz, headerVersion, 7)[:0x260], false},
		{"32-bit", "bzImage of a 32-bit kernel: want one for x86-64", change(bz, xloadFlags, 0), false},
		{"32-bit vmlinux", "want a kernel for x86-64", elf32, false},
		{"truncated", "is not in the file's 2048 bytes (truncated?)", bz[:2048], false},
		{"truncated vmlinux", "truncated", vmlinux[:100], false},
		{"no Linux", "an ELF file, but no Linux", kerneltest.ELF(kerneltest.Section{Name: ".text", Addr: kerneltest.Base, Data: []byte{0xc3}, X: true}), true},
		{"user-mode Linux", "user-mode Linux is a program of its host", kerneltest.ELF(kerneltest.Section{Name: ".uml.setup.init", Addr: kerneltest.Base, Data: []byte{0}}), true},
		{"entry", "its entry 0x1 is not in it", change(change(vmlinux, 24, 1), 27, 0), false},
		{"relocations outside", "is not in the kernel", append(bootKernel(true), 0, 0, 0, 0x82), false},
		{"relocations of user space", "is not in the kernel", append(bootKernel(true), 0, 0, 0, 1), false},
		{"half a relocation", "are not lists of relocations", append(bootKernel(true), 1), false},
		{"a list too many", "4 lists, not 2 or 3", append(bootKernel(true), 0, 0, 0, 0, 0, 0, 0, 0x81)[:len(bootKernel(true))+4], false},
	} {
		_, err := Parse(tt.b)
		if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrNotKernel) != tt.no || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(bootKernel(true))
	f.Add(kerneltest.BzImage(bootKernel(false)))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := Parse(b)
		if err != nil {
			return
		}
		align, last := k.Slides()
		if lo, hi := k.program.extent(); hi-lo < 1<<26 {
			k.program.place(make([]byte, hi-lo), last)
		}
		if align != 0 && last%align != 0 {
			t.Errorf("slides of %#x up to %#x", align, last)
		}
	})
}

// FuzzRelocs: accepted relocations can be applied, and change only the words that
// they name.
func FuzzRelocs(f *testing.F) {
	const lo, n = 0x100_0000, 64
	f.Add(kerneltest.Relocs([]uint64{kerneltest.Base}, []uint64{kerneltest.Base + 8}))
	f.Add(kerneltest.Relocs([]uint64{kerneltest.Base}, []uint64{kerneltest.Base + 8, kerneltest.Base + 60}, []uint64{kerneltest.Base + 12}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var named [n]bool
		in := func(pa, size uint64) bool {
			ok := pa-lo < n && size <= n-(pa-lo)
			for i := uint64(0); ok && i < size; i++ {
				named[pa-lo+i] = true
			}
			return ok
		}
		r, err := parseRelocs(b, in)
		if err != nil {
			return
		}
		image := bytes.Repeat([]byte{0x5a}, n)
		r.apply(image, lo, 0x1460_0000)
		for i, c := range image {
			if c != 0x5a && !named[i] {
				t.Errorf("byte %d has changed", i)
			}
		}
	})
}
