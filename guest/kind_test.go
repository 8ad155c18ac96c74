package guest

import (
	"encoding/binary"
	"errors"
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
		"gzip":       {padded(0, "\x1f\x8b"), "a compressed file: unpack it first"},
		"xz":         {padded(0, "\xfd7zXZ\x00"), "a compressed file: unpack it first"},
		"zstd":       {padded(0, "\x28\xb5\x2f\xfd"), "a compressed file: unpack it first"},
		"short":      {[]byte("MZ"), "an EFI application: "},
		"empty":      {nil, ErrNotELF.Error()},
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
		"user-mode Linux":     {[]byte("User Mode Linux v%s"), "user-mode Linux, which is a program of its host"},
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
}
