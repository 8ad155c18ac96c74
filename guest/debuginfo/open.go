package debuginfo

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/guestprobe/guestprobe/internal/elffile"
)

// maxFile is how many bytes a file has at most. Debian's kernels have up to 1 GB with
// debug information.
const maxFile = 2 << 30

// Open reads the debug information of the ELF file at path: that of a program with this
// build ID, in hexadecimal digits, or "" for any. Of a folder it is the file that has the
// build ID for its name, as distributions have them below /usr/lib/debug. Errors begin with
// the path, and may be ErrNone.
func Open(path, buildID string) (*Info, error) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		if len(buildID) < 3 {
			return nil, fmt.Errorf("read debug information of %s: it is a folder, and the guest's program has no build ID: name the file", path)
		}
		file := filepath.Join(buildID[:2], buildID[2:]+".debug")
		path = filepath.Join(path, ".build-id", file)
		if short := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(path))), file); !exists(path) && exists(short) {
			path = short
		}
	}
	b, unmap, err := elffile.MapFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read debug information of %w", err)
	}
	i, err := parse(b, buildID)
	if err != nil {
		unmap()
		return nil, fmt.Errorf("read debug information of %s: %w", path, err)
	}
	return i, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// errCut is returned when the file has been made shorter since it was opened.
var errCut = errors.New("the file of the debug information has been cut")

// guard has accesses to what is no more in the file panic; what it returns is to be
// deferred, and makes errCut of that.
func guard(err *error) (leave func()) {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // of runtime.Error, a fault
			*err = errCut
		default:
			panic(p)
		}
	}
}

func parse(b []byte, buildID string) (_ *Info, err error) {
	defer guard(&err)()
	f, err := elffile.Parse(b)
	if err != nil {
		return nil, err
	}
	if own := f.BuildID(); buildID != "" && own != "" && own != buildID {
		return nil, fmt.Errorf("it is that of another build: build ID %s, and the guest's is %s", own, buildID)
	}
	i, err := New(func(name string) ([]byte, error) {
		n := f.Index(name)
		if n < 0 {
			return nil, nil
		}
		return f.Data(n, MaxSection)
	})
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols(elf.SHT_SYMTAB, maxSymbols)
	if err != nil {
		return nil, err
	}
	if n := slices.IndexFunc(symbols, func(s elffile.Symbol) bool { return s.Name == anchor }); n >= 0 {
		i.anchor = symbols[n].Value
	}
	return i, nil
}

// anchor is a symbol that every Linux kernel has, in the image and while it runs.
const anchor = "_stext"

const maxSymbols = 4 << 20

// Anchor returns a symbol and the address that the file has it at, by which a program that
// runs elsewhere is compared with it; ok is false where the file has none.
func (i *Info) Anchor() (name string, addr uint64, ok bool) { return anchor, i.anchor, i.anchor != 0 }
