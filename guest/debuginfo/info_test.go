package debuginfo

import (
	"bytes"
	debugelf "debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/types"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// guest is the built-in guest's.
func guest(t testing.TB) (*Info, *elf.File) {
	t.Helper()
	f, err := elf.Parse(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	i, err := parse(builtin.ELF(), f.BuildID())
	if err != nil {
		t.Fatal(err)
	}
	return i, f
}

// lines are the lines of a source file of the built-in guest, from 1.
func lines(t *testing.T, file string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../builtin", file))
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{""}, strings.Split(string(b), "\n")...)
}

// TestFunctions: each function begins at the line where the source has its name, or its
// opening brace some lines below.
func TestFunctions(t *testing.T) {
	i, f := guest(t)
	symbols, err := f.Symbols(debugelf.SHT_SYMTAB, 10000)
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for _, s := range symbols {
		file, _, ok := i.Line(s.Value)
		if s.Type() != debugelf.STT_FUNC || !ok || !strings.HasSuffix(file, ".c") {
			continue
		}
		text := lines(t, file)
		at := slices.IndexFunc(text, func(l string) bool {
			return strings.Contains(l, " "+s.Name+"(") && !strings.HasSuffix(l, ";") && !strings.HasPrefix(l, "\t")
		})
		if at < 0 {
			continue // made by a macro
		}
		all++
		if !slices.ContainsFunc([]int{0, 1, 2, 3}, func(n int) bool {
			places, err := i.Places(filepath.Base(file), at+n)
			return err == nil && slices.ContainsFunc(places, func(p Place) bool { return p.Addr == s.Value && p.Function == s.Name })
		}) {
			t.Errorf("%s is not found at %s:%d", s.Name, file, at)
		}
	}
	if all < 100 {
		t.Errorf("only %d functions are in the source", all)
	}
}

// TestInlined: near the beginning of a copy of an inlined function, which is inside another,
// is code of its lines; the compiler mixes them with others.
func TestInlined(t *testing.T) {
	i, f := guest(t)
	symbols, err := f.Symbols(debugelf.SHT_SYMTAB, 10000)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"irq_save", "stack_info", "outb", "atomic_add_return"} {
		copies, err := i.InlinedCopies(name)
		if err != nil || len(copies) == 0 {
			t.Errorf("%s: %x, %v", name, copies, err)
		}
		found := 0
		for _, addr := range copies {
			near := false
			for at := addr; at < addr+32; at++ {
				if file, line, ok := i.Line(at); ok && strings.HasSuffix(file, ".h") {
					text := lines(t, file)
					near = near || strings.Contains(strings.Join(text[max(0, line-8):line+1], " "), name+"(")
				}
			}
			if near {
				found++
			}
			if slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == name && s.Value == addr }) {
				t.Errorf("%s at %#x is the function itself", name, addr)
			}
		}
		if 5*found < 4*len(copies) { // of some all lines are elsewhere
			t.Errorf("of %d copies of %s only %d are near it", len(copies), name, found)
		}
	}
	for _, name := range []string{"vfs_read", "rq_save", "nothing", ""} {
		if copies, err := i.InlinedCopies(name); err != nil || len(copies) > 0 {
			t.Errorf("%q is inlined at %x, %v", name, copies, err)
		}
	}
}

