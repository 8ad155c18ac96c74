package debuginfo

import (
	debugelf "debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// maxFile is the most bytes of a file. Debian's kernels have up to 1 GB with debug
// information.
const maxFile = 2 << 30

// Find returns the file that path means for a program with this build ID, in
// hexadecimal digits, or "" for any: path itself or, in a folder such as
// /usr/lib/debug, the file named by the build ID, or at the place where distributions
// put kernels. Errors begin with the path, and may be ErrNone.
func Find(path, buildID string) (string, error) {
	st, err := os.Stat(path)
	if err != nil || !st.IsDir() {
		return path, check(path, buildID, false)
	}
	if len(buildID) < 3 {
		return "", fmt.Errorf("read debug information of %s: it is a folder, and the guest's program has no build ID: name the file", path)
	}
	file := filepath.Join(buildID[:2], buildID[2:]+".debug")
	tried := []string{filepath.Join(path, ".build-id", file), filepath.Join(path, file)}
	for _, kernels := range []string{"boot/vmlinux-*", "lib/modules/*/vmlinux", "usr/lib/modules/*/vmlinux"} {
		found, err := filepath.Glob(filepath.Join(literal(path), kernels))
		if err != nil {
			return "", fmt.Errorf("read debug information of %s: %w", path, err)
		}
		tried = append(tried, found...)
	}
	for i, file := range tried {
		switch err := check(file, buildID, i > 1); {
		case err == nil:
			return file, nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errOther):
			return "", err
		}
	}
	return "", fmt.Errorf("read debug information of %s: it has none of the guest's program, neither .build-id/%s nor a boot/vmlinux-RELEASE or lib/modules/RELEASE/vmlinux with build ID %s: %w", path, file, buildID, fs.ErrNotExist)
}

