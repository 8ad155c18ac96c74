package debuginfo

import (
	"debug/elf"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/internal/elffile"
)

// maxFile is how many bytes a file has at most. Debian's kernels have up to 1 GB with
// debug information.
const maxFile = 2 << 30

// Open reads the debug information of the ELF file at path: that of a program with this
// build ID, in hexadecimal digits, or "" for any. Errors begin with the path, and may be
// ErrNone.
func Open(path, buildID string) (*Info, error) {
	b, err := elffile.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read debug information of %w", err)
	}
	i, err := parse(b, buildID)
	if err != nil {
		return nil, fmt.Errorf("read debug information of %s: %w", path, err)
	}
	return i, nil
}

func parse(b []byte, buildID string) (*Info, error) {
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
