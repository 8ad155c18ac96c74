package guest

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestKinds: a file that is no guest is refused by what it is.
func TestKinds(t *testing.T) {
	padded := func(at int, s string) []byte { return append(make([]byte, at), s+strings.Repeat("\x00", 64)...) }
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"bzImage":    {padded(0x202, "HdrS"), "a bzImage, as Linux kernels are packed: boot it with --kernel FILE"},
		"ISO":        {padded(0x8001, "CD001"), "an ISO 9660 image: "},
		"EFI":        {padded(0, "MZ"), "an EFI application: "},
		"gzip":       {padded(0, "\x1f\x8b"), "a compressed file (gzip): unpack it first"},
		"xz":         {padded(0, "\xfd7zXZ\x00"), "a compressed file (xz): unpack it first"},
		"zstd":       {padded(0, "\x28\xb5\x2f\xfd"), "a compressed file (zstd): unpack it first"},
		"short":      {[]byte("MZ"), "an EFI application: "},
		"qcow2":      {padded(0, "QFI\xfb"), "a disk image (qcow2): a Linux guest takes raw ones with --disk"},
		"initrd":     {padded(0, "070701"), "a cpio archive, as initial RAM disks are: give it with --initrd"},
		"tar":        {padded(257, "ustar"), "a tar archive: unpack it first"},
		"script":     {padded(0, "#!/bin/sh"), "a script: --guest boots programs for the bare machine"},
		"snapshot":   {padded(0, "GUESTPRB"), "a saved guest: guestprobed --restore FILE continues it"},
		"empty":      {nil, "but an empty file"},
		"other file": {padded(9, "HdrS"), ErrNotELF.Error()},
	} {
		_, err := ParseELF(c.file)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrNotELF) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}

	le := binary.LittleEndian
	sums := func(words ...uint32) (b []byte) {
		last := uint32(0)
		for _, w := range words {
			b, last = le.AppendUint32(b, w), last-w
		}
		return append(le.AppendUint32(b, last), make([]byte, 8)...)
	}
	for name, c := range map[string]struct {
		data []byte // in a segment
		want string
	}{
		"multiboot":           {sums(0x1badb002, 3), "a multiboot image, which begins in 32-bit protected mode"},
		"multiboot 2":         {sums(0xe85250d6, 0, 24), "a multiboot image, which begins in 32-bit protected mode"},
		"a wrong checksum":    {append(sums(0x1badb002, 3)[:8], 1, 2, 3, 4), ""},
		"for both":            {append(sums(0x1badb002, 3), SymForeignBreakpoint...), ""},
		"mention of um Linux": {[]byte("User Mode Linux v%s"), ""},
		"a mention of Linux":  {[]byte("Linux version "), ""},
		"a mention of a boot": {[]byte("HdrS"), ""},
	} {
		e := soundELF()
		copy(e.segs[0].data[0x800:], c.data)
		_, err := ParseELF(e.build())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}

	// This test is a program of Go for Linux.
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseELF(own); err == nil || !strings.Contains(err.Error(), "rogram for Linux (") {
		t.Errorf("this test: %v", err)
	}
}
