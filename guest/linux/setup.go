package linux

import (
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// setupHeader is the first sector and a half of a bzImage, in which its fields have
// the same offsets as in the zero page (Documentation/arch/x86/boot.rst and
// zero-page.rst).
type setupHeader []byte

// Offsets in the zero page.
const (
	acpiRSDP       = 0x070
	e820Entries    = 0x1e8
	setupSects     = 0x1f1 // beginning of the header
	vidMode        = 0x1fa
	bootFlag       = 0x1fe
	headerJump     = 0x201 // one byte: the distance of the header's end from 0x202
	headerMagic    = 0x202
	headerVersion  = 0x206
	typeOfLoader   = 0x210
	loadFlags      = 0x211
	ramdiskImage   = 0x218
	ramdiskSize    = 0x21c
	cmdLinePtr     = 0x228
	initrdAddrMax  = 0x22c
	kernelAlign    = 0x230
	xloadFlags     = 0x236
	cmdlineSize    = 0x238
	payloadOffset  = 0x248
	payloadLength  = 0x24c
	setupData      = 0x250
	headerLimit    = 0x290 // the next field of the zero page
	e820Table      = 0x2d0 // entries of 20 bytes, at most 128
	setupHeaderEnd = 0x250 // part that every header with a payload has
)

// Bits of fields.
const (
	loadedHigh = 1 << 0 // loadflags
	kaslrFlag  = 1 << 1
	xlfKernel  = 1 << 0 // xloadflags: the kernel is 64-bit
	xlf5Level  = 1 << 6 // it runs with 5 levels of page tables (XLF_5LEVEL_ENABLED)
)

// readSetupHeader finds the header of a bzImage that has a payload (version 2.08) and
// a 64-bit kernel.
func readSetupHeader(b []byte) (setupHeader, error) {
	if len(b) < setupHeaderEnd || string(b[headerMagic:headerMagic+4]) != "HdrS" {
		if what, _ := guest.FileKind(b); what != "" {
			return nil, fmt.Errorf("%w, but %s: want a bzImage or vmlinux", ErrNotKernel, what)
		}
		return nil, fmt.Errorf("%w: want a bzImage or vmlinux", ErrNotKernel)
	}
	h := setupHeader(b[:min(len(b), headerLimit, headerMagic+int(b[headerJump]))])
	if len(h) < setupHeaderEnd {
		h = b[:setupHeaderEnd]
	}
	switch v := h.u16(headerVersion); {
	case v < 0x208:
		return nil, fmt.Errorf("bzImage of boot protocol %d.%02d: want 2.08 or later, Linux 2.6.26", v>>8, v&0xff)
	case v >= 0x20c && h.u16(xloadFlags)&xlfKernel == 0:
		return nil, fmt.Errorf("bzImage of a 32-bit kernel: want one for x86-64")
	}
	return h, nil
}

func (h setupHeader) u16(at int) uint16 { return binary.LittleEndian.Uint16(h[at:]) }
func (h setupHeader) u32(at int) uint32 { return binary.LittleEndian.Uint32(h[at:]) }

// sectors is the number of 512-byte sectors between the first one and the kernel.
func (h setupHeader) sectors() int {
	if h[setupSects] == 0 {
		return 4
	}
	return int(h[setupSects])
}

// newSetupHeader returns a header, of version 2.15, for a kernel that is loaded
// without one.
func newSetupHeader() setupHeader {
	h, le := make(setupHeader, headerLimit), binary.LittleEndian
	copy(h[headerMagic:], "HdrS")
	le.PutUint16(h[headerVersion:], 0x20f)
	le.PutUint16(h[xloadFlags:], xlfKernel)
	le.PutUint16(h[bootFlag:], 0xaa55)
	le.PutUint32(h[initrdAddrMax:], 0x7fff_ffff)
	le.PutUint32(h[kernelAlign:], 2<<20)
	le.PutUint32(h[cmdlineSize:], 2047)
	return h
}
