package elf_test

import (
	"bytes"
	"compress/zlib"
	debugelf "debug/elf"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/elf"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

// compressSection is a section's bytes as SHF_COMPRESSED has them, said to have size
// bytes.
func compressSection(t testing.TB, kind debugelf.CompressionType, size int, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	err := binary.Write(&b, binary.LittleEndian, debugelf.Chdr64{Type: uint32(kind), Size: uint64(size), Addralign: 1})
	switch kind {
	case debugelf.COMPRESS_ZLIB:
		w := zlib.NewWriter(&b)
		_, werr := w.Write(data)
		err = errors.Join(err, werr, w.Close())
	case debugelf.COMPRESS_ZSTD:
		w, zerr := zstd.NewWriter(&b)
		if zerr != nil {
			t.Fatal(zerr)
		}
		_, werr := w.Write(data)
		err = errors.Join(err, werr, w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// withFlag sets a flag of the first section.
func withFlag(file []byte, flag debugelf.SectionFlag) []byte {
	at := binary.LittleEndian.Uint64(file[40:]) + 64 // section header 1
	binary.LittleEndian.PutUint64(file[at+8:], uint64(flag))
	return file
}

func TestData(t *testing.T) {
	const limit = 1 << 20
	want := bytes.Repeat([]byte("frame"), 1000)
	bomb := make([]byte, limit+1)
	for _, tc := range []struct {
		name string
		data []byte
		flag debugelf.SectionFlag
		err  string // "": want comes back
	}{
		{"plain", want, 0, ""},
		{"zlib", compressSection(t, debugelf.COMPRESS_ZLIB, len(want), want), debugelf.SHF_COMPRESSED, ""},
		{"zstd", compressSection(t, debugelf.COMPRESS_ZSTD, len(want), want), debugelf.SHF_COMPRESSED, ""},
		{"too large", bomb, 0, "1048577 bytes, more than 1048576"},
		{"says too much", compressSection(t, debugelf.COMPRESS_ZLIB, 1<<40, want), debugelf.SHF_COMPRESSED, "1099511627776 bytes decompressed, more than 1048576"},
		{"says too little", compressSection(t, debugelf.COMPRESS_ZLIB, 10, bomb), debugelf.SHF_COMPRESSED, "it does not have the 10 bytes that it says"},
		{"says one more", compressSection(t, debugelf.COMPRESS_ZSTD, len(want)+1, want), debugelf.SHF_COMPRESSED, "it does not have the 5001 bytes that it says"},
		{"unknown", compressSection(t, 77, 1, nil), debugelf.SHF_COMPRESSED, "decompress: unknown type 77"},
		{"no header", []byte("short"), debugelf.SHF_COMPRESSED, "its compression header is cut off"},
		{"damaged", compressSection(t, debugelf.COMPRESS_ZLIB, len(want), want)[:40], debugelf.SHF_COMPRESSED, "decompress: "},
	} {
		f, err := elf.Parse(withFlag(kerneltest.ELF(kerneltest.Section{Name: ".debug_frame", Data: tc.data}), tc.flag))
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Data(f.Index(".debug_frame"), limit)
		if tc.err == "" {
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v", tc.name, len(got), err)
			}
		} else if err == nil || !strings.HasPrefix(err.Error(), "elf section 1: ") || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.err)
		}
	}
}

// TestMemory reads the built-in guest by address and by name.
func TestMemory(t *testing.T) {
	f, err := elf.Parse(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	m, err := f.Memory()
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := m.ReadNames(f, debugelf.SHT_DYNSYM, 1000); ok || err != nil {
		t.Errorf("names of a dynamic table: %v, %v", ok, err)
	}
	if _, err := m.ReadNames(f, debugelf.SHT_SYMTAB, 10); err == nil || !strings.Contains(err.Error(), "symbols, more than 10") {
		t.Errorf("more symbols than the limit: %v", err)
	}
	if ok, err := m.ReadNames(f, debugelf.SHT_SYMTAB, 1<<20); !ok || err != nil {
		t.Fatalf("no names: %v", err)
	}
	addr, ok := m.Lookup("vfs_read")
	if !ok || !m.Named(addr, "vfs_read") || m.Named(addr, "vfs_write") || m.PartAt(addr) == nil || !m.PartAt(addr).X {
		t.Errorf("vfs_read is at %#x, %v", addr, ok)
	}
	if b := m.Bytes(addr, 4); !bytes.Equal(b, []byte{0xf3, 0x0f, 0x1e, 0xfa}) {
		t.Errorf("vfs_read begins with % x, want endbr64", b)
	}
	s := m.PartAt(addr)
	end := s.Addr + uint64(len(s.Data))
	if len(m.Bytes(end-1, 1)) != 1 || m.Bytes(end-1, 2) != nil || m.Bytes(addr, 1<<63) != nil || m.Bytes(0, 1) != nil {
		t.Error("bytes that are not in one section")
	}
	if !slices.IsSortedFunc(m.Names, func(a, b elf.Name) int { return int(int64(a.Addr>>1) - int64(b.Addr>>1)) }) {
		t.Error("names are not sorted")
	}
}

// FuzzFile reads everything of anything, and wants what debug/elf reads where
// that takes the file, too.
func FuzzFile(f *testing.F) {
	f.Add(kerneltest.ELF(kerneltest.Section{Name: ".text", Addr: 0x1000, Data: []byte{0xc3}, X: true},
		kerneltest.Section{Name: ".symtab", Data: make([]byte, 48), Type: debugelf.SHT_SYMTAB, Link: 3},
		kerneltest.Section{Name: ".strtab", Data: []byte("\x00main\x00"), Type: debugelf.SHT_STRTAB}))
	f.Add(withFlag(kerneltest.ELF(kerneltest.Section{Name: ".debug_frame", Data: compressSection(f, debugelf.COMPRESS_ZLIB, 9, make([]byte, 9))}), debugelf.SHF_COMPRESSED))
	f.Add(withFlag(kerneltest.ELF(kerneltest.Section{Name: ".debug_frame", Data: compressSection(f, debugelf.COMPRESS_ZSTD, 9, make([]byte, 9))}), debugelf.SHF_COMPRESSED))
	const limit = 1 << 16
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := elf.Parse(b)
		if err != nil {
			if e := (*elf.Error)(nil); !errors.As(err, &e) && !errors.Is(err, elf.ErrNotELF) {
				t.Fatalf("error of no known kind: %v", err)
			}
			return
		}
		file.BuildID()
		for i := range file.Sections {
			if data, err := file.Data(i, limit); err == nil && len(data) > limit {
				t.Errorf("section %d: %d bytes", i, len(data))
			}
		}
		if m, err := file.Memory(); err == nil {
			_, _ = m.ReadNames(file, debugelf.SHT_SYMTAB, 1000)
			for _, n := range m.Names {
				m.PartAt(n.Addr)
			}
		}
		syms, err := file.Symbols(debugelf.SHT_SYMTAB, 1000)
		std, serr := debugelf.NewFile(bytes.NewReader(b))
		if err != nil || serr != nil || len(std.Sections) != len(file.Sections) {
			return
		}
		theirs, serr := std.Symbols()
		if serr != nil {
			return
		}
		if len(theirs) != len(syms) {
			t.Fatalf("%d symbols, debug/elf has %d", len(syms), len(theirs))
		}
		for i, s := range syms {
			if o := theirs[i]; o.Name != s.Name || o.Value != s.Value || o.Size != s.Size || o.Info != s.Info || o.Section != s.Section {
				t.Errorf("symbol %d: %+v, debug/elf has %+v", i, s, o)
			}
		}
	})
}
