package guest

import (
	"bytes"
	"debug/elf"
	"errors"
	"testing"
)

// FuzzParseELF parses anything. An accepted file must keep every promise of an Image,
// agree with the standard library's reader, and boot.
func FuzzParseELF(f *testing.F) {
	f.Add(soundELF().build())
	e := soundELF()
	e.sections, e.syms = nil, nil
	f.Add(e.build())
	e = soundELF()
	e.notes = []byte("\x04\x00\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00GNU\x00\x12\x34\xab\xcd")
	e.sections = append(e.sections, testSection{NoProbeTable().Section, testKernel + 0x1200, 0x40, elf.SHF_ALLOC, 0}, testSection{".debug_info", 0, 0x20, 0, 0}, testSection{".debug_abbrev", 0, 0x20, 0, 0})
	f.Add(e.build())
	const ram = 4 << 20
	mem := newMemory(f, ram)
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := ParseELF(b)
		if err != nil {
			var ie *ImageError
			if !errors.As(err, &ie) && !errors.Is(err, ErrNotELF) {
				t.Fatalf("error of no known kind: %v", err)
			}
			return
		}
		checkImage(t, img)
		checkStandard(t, img, b)
		st, err := Boot(mem, img, BootOptions{VCPUs: 2, RAM: ram})
		if err != nil {
			return
		}
		as := NewAddressSpace(mem, st.Root)
		for i := range img.Segments {
			s := &img.Segments[i]
			if got := mustRead(t, as, s.VAddr, len(s.Data)); !bytes.Equal(got, s.Data) {
				t.Errorf("segment at %v was not loaded", s.VAddr)
			}
			m, err := as.Translate(s.lastAddr())
			if err != nil || m.PA != s.PAddr+GPA(s.MemSize-1) || m.User != s.User || s.W && !m.Writable || s.X && m.NoExec {
				t.Errorf("last byte of %v: %+v, %v", s.VAddr, m, err)
			}
		}
	})
}

// checkImage checks what the fields and methods of an image promise.
func checkImage(t *testing.T, img *Image) {
	t.Helper()
	if !img.IsText(img.Entry) || img.IsUserText(img.Entry) || len(img.Code(img.Entry, 1)) != 1 {
		t.Errorf("entry %v is no kernel text", img.Entry)
	}
	for i := range img.Segments {
		s := &img.Segments[i]
		if s.MemSize == 0 || uint64(len(s.Data)) > s.MemSize || !s.VAddr.Canonical() || !s.lastAddr().Canonical() || s.lastAddr() < s.VAddr {
			t.Errorf("segment %d: %v, %d bytes", i, s.VAddr, s.MemSize)
		}
		if i > 0 && img.Segments[i-1].lastAddr() >= s.VAddr {
			t.Errorf("segment %d overlaps the one before", i)
		}
	}
	for _, user := range []bool{false, true} {
		for _, r := range img.Text(user) {
			s := img.segment(r.Start)
			if r.Start >= r.End || s == nil || !s.X || s.User != user || !s.Contains(r.End-1) || !img.IsText(r.Start) || !img.IsText(r.End-1) {
				t.Errorf("text range %v", r)
			}
		}
	}
	syms := img.Symbols()
	for i := range syms {
		s := &syms[i]
		if i > 0 && syms[i-1].Addr > s.Addr {
			t.Fatal("symbols are not sorted")
		}
		if i > 100 {
			break // long tables teach nothing new
		}
		img.BlacklistReason(s.Addr)
		if got, err := img.Lookup(s.Name); err == nil && got.Name != s.Name {
			t.Errorf("Lookup(%q) = %q", s.Name, got.Name)
		} else if errors.Is(err, ErrSymbolNotFound) {
			t.Errorf("Lookup(%q): %v", s.Name, err)
		}
		if got, ok := img.Find(s.Addr); ok && (s.Addr < got.Addr || s.Addr >= got.Addr+GVA(got.Size)) {
			t.Errorf("Find(%v) = %+v", s.Addr, got)
		} else if !ok && s.Size != 0 && img.segment(s.Addr) != nil {
			t.Errorf("Find(%v) does not find %q", s.Addr, s.Name)
		}
	}
}

// checkStandard compares with debug/elf, where that accepts the file.
func checkStandard(t *testing.T, img *Image, b []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return
	}
	loads := 0
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Memsz == 0 {
			continue
		}
		loads++
		s := img.segment(GVA(p.Vaddr))
		if s == nil || uint64(s.VAddr) != p.Vaddr || uint64(s.PAddr) != p.Paddr || uint64(len(s.Data)) != p.Filesz || s.MemSize != p.Memsz {
			t.Errorf("program header %+v, segment %+v", p.ProgHeader, s)
		}
	}
	if loads != len(img.Segments) || f.Entry != uint64(img.Entry) {
		t.Errorf("%d segments of %d, entry %v of %#x", len(img.Segments), loads, img.Entry, f.Entry)
	}
	std, err := f.Symbols()
	if err != nil {
		return
	}
	type key struct {
		name string
		addr uint64
	}
	known := map[key]bool{}
	for _, s := range std {
		known[key{string([]rune(s.Name)), s.Value}] = true
	}
	for _, s := range img.Symbols() {
		if !known[key{string([]rune(s.Name)), uint64(s.Addr)}] && !bytes.ContainsRune([]byte(s.Name), '\uFFFD') {
			t.Errorf("symbol %+v is not in the file", s)
		}
	}
}
