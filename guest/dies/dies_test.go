package dies_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/dwarf"
	debugelf "debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/elf"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// forms are the files of one program with its debug information in all forms, by their paths.
func forms(t testing.TB) map[string][]byte {
	t.Helper()
	f, err := os.Open("../../guest/debuginfo/testdata/forms.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all["/"+h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// file gives the sections of a file; with change, as that leaves them.
func file(name string, b []byte, change func(name string, b []byte) []byte) (*dies.File, error) {
	f, err := elf.Parse(b)
	if err != nil {
		return nil, err
	}
	return &dies.File{Path: name, BuildID: f.BuildID(), Section: func(section string) ([]byte, error) {
		n := f.IndexDebug(section)
		if n < 0 {
			return nil, nil
		}
		b, err := f.Data(n, 1<<20)
		if change != nil {
			b = change(section, b)
		}
		return b, err
	}}, nil
}

// read reads a program of forms.
func read(all map[string][]byte, name string, change func(name string, b []byte) []byte) (*dies.Data, error) {
	main, err := file(name, all[name], change)
	if err != nil {
		return nil, err
	}
	return dies.New(main, func(name string) (*dies.File, error) {
		b, ok := all[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return file(name, b, change)
	})
}

// TestPlain: for plain debug information, entries and ranges equal debug/dwarf's.
func TestPlain(t *testing.T) {
	all := forms(t)
	for _, form := range []string{"gcc2", "gcc3", "gcc4", "gcc5", "clang4", "clang5", "dwz5", "lto5", "wide5", "zlib5"} {
		name := path.Join("/", form, "prog")
		d, err := read(all, name, nil)
		if err != nil {
			t.Errorf("%s: %v", form, err)
			continue
		}
		f, err := debugelf.NewFile(bytes.NewReader(all[name]))
		if err != nil {
			t.Fatal(err)
		}
		want, err := f.DWARF()
		if err != nil {
			t.Fatal(err)
		}
		theirs, entries := want.Reader(), 0
		for _, u := range d.Units {
			ours := d.Reader()
			ours.Seek(u.Entry.Offset)
			theirs.Seek(u.Entry.Offset)
			for depth := 0; ; entries++ {
				e, err := ours.Next()
				w, err2 := theirs.Next()
				if err != nil || err2 != nil || e == nil {
					t.Fatalf("%s: %v, %v", form, err, err2)
				}
				if e.Tag != w.Tag || e.Children != w.Children || e.Tag != 0 && e.Offset != w.Offset || len(e.Field) != len(w.Field) {
					t.Fatalf("%s: %+v, want %+v", form, e, w)
				}
				for k, x := range w.Field {
					if got := e.Field[k]; got.Attr != x.Attr || fmt.Sprint(got.Val) != fmt.Sprint(x.Val) && x.Class != dwarf.ClassRngList {
						t.Fatalf("%s: entry at %#x: %+v, want %+v", form, e.Offset, got, x)
					}
				}
				if e.Tag != 0 {
					r, err := d.Ranges(e)
					wr, err2 := want.Ranges(w)
					if err != nil || err2 != nil || !slices.Equal(r, wr) {
						t.Fatalf("%s: entry at %#x: ranges %x, %v, want %x, %v", form, e.Offset, r, err, wr, err2)
					}
				}
				if e.Tag == 0 {
					depth--
				} else if e.Children {
					depth++
				}
				if depth == 0 {
					break
				}
			}
		}
		if entries < 100 {
			t.Errorf("%s: %d entries", form, entries)
		}
	}
}

// TestBounds: what a file can multiply is bounded.
func TestBounds(t *testing.T) {
	unit := func(body ...byte) []byte { // of DWARF 4
		return append([]byte{byte(7 + len(body)), 0, 0, 0, 4, 0, 0, 0, 0, 0, 8}, body...)
	}
	open := func(abbrev, info []byte) error {
		_, err := dies.New(&dies.File{Section: func(name string) ([]byte, error) {
			return map[string][]byte{".debug_abbrev": abbrev, ".debug_info": info}[name], nil
		}}, nil)
		return err
	}
	many := append([]byte{1, 0x11, 0}, bytes.Repeat([]byte{0x3f, 0x19}, 300)...) // DW_AT_external, DW_FORM_flag_present
	for name, x := range map[string]struct {
		abbrev, info []byte
		want         string
	}{
		"attributes without bytes":      {append(many, 0, 0, 0), unit(1), "damaged"},
		"abbreviations that do not end": {[]byte{1, 0x11, 0, 0}, unit(1), "damaged"},
		"no abbreviation":               {[]byte{1, 0x11, 0, 0, 0, 0}, unit(7), "no abbreviation 7"},
		"an indirect form of itself":    {[]byte{1, 0x11, 0, 3, 0x16, 0, 0, 0}, unit(1, 0x16, 0x16), "damaged"},
		"a string without end":          {[]byte{1, 0x11, 0, 3, 8, 0, 0, 0}, unit(1, 'a', 'b'), "cut off"},
		"a reference out of its unit":   {[]byte{1, 0x11, 0, 0x31, 0x13, 0, 0, 0}, unit(1, 0, 0, 0, 9), "out of its unit"},
		"another file's entry":          {[]byte{1, 0x11, 0, 0x31, 0xa0, 0x3e, 0, 0, 0}, unit(1, 0, 0, 0, 0), "supplementary file"},
		"a signature of no type":        {[]byte{1, 0x11, 0, 0x31, 0x20, 0, 0, 0}, unit(1, 1, 2, 3, 4, 5, 6, 7, 8), "no type unit"},
		"a later version":               {[]byte{0}, []byte{9, 0, 0, 0, 6, 0, 0, 0, 0, 0, 8, 0, 0}, "DWARF version 6"},
		"a unit that is cut off":        {[]byte{0}, []byte{200, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 0, 0}, "damaged"},
	} {
		if err := open(x.abbrev, x.info); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
}

// FuzzForms: damage to any section of any form costs an error, and bounded work.
func FuzzForms(f *testing.F) {
	all := forms(f)
	var names []string
	for name := range all {
		if strings.HasSuffix(name, "/prog") && !strings.Contains(name, "gnupackage") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for n := range names {
		f.Add(uint8(n), ".debug_info", uint32(20), []byte{1})
	}
	for _, section := range []string{".debug_info.dwo", ".debug_abbrev.dwo", ".debug_str_offsets.dwo", ".debug_cu_index", ".debug_tu_index", ".gnu_debugaltlink", ".debug_sup", ".debug_types", ".debug_addr", ".debug_abbrev", ".debug_rnglists"} {
		for n := range names {
			f.Add(uint8(n), section, uint32(9), []byte{0xff, 0xff})
		}
	}
	f.Fuzz(func(t *testing.T, form uint8, section string, at uint32, with []byte) {
		d, err := read(all, names[int(form)%len(names)], func(name string, b []byte) []byte {
			if name != section || uint64(at) >= uint64(len(b)) {
				return b
			}
			b = slices.Clone(b)
			copy(b[at:], with)
			return b
		})
		if err != nil {
			return
		}
		for _, u := range d.Units {
			r := d.Reader()
			r.Seek(u.Entry.Offset)
			for {
				e, err := r.Next()
				if err != nil || e == nil {
					break
				}
				if e.Tag == 0 {
					continue
				}
				_, _ = d.Ranges(e)
				if to, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset); ok {
					o := d.Reader()
					o.Seek(to)
					if e, err := o.Next(); err == nil && e != nil {
						_, _ = o.Pass(e)
					}
				}
			}
			_, _ = u.Ranges()
			if l, err := u.LineReader(); err == nil && l != nil {
				var e dwarf.LineEntry
				for range 1000 {
					if l.Next(&e) != nil {
						break
					}
				}
			}
		}
	})
}
