package linux

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	debugelf "debug/elf"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
)

// readForms returns the programs of guest/debuginfo's tests, with their parts.
func readForms(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := os.Open("../debuginfo/testdata/forms.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if out[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDebugFile: debug information of a given program is read from it, and from its given parts.
func TestDebugFile(t *testing.T) {
	forms := readForms(t)
	for form, parts := range map[string][]string{"gcc5": nil, "zstd5": nil, "split5": {"a.dwo", "b.dwo"}, "splittypes4": {"a.dwo", "b.dwo"}, "clangpackage5": {"prog.dwp"}, "multi5": {"common"}} {
		t.Run(form, func(t *testing.T) {
			view, _ := newFileView(t, programFile(true))
			v := Programs{view}
			if _, err := v.Give("/opt/prog", forms[form+"/prog"], unused); err != nil {
				t.Fatal(err)
			}
			read := func() (*DebugFile, *dies.Data, error) {
				d, err := v.DebugFile("/opt/prog")
				if err != nil {
					t.Fatal(err)
				}
				data, err := dies.New(d.File, d.Open)
				return d, data, err
			}
			before, _, err := read()
			var missing *dies.MissingError
			if (err == nil) != (parts == nil) || err != nil && !errors.As(err, &missing) {
				t.Fatalf("without its parts: %v", err)
			}
			for _, part := range parts {
				g, err := v.Give("/opt/"+part, forms[form+"/"+part], unused)
				if err != nil || !g.NamesOnly || g.Path != "/opt/"+part || g.Functions != 0 {
					t.Errorf("%s: %+v, %v", part, g, err)
				}
			}
			after, data, err := read()
			if err != nil || len(data.Units) < 2 || len(data.Paths) != len(parts) {
				t.Fatalf("%+v, %v", data, err)
			}
			if same := before.Version == after.Version; same != (parts == nil) {
				t.Errorf("the version is the same: %v", same)
			}
			file, err := elf.Parse(forms[form+"/prog"])
			if err != nil {
				t.Fatal(err)
			}
			if off, ok := after.FileOffset(file.Header.Entry); !ok || off >= uint64(file.Size()) {
				t.Errorf("the entry %#x is at %#x, %v", file.Header.Entry, off, ok)
			}
			if off, _ := after.FileOffset(file.Header.Entry); off > 0 {
				if addr, ok := after.Address(off); !ok || addr != file.Header.Entry {
					t.Errorf("the entry %#x is %#x, %v", file.Header.Entry, addr, ok)
				}
			}
			if off, ok := after.FileOffset(8); ok {
				t.Errorf("no code is at %#x", off)
			}
		})
	}
}

// TestDebugFileInMemory: debug information is read from the guest's memory, if all of it is there.
func TestDebugFileInMemory(t *testing.T) {
	code := make([]byte, 0x1400)
	f := elfbuild.File{
		Segments: []elfbuild.Segment{{Section: ".text", VAddr: 0x400078, Flags: debugelf.PF_R | debugelf.PF_X, Data: code}},
		Extra:    []elfbuild.Extra{{Name: ".debug_info", Data: []byte("entries")}, {Name: ".debug_line", Data: bytes.Repeat([]byte("x"), 0xa00)}},
	}
	view, m := newFileView(t, f.Bytes())
	d, err := Programs{view}.DebugFile("/bin/prog")
	if err != nil || d.Path != "/usr/bin/prog" {
		t.Fatalf("%+v, %v", d, err)
	}
	for name, want := range map[string]string{".debug_info": "entries", ".debug_line": strings.Repeat("x", 0xa00), ".debug_str": ""} {
		if b, err := d.Section(name); err != nil || string(b) != want {
			t.Errorf("%s: %.20q, %v", name, b, err)
		}
	}
	at, err := Programs{view}.DebugAt(fileCode + 0x1000)
	if version, ok := (Programs{view}).DebugVersionAt(fileCode + 0x1000); err != nil || at.Path != d.Path || at.Version != d.Version || !ok || version != d.Version {
		t.Errorf("by address: %+v, %v; %+v, %v; want %+v", at, err, version, ok, d)
	}
	if at, err := (Programs{view}).DebugAt(fileCode + 1<<fileShift); err == nil {
		t.Errorf("of no file: %+v", at)
	}
	if version, ok := (Programs{view}).DebugVersionAt(0x400100); ok {
		t.Errorf("of no file: %+v", version)
	}
	if off, ok := d.FileOffset(0x400100); !ok || off != 0x100 {
		t.Errorf("the code at 0x400100 is at %#x, %v", off, ok)
	}
	if _, err := d.Open("/usr/bin/none.dwo"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a part that is not there: %v", err)
	}

	view, m = newFileView(t, f.Bytes())
	m.set(structPage(50), "page.mapping", 0) // a folio of two pages, with the debug information and the section headers
	if d, err := (Programs{view}).DebugFile("/bin/prog"); !errors.Is(err, errNotInMemory) {
		t.Errorf("%+v, %v", d, err)
	}

	// A part of the guest's own is read if it is there as a whole.
	o := &debugOpener{v: view, left: allDebug}
	if _, err := o.open("/bin/prog"); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, ErrNoPage) {
		t.Errorf("a part that is not in memory: %v", err)
	}
	view, _ = newFileView(t, f.Bytes())
	o = &debugOpener{v: view, left: allDebug}
	if part, err := o.open("/bin/../bin/prog"); err != nil || part.Path != "/bin/prog" {
		t.Errorf("%+v, %v", part, err)
	} else if b, err := part.Section(".debug_info"); string(b) != "entries" {
		t.Errorf("%q, %v", b, err)
	}
	o.left = 100
	if _, err := o.open("/bin/prog"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a part that is too large: %v", err)
	}
}

// TestFileVariable: a variable is as far from any code in a process as the file says.
func TestFileVariable(t *testing.T) {
	code := make([]byte, 0x1400)
	f := elfbuild.File{
		Segments: []elfbuild.Segment{
			{Section: ".text", VAddr: 0x400078, Flags: debugelf.PF_R | debugelf.PF_X, Data: code},
			{Section: ".data", VAddr: 0x603000, Flags: debugelf.PF_R | debugelf.PF_W, Data: code[:0x100]},
		},
		Symbols: []elfbuild.Symbol{
			{Name: "fn", Addr: 0x400100, Size: 8, Type: debugelf.STT_FUNC},
			{Name: "number", Addr: 0x603010, Size: 4, Type: debugelf.STT_OBJECT},
			{Name: "twice", Addr: 0x603020, Size: 4, Type: debugelf.STT_OBJECT},
			{Name: "twice", Addr: 0x603024, Size: 4, Type: debugelf.STT_OBJECT},
		},
	}
	view, _ := newFileView(t, f.Bytes())
	fn, err := view.Lookup("/bin/prog:fn")
	if err != nil {
		t.Fatal(err)
	}
	// Where a process has fn, the variable is at moved + (its address in the file - fn's).
	const moved = 0x7f0000400100
	x, err := Programs{view}.Variable("/bin/prog", "number")
	if at := moved - uint64(fn.Addr) + uint64(x.Move); err != nil || x.Size != 4 || at != moved+0x603010-0x400100 {
		t.Errorf("%+v, %v: it is at %#x in a process with fn at %#x", x, err, at, uint64(moved))
	}
	for _, name := range []string{"twice", "missing", ""} {
		if x, err := (Programs{view}).Variable("/bin/prog", name); err == nil {
			t.Errorf("%q: %+v", name, x)
		}
	}
	if _, err := (Programs{view}).Variable("/bin/none", "number"); err == nil {
		t.Error("a variable of no file")
	}
}
