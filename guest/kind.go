package guest

import (
	"bytes"
	"debug/buildinfo"
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// Files that users mistake for guests, by kind.
const (
	fixKernel = "boot it with --kernel FILE"
	fixGuest  = "--guest boots programs for the bare machine (docs/guest.md)"
	fixDisk   = "a Linux guest takes raw ones with --disk: qemu-img convert -O raw makes one"
	fixPacked = "unpack it first"
)

// kindError returns the kind of an ELF file that is not a guest, as an error, or nil.
// A multiboot image that is also a guest of ours has the symbol gp_foreign_bp.
func kindError(f *elf.File, b []byte) error {
	switch {
	case IsUserModeLinux(f):
		return &ImageError{"file", "user-mode Linux, which is a program of its host and no kernel for a virtual machine", "use a kernel that is built for x86 hardware, with --kernel FILE"}
	case bytes.Contains(b, []byte("Linux version ")) && (f.Index("__ksymtab") > 0 || f.Index(".data..percpu") > 0):
		return &ImageError{"file", "a Linux kernel (vmlinux)", fixKernel}
	case linuxProgram(f):
		return &ImageError{"file", "a program for Linux (it has a Linux ABI note)", fixGuest + "; run this one in a Linux guest"}
	case goProgram(f, b) == "linux" && startsAsProcess(f):
		return &ImageError{"file", "a Go program for Linux (GOOS=linux)", fixGuest + "; run this one in a Linux guest"}
	case bytes.Contains(b, []byte(SymForeignBreakpoint)):
	case isMultiboot(b):
		return &ImageError{"file", "a multiboot image, which begins in 32-bit protected mode", fixGuest + ", entered in 64-bit mode: remove the multiboot header and start at a 64-bit entry point"}
	}
	return nil
}

// IsUserModeLinux reports whether a file is Linux for the architecture um: it has the
// section of its options (arch/um/include/asm/common.lds.S), even if it is stripped.
func IsUserModeLinux(f *elf.File) bool { return f.Index(".uml.setup.init") > 0 }

// goProgram returns the operating system that a Go program is built for, or "".
// Programs for bare metal name another one, or none.
func goProgram(f *elf.File, b []byte) string {
	if f.Index(".go.buildinfo") <= 0 {
		return ""
	}
	info, err := buildinfo.Read(bytes.NewReader(b))
	if err != nil {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "GOOS" {
			return s.Value
		}
	}
	return ""
}

// startsAsProcess reports whether a Go program's entry takes its arguments from the
// stack, as a kernel puts them there (_rt0_amd64 in the Go runtime's asm_amd64.s: mov
// (%rsp),%rdi; lea 8(%rsp),%rsi, after a jump). Programs for bare metal that are
// built as for Linux have an entry of their own.
func startsAsProcess(f *elf.File) bool {
	mem, err := f.Memory()
	if err != nil {
		return false
	}
	at := f.Header.Entry
	if b := mem.Bytes(at, 5); len(b) == 5 && b[0] == 0xe9 {
		at += 5 + uint64(int64(int32(binary.LittleEndian.Uint32(b[1:]))))
	}
	code := mem.Bytes(at, 9)
	return bytes.Equal(code, []byte{0x48, 0x8b, 0x3c, 0x24, 0x48, 0x8d, 0x74, 0x24, 0x08})
}

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

// fileKinds are files that are not guests, by bytes at the beginning or at an offset.
var fileKinds = []struct {
	at          int
	bytes, what string
	fix         string
}{
	{0x202, "HdrS", "a bzImage, as Linux kernels are packed", fixKernel},
	{0x8001, "CD001", "an ISO 9660 image", fixGuest},
	{0, "MZ", "an EFI application", fixGuest},
	{0, "\x1f\x8b", "a compressed file (gzip)", fixPacked},
	{0, "\xfd7zXZ\x00", "a compressed file (xz)", fixPacked},
	{0, "\x28\xb5\x2f\xfd", "a compressed file (zstd)", fixPacked},
	{0, "BZh", "a compressed file (bzip2)", fixPacked},
	{0, "\x04\x22\x4d\x18", "a compressed file (lz4)", fixPacked},
	{0, "QFI\xfb", "a disk image (qcow2)", fixDisk},
	{0, "KDMV", "a disk image (vmdk)", fixDisk},
	{0, "vhdxfile", "a disk image (vhdx)", fixDisk},
	{0, "0707", "a cpio archive, as initial RAM disks are", "give it with --initrd, beside --kernel FILE"},
	{0, "PK\x03\x04", "a zip archive", fixPacked},
	{0, "!<arch>\n", "an archive (ar: object files, or a Debian package)", "unpack or link it first"},
	{257, "ustar", "a tar archive", fixPacked},
	{0, "#!", "a script", fixGuest},
	{0, "GUESTPRB", "a saved guest", "guestprobed --restore FILE continues it"},
}

// FileKind returns the kind of a file that begins with b and is not an ELF file, and
// what to do with it, or "".
func FileKind(b []byte) (what, fix string) {
	if len(b) == 0 {
		return "an empty file", ""
	}
	for _, k := range fileKinds {
		if len(b) >= k.at+len(k.bytes) && string(b[k.at:k.at+len(k.bytes)]) == k.bytes {
			return k.what, k.fix
		}
	}
	return "", ""
}

// notELFError returns the error for a file that is not an ELF file, with its kind if
// known.
func notELFError(b []byte) error {
	switch what, fix := FileKind(b); {
	case what == "":
		return ErrNotELF
	case fix == "":
		return fmt.Errorf("%w, but %s", ErrNotELF, what)
	default:
		return fmt.Errorf("%w, but %s: %s", ErrNotELF, what, fix)
	}
}
