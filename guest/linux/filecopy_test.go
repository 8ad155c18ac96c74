package linux

import (
	"bytes"
	debugelf "debug/elf"
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
)

func unused(guest.Range) bool { return false }

// TestFileCopy: if the guest has only a page of a file, without its names, the names
// are those of a copy, as is code that the guest does not have; also before the guest
// has any of it.
func TestFileCopy(t *testing.T) {
	file := programFile(true)
	v, m := newFileView(t, file)
	m.set(structPage(40), "page.mapping", 0)
	if _, err := v.Lookup("/bin/prog:first"); err == nil {
		t.Fatal("a file without its headers has names")
	}
	g, err := v.Give("/bin/prog", file, unused)
	if err != nil || g != (Given{Path: "/usr/bin/prog", Functions: 2, Pages: 2, Present: true}) {
		t.Fatalf("%+v, %v", g, err)
	}
	first, err := v.Lookup("/mnt/top:first")
	if err != nil || first.Name != "/usr/bin/prog:first" || first.Addr != fileCode+0x1000 || first.Size != 6 {
		t.Errorf("%+v, %v", first, err)
	}
	if b := v.Code(first.Addr+4, 4); !bytes.Equal(b, []byte("\x55\xc3\x90\x90")) {
		t.Errorf("code % x", b)
	}
	if at, err := v.FilePages(first.Addr, m.read); err != nil || at.Cached.PA != 50<<12 || !bytes.Equal(v.FileBytes(first.Addr), file[0x1000:0x2000]) {
		t.Errorf("%+v, %v", at, err)
	}
	// The same once more changes nothing; another one does not go beside its probes.
	if again, err := v.Give("/usr/bin/prog", bytes.Clone(file), unused); err != nil || again != g {
		t.Errorf("%+v, %v", again, err)
	}
	other := bytes.Clone(file)
	other[0x1500]++
	if _, err := v.Give("/usr/bin/prog", other, func(r guest.Range) bool { return first.Addr-r.Start < r.End-r.Start }); !errors.Is(err, errUsed) {
		t.Errorf("another copy beside probes: %v", err)
	}
}

// TestFileCopyRefused: a file that is not a copy of the guest's file is rejected, and
// changes nothing.
func TestFileCopyRefused(t *testing.T) {
	file := programFile(true)
	changed, longer := bytes.Clone(file), append(bytes.Clone(file), 0)
	changed[0x1800]++
	for what, c := range map[string]struct {
		path string
		b    []byte
		want string
	}{
		"other bytes":  {"/bin/prog", changed, "there are other bytes in the 4096 at offset 0x1000"},
		"another size": {"/bin/prog", longer, "and the guest's has"},
		"no ELF file":  {"/bin/prog", []byte("#!/bin/sh"), "not an ELF file"},
		"no path":      {"bin/prog", file, "no path in the guest"},
		"dots":         {"/bin/../prog", file, "no path in the guest"},
		"no code":      {"/bin/prog", elfWithoutCode(), "it has no code"},
		"empty":        {"/bin/prog", nil, "not an ELF file"},
	} {
		for _, known := range []bool{false, true} { // by its pages
			v, _ := newFileView(t, file)
			if known {
				if _, err := v.Lookup("/bin/prog:first"); err != nil {
					t.Fatal(err)
				}
			}
			if g, err := v.Give(c.path, c.b, unused); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %+v, %v, want %q", what, g, err, c.want)
			}
			if _, err := v.Lookup("/bin/prog:first"); err != nil {
				t.Errorf("%s: afterwards: %v", what, err)
			}
		}
	}
}

