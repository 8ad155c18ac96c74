package guest

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// Files that users take for guests, by what they are.
const (
	fixKernel = "boot it with --kernel FILE"
	fixGuest  = "--guest boots programs for the bare machine (docs/guest.md)"
)

// kindError returns what an ELF file is if it is not a guest, or nil. A file that is a guest for us in addition to being a
// multiboot image has the symbol gp_foreign_bp.
func kindError(f *elf.File, b []byte) error {
	switch {
	case IsUserModeLinux(b):
		return &ImageError{"file", "user-mode Linux, which is a program of its host and no kernel for a virtual machine", "use a kernel that is built for x86 hardware, with --kernel FILE"}
	case bytes.Contains(b, []byte("Linux version ")) && (f.Index("__ksymtab") > 0 || f.Index(".data..percpu") > 0):
		return &ImageError{"file", "a Linux kernel (vmlinux)", fixKernel}
	case linuxProgram(f):
		return &ImageError{"file", "a program for Linux (it has a Linux ABI note)", fixGuest + "; run this one in a Linux guest"}
	case bytes.Contains(b, []byte(SymForeignBreakpoint)):
	case isMultiboot(b):
		return &ImageError{"file", "a multiboot image, which begins in 32-bit protected mode", fixGuest + ", entered in 64-bit mode: remove the multiboot header and start at a 64-bit entry point"}
	}
	return nil
}

// IsUserModeLinux reports whether a file is Linux for the architecture um.
func IsUserModeLinux(b []byte) bool { return bytes.Contains(b, []byte("User Mode Linux v%s")) }

// linuxProgram reports whether there is a note that names Linux as the operating system (LSB, "ABI note tag").
func linuxProgram(f *elf.File) bool {
	i := f.Index(".note.ABI-tag")
	if i <= 0 {
		return false
	}
	note := f.Bytes(f.Sections[i].Off, min(f.Sections[i].Size, 32))
	if len(note) < 20 || !bytes.Equal(note[12:16], []byte("GNU\x00")) {
		return false
	}
	le := binary.LittleEndian
	return le.Uint32(note) == 4 && le.Uint32(note[8:]) == 1 && le.Uint32(note[16:]) == 0
}

// isMultiboot reports whether there is a header of the Multiboot Specification, versions 0.6.96 or 2.0, sections 3.1.
func isMultiboot(b []byte) bool {
	le := binary.LittleEndian
	for at := 0; at+12 <= min(len(b), 8192); at += 4 {
		if h := b[at:]; le.Uint32(h) == 0x1badb002 && le.Uint32(h)+le.Uint32(h[4:])+le.Uint32(h[8:]) == 0 {
			return true
		}
	}
	for at := 0; at+16 <= min(len(b), 32768); at += 8 {
		if h := b[at:]; le.Uint32(h) == 0xe85250d6 && le.Uint32(h)+le.Uint32(h[4:])+le.Uint32(h[8:])+le.Uint32(h[12:]) == 0 {
			return true
		}
	}
	return false
}

// notELFError returns the error for a file that is not an ELF file, with what it is where that is known.
func notELFError(b []byte) error {
	at := func(off int, s string) bool { return len(b) >= off+len(s) && string(b[off:off+len(s)]) == s }
	what := ""
	switch {
	case at(0x202, "HdrS"):
		what = "a bzImage, as Linux kernels are packed: " + fixKernel
	case at(0x8001, "CD001"):
		what = "an ISO 9660 image: " + fixGuest
	case at(0, "MZ"):
		what = "an EFI application: " + fixGuest
	case at(0, "\x1f\x8b"), at(0, "\xfd7zXZ\x00"), at(0, "\x28\xb5\x2f\xfd"), at(0, "BZh"):
		what = "a compressed file: unpack it first"
	default:
		return ErrNotELF
	}
	return fmt.Errorf("%w, but %s", ErrNotELF, what)
}