// TestColumns: places of one column are a part of a line's places, and each place is in a column.
func TestColumns(t *testing.T) {
	i, _ := guest(t)
	const file, line = "fs.c", 71
	all, err := i.Places(file, line)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for column := 1; column < 200; column++ {
		some, err := i.PlacesInColumn(file, line, column)
		var none *NoLineError
		if err != nil && (!errors.As(err, &none) || !strings.Contains(err.Error(), fmt.Sprintf("fs.c:71 has no code in column %d: it has some in ", column)) || slices.Contains(none.Columns, column)) {
			t.Errorf("column %d: %v", column, err)
		}
		if slices.ContainsFunc(some, func(p Place) bool { return p.Addr == all[0].Addr }) {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%x is in %d columns", all[0].Addr, found)
	}
}

func TestMissing(t *testing.T) {
	i, _ := guest(t)
	for _, tt := range []struct {
		file string
		line int
		want string
	}{
		{"fs.c", 61, "fs.c:61 has no code: the next line with code is 64"},
		{"kernel/fs.c", 62, "kernel/fs.c:62 has no code: the next line with code is 64"},
		{"fs.c", 100000, "fs.c:100000 has no code"},
		{"s.c", 64, "s.c:64 has no code: the debug information has no file of this name"},
	} {
		_, err := i.Places(tt.file, tt.line)
		var none *NoLineError
		if !errors.As(err, &none) || err.Error() != tt.want {
			t.Errorf("%s:%d: %v, want %s", tt.file, tt.line, err, tt.want)
		}
	}
	if _, _, ok := i.Line(0x1234); ok {
		t.Error("there is a line outside the code")
	}
	if _, err := parse(builtin.ELF(), "00"); err == nil || !strings.Contains(err.Error(), "another build") {
		t.Errorf("another build's: %v", err)
	}
	if _, err := New(&dies.File{Section: func(string) ([]byte, error) { return nil, nil }}, nil); !errors.Is(err, ErrNone) {
		t.Errorf("without sections: %v", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if _, _, ok := i.Anchor(); ok {
		t.Error("the built-in guest is no Linux")
	}
}

// FuzzInfo: damaged sections cost an error.
func FuzzInfo(f *testing.F) {
	file, err := elf.Parse(builtin.ELF())
	if err != nil {
		f.Fatal(err)
	}
	sections := map[string][]byte{}
	for n := range file.Sections {
		if name := file.Sections[n].Name; strings.HasPrefix(name, ".debug_") {
			if sections[name], err = file.Data(n, MaxSection); err != nil {
				f.Fatal(err)
			}
		}
	}
	f.Add(".debug_info", uint32(100), []byte{0xff})
	f.Add(".debug_line", uint32(40), []byte{1, 2, 3})
	f.Add(".debug_abbrev", uint32(3), []byte{0x7f})
	f.Add(".debug_rnglists", uint32(12), []byte{5})
	f.Add(".debug_loclists", uint32(12), []byte{5})
	f.Fuzz(func(t *testing.T, name string, at uint32, with []byte) {
		i, err := New(&dies.File{Section: func(want string) ([]byte, error) {
			b := sections[want]
			if want == name && uint64(at) < uint64(len(b)) {
				b = slices.Clone(b)
				copy(b[at:], with)
			}
			return b, nil
		}}, nil)
		if err != nil {
			return
		}
		_, _ = i.Places("fs.c", 64)
		for _, tag := range []types.Tag{types.TagStruct, types.TagUnion, types.TagEnum, types.TagNone} {
			for _, name := range i.Names(tag) {
				if x := i.TypeByName(tag, name); x != nil {
					types.Text(x)
				}
			}
		}
		i.Func("vfs_read")
		i.Enumerator("none")
		_, _ = i.InlinedCopies("irq_save")
		for _, at := range []uint64{0xffffffff802013b0, 0xffffffff802013c6, 0xffffffff802028af} {
			i.Line(at)
			i.Frames(at)
			_, _ = i.Variables(at, "")
			_, _ = i.Variable(at, "", "f", []string{"data", "x"})
			_, _ = i.Variable(at, "", "vfs_lock", []string{"x"})
			if c, err := i.Call(0xffffffff802028b4, at); err == nil {
				_, _ = c.PassedValue(5)
			}
		}
	})
}

// TestCut: a file that is made shorter while it is used costs an error.
func TestCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "debug")
	if err := os.WriteFile(path, builtin.ELF(), 0o600); err != nil {
		t.Fatal(err)
	}
	i, err := Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	const at = 0xffffffff802013c6
	for range 2 {
		_, err1 := i.Places("fs.c", 71)
		_, err2 := i.InlinedCopies("irq_save")
		_, err3 := i.Variables(at, "")
		_, err4 := i.Variable(at, "", "fd", nil)
		for _, err := range []error{err1, err2, err3, err4} {
			if !errors.Is(err, errCut) {
				t.Errorf("got %v", err)
			}
		}
		if i.TypeByName(types.TagStruct, "file") != nil || i.Names(types.TagStruct) != nil || i.Func("vfs_read") != nil {
			t.Error("types are known that cannot be read")
		}
		if _, _, ok := i.Line(at); ok || i.Frames(at) != nil {
			t.Error("lines are known that cannot be read")
		}
	}
}

// TestFolder finds the file of a build ID, in a folder of them or above it, and by the build ID in it where a
// distribution has kernels; and says where it has looked.
func TestFolder(t *testing.T) {
	_, f := guest(t)
	own := f.BuildID()
	if own == "" {
		t.Fatal("the built-in guest has no build ID")
	}
	other := bytes.Replace(builtin.ELF(), buildIDBytes(t, own), buildIDBytes(t, strings.Repeat("ab", len(own)/2)), 1)
	for _, at := range []string{".build-id/" + own[:2] + "/" + own[2:] + ".debug", "boot/vmlinux-2-x", "lib/modules/2/vmlinux", "usr/lib/modules/2/vmlinux"} {
		dir := filepath.Join(t.TempDir(), "a[b*")
		write := func(at string, b []byte) {
			t.Helper()
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(at)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, at), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("boot/vmlinux-1-x", other)
		if _, err := Open(dir, own); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "boot/vmlinux-RELEASE") {
			t.Errorf("%s: only another build: %v", at, err)
		}
		write(at, builtin.ELF())
		if file, err := Find(dir, own); err != nil || file != filepath.Join(dir, at) {
			t.Errorf("%s: %q, %v", at, file, err)
		}
		if _, err := Open(dir, own); err != nil {
			t.Error(err)
		}
		if ids := filepath.Join(dir, ".build-id"); strings.HasPrefix(at, ".build-id") {
			if _, err := Open(ids, own); err != nil {
				t.Error(err)
			}
		}
		if _, err := Open(dir, "ff"+own); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("another build ID: %v", err)
		}
		if _, err := Open(dir, ""); err == nil || !strings.Contains(err.Error(), "no build ID") {
			t.Errorf("without a build ID: %v", err)
		}
	}
	rubbish := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(rubbish, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(rubbish, own); err == nil || !strings.Contains(err.Error(), rubbish) {
		t.Errorf("rubbish: %v", err)
	}
}

func buildIDBytes(t *testing.T, id string) []byte {
	t.Helper()
	b, err := hex.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