// TestFileCopyAwaited: a copy counts before the guest has the file in memory, and when that
// comes it must be the same.
func TestFileCopyAwaited(t *testing.T) {
	for _, same := range []bool{true, false} {
		file := programFile(true)
		v, m := newFileView(t, file)
		m.set(m.names["prog"], "dentry.d_inode", 0)
		g, err := v.Give("/usr/bin/prog", file, unused)
		if err != nil || g != (Given{Path: "/usr/bin/prog", Functions: 2}) {
			t.Fatalf("%+v, %v", g, err)
		}
		first, err := v.Lookup("/usr/bin/prog:first")
		if err != nil || len(v.Code(first.Addr, 6)) != 6 {
			t.Fatalf("%+v, %v", first, err)
		}
		if at, err := v.FilePages(first.Addr, m.read); err == nil || at.Cached.PA != 0 {
			t.Errorf("%+v, %v", at, err)
		}
		f := v.file(first.Addr)
		f.sought = f.sought.Add(-lookAgain)
		m.set(m.names["prog"], "dentry.d_inode", m.prog)
		if !same {
			m.put(memBase+50*guest.PageSize+0x800, []byte{1})
		}
		at, err := v.FilePages(first.Addr, m.read)
		if same && (err != nil || at.Cached.PA != 50<<12) || !same && (!errors.Is(err, ErrOtherFile) || at.Cached.PA != 0) {
			t.Errorf("it comes, the same: %v: %+v, %v", same, at, err)
		}
		if _, err := v.Lookup("/bin/prog:first"); (err == nil) != same || err != nil && !errors.Is(err, ErrOtherFile) {
			t.Errorf("it is there, the same: %v: %v", same, err)
		}
		if same {
			continue
		}
		// The guest's file replaces the wrong one.
		now := bytes.Clone(file)
		now[0x1800] = 1
		if g, err := v.Give("/bin/prog", now, unused); err != nil || !g.Present || g.Pages != 3 {
			t.Errorf("the right one: %+v, %v", g, err)
		}
		if s, err := v.Lookup("/bin/prog:first"); err != nil || s.Addr != first.Addr+1<<fileShift {
			t.Errorf("by the right one: %+v, %v", s, err)
		}
	}
}

// TestFileDebug: a stripped file has the names of separate debug information with its build ID.
func TestFileDebug(t *testing.T) {
	// setType makes a section one of another type.
	setType := func(b []byte, name string, to debugelf.SectionType) {
		f, err := elf.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		le.PutUint32(b[f.Header.Shoff+uint64(f.Index(name))*64+4:], uint32(to))
	}
	build := func(names bool, id string) []byte {
		const headers, note = 64 + 2*56, ".note.gnu.build-id"
		f := elfbuild.File{Segments: []elfbuild.Segment{
			{Section: note, VAddr: 0x400000 + headers, Flags: debugelf.PF_R, Data: append([]byte("\x04\x00\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00GNU\x00"), id...)},
			{Section: ".text", VAddr: 0x400000 + headers + 20, Flags: debugelf.PF_R | debugelf.PF_X, Data: bytes.Repeat([]byte{0xc3}, 0x1100)}}}
		if names {
			f.Symbols = []elfbuild.Symbol{{Name: "inner", Addr: 0x401000, Size: 4, Type: debugelf.STT_FUNC}}
		}
		b := f.Bytes()
		setType(b, note, debugelf.SHT_NOTE)
		return b
	}
	debug := func(b []byte) []byte {
		setType(b, ".text", debugelf.SHT_NOBITS)
		return b
	}
	file := build(false, "abcd")
	v, m := newFileView(t, file)
	if _, err := v.Lookup("/bin/prog:inner"); err == nil || !strings.Contains(err.Error(), "attach --file") {
		t.Errorf("a stripped file: %v", err)
	}
	for want, b := range map[string][]byte{"build ID 61626365, and the guest's is 61626364": debug(build(true, "abce")), "no names": debug(build(false, "abcd"))} {
		if g, err := v.Give("/bin/prog", b, unused); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v, want %q", g, err, want)
		}
	}
	g, err := v.Give("/bin/prog", debug(build(true, "abcd")), unused)
	if err != nil || g != (Given{Path: "/usr/bin/prog", BuildID: "61626364", Functions: 1, Pages: 2, Present: true, NamesOnly: true}) {
		t.Errorf("%+v, %v", g, err)
	}
	if s, err := v.Lookup("/bin/prog:inner"); err != nil || s.Addr != fileCode+0x1000 || s.Size != 4 {
		t.Errorf("%+v, %v", s, err)
	}
	// Alone it says nothing of a file that is not there.
	m.set(m.names["prog"], "dentry.d_inode", 0)
	if g, err := v.Give("/usr/bin/other", debug(build(true, "abcd")), unused); err == nil || !strings.Contains(err.Error(), "give a copy of it first") {
		t.Errorf("%+v, %v", g, err)
	}
}
