package debuginfo

import (
	"archive/tar"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/types"
)

// forms unpacks one program with its debug information in all forms, which testdata/forms/make.sh has built, and
// returns the folder: below it are folders of the forms' names, with the file prog.
func forms(t testing.TB) string {
	t.Helper()
	return unpack(t, "testdata/forms.tar.gz")
}

// unpack unpacks an archive into a folder.
func unpack(t testing.TB, archive string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, 0o700)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(to, b, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// open is Open of a file that is there.
func open(t testing.TB, path string) *Info {
	t.Helper()
	i, err := Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// account is everything that is known about a program: its types and functions, and
// the result for each address of its code.
func account(i *Info) (known, code string) {
	var b strings.Builder
	for _, tag := range []types.Tag{types.TagStruct, types.TagUnion, types.TagEnum, types.TagNone} {
		for _, name := range i.Names(tag) {
			if strings.HasPrefix(name, "DW_ATE_") || strings.HasPrefix(name, "__ARRAY") {
				continue // of the compiler's own
			}
			t := i.TypeByName(tag, name)
			size, _ := types.Size(t)
			fmt.Fprintf(&b, "%s %s: %s, %d bytes\n", tag, name, types.Text(t), size)
			members, _ := types.Members(t)
			for _, m := range members {
				fmt.Fprintf(&b, "  %s at %d, width %d: %s\n", m.Name, m.Offset, m.BitfieldSize, types.Text(m.Type))
			}
		}
	}
	for _, name := range []string{"RED", "GREEN", "BLUE"} {
		value, _, ok := i.Enumerator(name)
		fmt.Fprintf(&b, "%s = %d %v\n", name, int64(value), ok)
	}
	for _, name := range []string{"heavy", "work1", "work2", "visit", "far", "_start"} {
		if p := i.Func(name); p != nil {
			fmt.Fprintln(&b, types.Prototype(name, p))
		}
	}
	known = b.String()
	b.Reset()
	inlined, err := i.InlinedCopies("heavy")
	fmt.Fprintf(&b, "heavy is inlined at %x %v\n", inlined, err)
	for line := 1; line < 30; line++ {
		for _, file := range []string{"a.c", "b.c", "shared.h"} {
			places, err := i.Places(file, line)
			fmt.Fprintln(&b, file, line, places, err)
		}
	}
	for _, s := range i.spans {
		for at := s.lo; at < s.hi; at++ {
			fmt.Fprintf(&b, "%x:", at)
			for _, f := range i.Frames(at) {
				fmt.Fprintf(&b, " %s %s:%d %v", f.Function, filepath.Base(f.File), f.Line, f.Inlined)
			}
			all, err := i.Variables(at, "")
			fmt.Fprintf(&b, " %v\n", err)
			for _, v := range all {
				fmt.Fprintf(&b, "  %s.%s %v %s %+v %v\n", v.Function, v.Name, v.Parameter, types.Text(v.Type), v.Where, v.Why)
			}
			for _, name := range []string{"list", "calls"} {
				if v, err := i.Variable(at, "", name, []string{"head", "weight"}); err == nil {
					fmt.Fprintf(&b, "  %s %s %+v %v\n", v.Name, types.Text(v.Type), v.Where, v.Why)
				} else {
					fmt.Fprintln(&b, " ", err)
				}
			}
		}
	}
	// clang computes the same value by operations that it has for one form only.
	return known, strings.ReplaceAll(b.String(), "computed at this place (DW_OP 0xa8)", "in pieces at this place (DW_OP_piece)")
}

// twins are the forms that must give the same result as the plain one, by that; all
// but those of link-time optimization have its code.
var twins = map[string][]string{
	"gcc4":   {"dwz4", "multi4", "types4", "split4", "splittypes4", "package4", "packagetypes4", "zdebug4"},
	"gcc5":   {"gcc3", "dwz5", "multi5", "sup5", "types5", "split5", "splittypes5", "zdebug5", "zlib5", "zstd5", "wide5"},
	"clang4": {"clangsplit4"},
	"clang5": {"clangtypes5", "clangsplit5", "clangpackage5"},
}

// firstDifference returns the first lines in which two texts differ.
func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for n := range min(len(x), len(y)) {
		if x[n] != y[n] {
			return fmt.Sprintf("line %d:\n%s\nthe plain form has\n%s", n, x[n], y[n])
		}
	}
	return fmt.Sprintf("%d lines, the plain form has %d", len(x), len(y))
}

// TestForms: debug information says the same in every form: deduplicated, split, packed, compressed.
func TestForms(t *testing.T) {
	dir := forms(t)
	for plain, others := range twins {
		i := open(t, filepath.Join(dir, plain, "prog"))
		known, code := account(i)
		if strings.Count(known, "\n") < 30 || strings.Contains(known, "void ") || strings.Contains(known, "{...}, 0 bytes") {
			t.Fatalf("%s is poor:\n%s", plain, known)
		}
		for _, form := range others {
			t.Run(form, func(t *testing.T) {
				i := open(t, filepath.Join(dir, form, "prog"))
				k, c := account(i)
				if k != known {
					t.Error(firstDifference(k, known))
				}
				if c != code {
					t.Error(firstDifference(c, code))
				}
			})
		}
	}
}

// TestOptimizedForms: after link-time optimization, which changes the code, types,
// functions, copies of inlined functions and the variables of each file are still
// known.
func TestOptimizedForms(t *testing.T) {
	dir := forms(t)
	for form, plain := range map[string]string{"lto4": "gcc4", "lto5": "gcc5", "clanglto5": "clang5", "gcc2": "gcc5"} {
		t.Run(form, func(t *testing.T) {
			want, _ := account(open(t, filepath.Join(dir, plain, "prog")))
			i := open(t, filepath.Join(dir, form, "prog"))
			known, code := account(i)
			if known != want {
				t.Error(firstDifference(known, want))
			}
			if inlined, err := i.InlinedCopies("heavy"); err != nil || len(inlined) < 2 {
				t.Errorf("heavy is inlined at %x, %v", inlined, err)
			}
			if strings.Contains(code, "damaged") {
				t.Errorf("damage is reported:\n%.3000s", code)
			}
			// Both files have a static variable of the same name.
			at := map[string]uint64{}
			for _, f := range []string{"work1", "far"} {
				for _, s := range elfSymbols(t, filepath.Join(dir, form, "prog")) {
					if name, _, _ := strings.Cut(s.Name, "."); name != f {
						continue
					}
					if v, err := i.Variable(s.Value+1, "", "calls", nil); err != nil || v.Why != nil || v.Where.Base != BaseProgram {
						t.Errorf("calls in %s: %+v, %v", f, v, err)
					} else {
						at[f] = uint64(v.Where.Offsets[0])
					}
				}
			}
			if at["work1"] == 0 || at["far"] == 0 || at["work1"] == at["far"] {
				t.Errorf("calls is at %x", at)
			}
		})
	}
}

func elfSymbols(t *testing.T, path string) []elf.Symbol {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFormsByGDB wants the variables of all forms to be what gdb tells of them.
func TestFormsByGDB(t *testing.T) {
	if _, err := exec.LookPath("gdb"); err != nil {
		t.Log("no gdb: nothing to compare with")
		return
	}
	dir := forms(t)
	for _, form := range []string{"lto5", "dwz5", "multi4", "types4", "split5", "package4", "clanglto5"} {
		t.Run(form, func(t *testing.T) {
			path := filepath.Join(dir, form, "prog")
			i := open(t, path)
			var addrs []uint64
			for _, s := range i.spans {
				for at := s.lo; at < s.hi; at += 5 {
					addrs = append(addrs, at)
				}
			}
			if !variablesByGDB(t, path, i, addrs) {
				t.Fail()
			}
		})
	}
}

// TestMissingFiles: debug information whose other files are not there, or are of another build, is refused, with their names and where
// they were looked for.
func TestMissingFiles(t *testing.T) {
	dir := forms(t)
	copyTo := func(from, to string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(form, want string) {
		t.Helper()
		_, err := Open(filepath.Join(dir, form, "prog"), "")
		if err == nil {
			t.Errorf("%s is read", form)
			return
		}
		var missing *dies.MissingError
		text := strings.ReplaceAll(err.Error(), dir, "DIR")
		text = regexp.MustCompile(`[0-9a-f]{40}|[0-9a-f]{2}/[0-9a-f]{38}`).ReplaceAllString(text, "ID")
		if !errors.As(err, &missing) || !errors.Is(err, fs.ErrNotExist) || text != want {
			t.Errorf("%s:\n%s, want\n%s", form, text, want)
		}
	}
	remove("split5/b.dwo")
	refused("split5", "read debug information of DIR/split5/prog: read debug information: a unit is in b.dwo, which is not found at /build/b.dwo, DIR/split5/b.dwo: put it beside the program's file, or make the package prog.dwp there (llvm-dwp -e prog, where the objects are)")
	copyTo("split4/a.dwo", "split4/b.dwo")
	refused("split4", "read debug information of DIR/split4/prog: read debug information: a unit is in b.dwo, which is not found: DIR/split4/b.dwo is of another build: put it beside the program's file, or make the package prog.dwp there (dwp -e prog, where the objects are)")
	for _, form := range []string{"multi4", "multi5", "sup5"} {
		remove(form + "/common")
		refused(form, "read debug information of DIR/"+form+"/prog: read debug information: a part of it that programs share (dwz -m) is in common, which is not found at DIR/"+form+"/common, /usr/lib/debug/.build-id/ID.debug: put the file of build ID ID there")
	}
	refused("gnupackage5", "read debug information of DIR/gnupackage5/prog: read debug information: a unit is in a.dwo, which is not found at /build/a.dwo, DIR/gnupackage5/a.dwo, and the package DIR/gnupackage5/prog.dwp does not have it: put it beside the program's file, or make the package prog.dwp there (llvm-dwp -e prog, where the objects are)")
	copyTo("sup5/prog", "multi5/common")
	refused("multi5", "read debug information of DIR/multi5/prog: read debug information: a part of it that programs share (dwz -m) is in common, which is not found: DIR/multi5/common is of another build: put the file of build ID ID there")
	// Debug information that was not read from a file has no files next to it.
	f, err := os.ReadFile(filepath.Join(dir, "clangsplit5", "prog"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(f, ""); err == nil || !strings.Contains(err.Error(), "name the program's file") {
		t.Errorf("without a path: %v", err)
	}
}

// TestSharedFileByBuildID: the file that programs share is found by its build ID below the folder of debug information.
func TestSharedFileByBuildID(t *testing.T) {
	dir := forms(t)
	prog := filepath.Join(dir, "debug", ".build-id", "12", "34.debug")
	f, err := elf.Open(filepath.Join(dir, "multi5", "common"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	note, err := f.Section(".note.gnu.build-id").Data()
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("%x", note[16:])
	common := filepath.Join(dir, "debug", ".build-id", id[:2], id[2:]+".debug")
	for from, to := range map[string]string{"multi5/prog": prog, "multi5/common": common} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.Rename(filepath.Join(dir, from), to)); err != nil {
			t.Fatal(err)
		}
	}
	if i := open(t, prog); !slices.Equal(i.paths(), []string{common}) {
		t.Errorf("read %q", i.paths())
	}
}
