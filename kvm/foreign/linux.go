package foreign

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// Linux is a Linux kernel in a guest's memory.
type Linux struct {
	Release string // as "6.1.0-48-cloud-amd64"
	Banner  string // its first line: see /proc/version

	// Text is the address of the kernel's first byte, and Slide its distance from
	// where kernels are linked by default (CONFIG_PHYSICAL_START=0x1000000).
	Text  guest.GVA
	Slide uint64

	// Root is a top-level page table that maps the kernel, and Deep whether the
	// tables have five levels.
	Root guest.GPA
	Deep bool

	// Breakpoint is the kernel's handler of vector 3 (asm_exc_int3).
	Breakpoint guest.GVA
}

// Where Linux kernels are on x86-64 (Documentation/arch/x86/x86_64/mm.rst).
const (
	kernelStart = 0xffffffff80000000
	kernelEnd   = 0xffffffffc0000000
	linkedAt    = 0xffffffff81000000
	textAlign   = 2 << 20

	// bannerReach is how far from the kernel's first byte its banner may be.
	bannerReach = 128 << 20
)

const (
	eferLMA = 1 << 10 // EFER.LMA
	cr4LA57 = 1 << 12 // CR4.LA57
)

// FindLinux looks for a Linux kernel in the guest's memory: the tables of a
// stopped vCPU map it where Linux puts it, the handler of vector 3 is in it, and
// it has a banner. If there is no kernel, it returns an *Error.
func (g *Guest) FindLinux(cpus []CPU) (Linux, error) {
	why := "no vCPU is in 64-bit mode"
	for _, c := range cpus {
		if !c.Known || c.Sregs.EFER&eferLMA == 0 {
			continue
		}
		// With page-table isolation a vCPU in user code has the second of two
		// tables, which maps next to nothing of the kernel.
		deep := c.Sregs.CR4&cr4LA57 != 0
		for _, root := range []uint64{c.Sregs.CR3 &^ 0x1fff, c.Sregs.CR3 &^ 0xfff} {
			l := Linux{Root: guest.GPA(root & (1<<52 - 1)), Deep: deep}
			if why = g.findLinux(&l, c.Sregs.IDT.Base); why == "" {
				return l, nil
			}
		}
	}
	return Linux{}, fail(CodeNotLinux, nil, "no Linux kernel was found in the guest: %s", why)
}

// Space returns the address space of the kernel.
func (g *Guest) Space(l Linux) guest.AddressSpace {
	as := guest.NewAddressSpace(g.mem, l.Root)
	if l.Deep {
		as = as.Levels5()
	}
	return as
}

// findLinux completes l, or says why not.
func (g *Guest) findLinux(l *Linux, idt uint64) string {
	as := g.Space(*l)
	var gate [16]byte
	if as.Read(guest.GVA(idt)+3*16, gate[:]) != nil {
		return "the table of interrupt handlers is not mapped"
	}
	// SDM Vol. 3, figure 6-8.
	l.Breakpoint = guest.GVA(uint64(binary.LittleEndian.Uint16(gate[:])) | uint64(binary.LittleEndian.Uint16(gate[6:]))<<16 | uint64(binary.LittleEndian.Uint32(gate[8:]))<<32)
	if l.Breakpoint < kernelStart || l.Breakpoint >= kernelEnd {
		return "the handler of vector 3 is not where Linux has its kernel"
	}
	for at := guest.GVA(kernelStart); at < kernelEnd; at += textAlign {
		if as.Maps(at) {
			l.Text = at
			break
		}
	}
	if l.Text == 0 || l.Text > l.Breakpoint {
		return "nothing is mapped where Linux has its kernel"
	}
	l.Slide = uint64(l.Text) - linkedAt
	if l.Text < linkedAt {
		l.Slide = 0
	}
	banner, ok := findBanner(as, l.Text)
	if !ok {
		return "its memory has no banner of Linux"
	}
	l.Banner = banner
	l.Release, _, _ = strings.Cut(strings.TrimPrefix(banner, BannerStart), " ")
	return ""
}

// BannerStart is how a kernel's banner (linux_banner, init/version.c) begins. The
// release follows.
const BannerStart = "Linux version "

// findBanner looks for the banner in the pages from start on that are mapped in
// one piece. A kernel can have a second one, without the number of the build, which
// the linker has left.
func findBanner(as guest.AddressSpace, start guest.GVA) (found string, ok bool) {
	const maxBanner = 512
	// A window is a page with the end of the one before, so that nothing is missed at a border.
	buf := make([]byte, maxBanner+guest.PageSize)
	missing := 0
	for at := start; at < start+bannerReach && missing < textAlign/guest.PageSize; at += guest.PageSize {
		copy(buf, buf[guest.PageSize:])
		if as.Read(at, buf[maxBanner:]) != nil {
			clear(buf[maxBanner:])
			missing++
			continue
		}
		missing = 0
		for off := 0; ; {
			i := bytes.Index(buf[off:], []byte(BannerStart))
			if i < 0 {
				break
			}
			off += i
			end := bytes.IndexByte(buf[off:], '\n')
			if off+len(BannerStart) < len(buf) && end > len(BannerStart) && buf[off+len(BannerStart)] >= '0' && buf[off+len(BannerStart)] <= '9' {
				text := string(buf[off : off+end])
				if printable(text) && !strings.Contains(text, ") # ") {
					return text, true
				}
				if printable(text) && found == "" {
					found, ok = text, true
				}
			}
			off++
		}
	}
	return found, ok
}

// printable reports whether text is printable ASCII.
func printable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