// literal returns a pattern that matches only path.
func literal(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// check returns why the file at path is not suitable, by its headers alone. If named
// is set it must contain its build ID.
func check(path, buildID string, named bool) error {
	b, unmap, err := elf.MapFile(path, maxFile)
	if err != nil {
		return fmt.Errorf("read debug information of %w", err)
	}
	defer unmap()
	if err := checkHeaders(b, buildID, named); err != nil {
		return fmt.Errorf("read debug information of %s: %w", path, err)
	}
	return nil
}

func checkHeaders(b []byte, buildID string, named bool) (err error) {
	defer guard(&err)()
	f, err := parseFor(b, buildID)
	switch {
	case err != nil:
		return err
	case named && f.BuildID() == "":
		return errOther
	case f.IndexDebug(".debug_info") < 0:
		return ErrNone
	}
	return nil
}

// errOther is wrapped in the error for a file of another build.
var errOther = errors.New("it is that of another build")

// parseFor reads the headers of the file of a program with this build ID.
func parseFor(b []byte, buildID string) (*elf.File, error) {
	f, err := elf.Parse(b)
	if err != nil {
		return nil, err
	}
	if own := f.BuildID(); buildID != "" && own != "" && own != buildID {
		return nil, fmt.Errorf("%w: build ID %s, and the guest's is %s", errOther, own, buildID)
	}
	return f, nil
}

// Open reads the debug information found by Find, including parts in other files.
func Open(path, buildID string) (*Info, error) {
	path, err := Find(path, buildID)
	if err != nil {
		return nil, err
	}
	o := &opened{left: maxUnpacked}
	b, err := o.mapFile(path)
	if err != nil {
		return nil, fmt.Errorf("read debug information of %w", err)
	}
	i, err := o.parse(b, path, buildID)
	if err != nil {
		o.close()
		return nil, fmt.Errorf("read debug information of %s: %w", path, err)
	}
	return i, nil
}

// OpenImage reads the debug information of a program that was already read from the
// file at path; section returns the bytes of its sections. It looks for other files
// relative to path, and not at all if path is "".
func OpenImage(path string, section func(name string) ([]byte, error)) (i *Info, err error) {
	o := &opened{left: maxUnpacked}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	defer guard(&err)()
	return New(&dies.File{Path: path, Section: section}, o.open)
}

// PartFiles returns the files with parts of the debug information of the program at
// path: the units of split debug information, and shared entries. It fails as Open
// does.
func PartFiles(path string) (paths []string, err error) {
	o := &opened{left: maxUnpacked}
	defer o.close()
	b, err := o.mapFile(path)
	if err != nil {
		return nil, fmt.Errorf("read debug information of %w", err)
	}
	defer guard(&err)()
	f, err := elf.Parse(b)
	if err == nil && f.Index(".gnu_debugaltlink") < 0 && f.Index(".debug_sup") < 0 && f.IndexDebug(".debug_addr") < 0 {
		return nil, nil // it names no file
	}
	if err == nil {
		var d *dies.Data
		if d, err = dies.New(o.file(f, path), o.open); err == nil {
			return d.Paths, nil
		}
	}
	return nil, fmt.Errorf("read debug information of %s: %w", path, err)
}

// maxUnpacked bounds the decompressed sections of all files of a program.
const maxUnpacked = 2 << 30

// opened are the files of a program.
type opened struct {
	left  uint64 // bytes that may still be decompressed
	unmap []func()
}

func (o *opened) mapFile(path string) ([]byte, error) {
	b, unmap, err := elf.MapFile(path, maxFile)
	if err == nil {
		o.unmap = append(o.unmap, unmap)
	}
	return b, err
}

func (o *opened) close() {
	for _, f := range o.unmap {
		f()
	}
}

// open is dies.Opener.
func (o *opened) open(path string) (*dies.File, error) {
	b, err := o.mapFile(path)
	if err != nil {
		return nil, err
	}
	f, err := elf.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return o.file(f, path), nil
}

// file returns the sections of a file.
func (o *opened) file(f *elf.File, path string) *dies.File {
	data := func(n int) ([]byte, error) {
		if !f.IsCompressed(n) {
			return f.Data(n, MaxSection)
		}
		b, err := f.Data(n, min(MaxSection, o.left))
		o.left -= uint64(len(b))
		return b, err
	}
	return &dies.File{Path: path, BuildID: f.BuildID(), Section: func(name string) ([]byte, error) {
		n := f.IndexDebug(name)
		if n < 0 {
			return nil, nil
		}
		all, err := data(n)
		if err != nil || name != ".debug_info.dwo" && name != ".debug_types.dwo" {
			return all, err
		}
		// An object has each of its type units in a separate section.
		for k := n + 1; k < len(f.Sections); k++ {
			if f.Sections[k].Name != f.Sections[n].Name {
				continue
			}
			b, err := data(k)
			if err != nil || uint64(len(b)) > MaxSection-uint64(len(all)) {
				return nil, errors.Join(err, fmt.Errorf("more than %d bytes in sections %s", MaxSection, name))
			}
			all = slices.Concat(all, b)
		}
		return all, nil
	}}
}

// errCut is returned if the file was truncated since it was opened.
var errCut = errors.New("the file of the debug information has been cut")

// guard makes accesses past the end of the file panic; its result must be deferred,
// and turns such a panic into errCut.
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

// parse reads a file without other files.
func parse(b []byte, buildID string) (*Info, error) {
	return (&opened{left: maxUnpacked}).parse(b, "", buildID)
}

func (o *opened) parse(b []byte, path, buildID string) (_ *Info, err error) {
	defer guard(&err)()
	f, err := parseFor(b, buildID)
	if err != nil {
		return nil, err
	}
	i, err := New(o.file(f, path), o.open)
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols(debugelf.SHT_SYMTAB, maxSymbols)
	if err != nil {
		return nil, err
	}
	if n := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == anchor }); n >= 0 {
		i.anchor = symbols[n].Value
	}
	return i, nil
}

// anchor is a symbol of every Linux kernel, both in the image and at run time.
const anchor = "_stext"

const maxSymbols = 4 << 20

// Anchor returns a symbol and its address in the file, for finding the displacement
// of a program that runs elsewhere; ok is false if the file does not have it.
func (i *Info) Anchor() (name string, addr uint64, ok bool) { return anchor, i.anchor, i.anchor != 0 }
