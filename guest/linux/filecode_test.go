package linux

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// TestFileCode: the bytes of the pages of a known file, each of which may be one of several, and no
// others, are the file's.
func TestFileCode(t *testing.T) {
	v, m := newFileView(t, programFile(true))
	m.set(structPage(51), "page.compound_head", structPage(50)+1, "page.mapping", 0xdead0400, "page.index", 99)
	if at, ok := v.FileCode(50<<12, m.read); ok {
		t.Errorf("of a file that is not known: %v", at)
	}
	first, err := v.Lookup("/bin/prog:first")
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string, pa guest.GPA, want guest.GVA) {
		t.Helper()
		if at, ok := v.FileCode(pa, m.read); at != want || ok != (want != 0) {
			t.Errorf("%s: %v, %v, want %v", what, at, ok, want)
		}
	}
	want("the first page", 40<<12+5, fileCode+5)
	want("a function", 50<<12, first.Addr)
	want("the second page of two", 51<<12+1, fileCode+0x2001)
	want("behind them", 52<<12, 0)
	want("behind the end of the file", 60<<12, 0)
	want("no memory", 1<<40, 0)
	m.set(structPage(80), "page.mapping", m.prog+1)
	want("a process's own", 80<<12, 0)
	m.set(structPage(51), "page.compound_head", structPage(50)+8+1)
	want("no struct page", 51<<12, 0)
	m.set(structPage(50), "page.mapping", m.files.f.host.Off)
	want("another file's", 50<<12, 0)
	m.set(m.prog, "inode.i_ino", 1)
	want("a file that has gone", 40<<12, 0)
	m.set(m.prog, "inode.i_ino", 101)
}

// TestFileName: symbols of files without the file's path.
func TestFileName(t *testing.T) {
	v, _ := newFileView(t, programFile(true))
	if _, err := v.Lookup("/bin/prog:first"); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[guest.GVA][2]string{
		fileCode + 0x1005:              {"/usr/bin/prog", "first"},
		fileCode + 0x1008:              {"/usr/bin/prog", "second"},
		fileCode + 0x100a:              {"/usr/bin/prog", ""}, // /usr/bin/prog:0x100a
		fileCode + 1<<fileShift:        {"", ""},
		0x401005:                       {"", ""},
		fileCode + maxFiles<<fileShift: {"", ""},
	} {
		s, _ := v.Find(addr)
		if path, function := (Programs{v}).FileName(addr, s.Name); path != want[0] || function != want[1] {
			t.Errorf("%v, %s: %q, %q, want %q", addr, s.Name, path, function, want)
		}
	}
}
