package linux

import (
	debugelf "debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/dies"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// DebugFile is a file of the guest with debug information. Files of the same code and the same given files have equal Versions.
type DebugFile struct {
	*dies.File
	Open    dies.Opener // opens other files with parts of it
	Version DebugVersion

	// FileOffset returns the offset in the file of the code at an address of the file's program headers.
	FileOffset func(addr uint64) (off uint64, ok bool)
	// Address is the reverse.
	Address func(off uint64) (addr uint64, ok bool)
}

// DebugVersion identifies the bytes of a file and of its given debug information.
type DebugVersion struct {
	of    *userFile
	given int
}

// errNotInMemory says what to do about debug information that the guest does not have.
var errNotInMemory = errors.New("the guest does not have its debug information in memory: give a copy of the file, or its separate debug information (--file)")

// offsetOf returns the offset in the file of the code at an address of the file's program headers.
func (f *userFile) offsetOf(addr uint64) (off uint64, ok bool) {
	for _, g := range f.segments {
		if off := addr - g.addr; off < g.size {
			return g.off + off, true
		}
	}
	return 0, false
}

// addressOf is the reverse of offsetOf.
func (f *userFile) addressOf(off uint64) (addr uint64, ok bool) {
	for _, g := range f.segments {
		if off := off - g.off; off < g.size {
			return g.addr + off, true
		}
	}
	return 0, false
}

// DebugFile returns the file at path for reading its debug information: its separate debug information, if that was given or is in the
// guest, where distributions put it. Errors are opening the file, and errors of its headers; the sections may be missing nevertheless.
func (v Programs) DebugFile(path string) (*DebugFile, error) {
	f, err := v.open(path)
	if err != nil {
		return nil, err
	}
	return v.debugOf(f)
}

// DebugAt is DebugFile for the known file with the byte at an address of the view.
func (v Programs) DebugAt(addr guest.GVA) (*DebugFile, error) {
	f := v.file(addr)
	if f == nil {
		return nil, errNoFile
	}
	return v.debugOf(f)
}

// DebugVersionAt returns the version that DebugAt would now return; ok is false if the address is in no known file.
func (v Programs) DebugVersionAt(addr guest.GVA) (version DebugVersion, ok bool) {
	f := v.file(addr)
	if f == nil {
		return DebugVersion{}, false
	}
	return v.debugVersion(f), true
}

func (v Programs) debugVersion(f *userFile) DebugVersion {
	v.files.mu.Lock()
	defer v.files.mu.Unlock()
	return DebugVersion{f, v.files.given}
}

// debugOf is DebugFile for a known file.
func (v Programs) debugOf(f *userFile) (*DebugFile, error) {
	o := &debugOpener{v: v.View, left: allDebug}
	d := &DebugFile{Open: o.open, Version: v.debugVersion(f), FileOffset: f.offsetOf, Address: f.addressOf}
	if file := f.debug.Load(); file != nil {
		d.File = o.file(f.path, f.buildID, file, nil)
		return d, nil
	}
	f.mu.Lock()
	if time.Since(f.filled) >= lookAgain { // a script asks for each of its functions
		for i := range f.have {
			f.fill(v.View, uint64(i))
		}
		f.filled = time.Now()
	}
	missing := slices.Contains(f.have, false)
	file, err := elf.Parse(f.data)
	f.mu.Unlock()
	if err != nil && missing { // section headers are at the file's end
		err = errNotInMemory
	}
	if err == nil && missing && len(file.Sections) == 0 {
		err = errNotInMemory
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	if file.IndexDebug(".debug_info") < 0 {
		if other := o.separate(f, file); other != nil {
			d.File = other
			return d, nil
		}
	}
	d.File = o.file(f.path, f.buildID, file, func(off, n uint64) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return n == 0 || f.has(off, n)
	})
	return d, nil
}

// allDebug bounds the bytes of the other files of one program, and its decompressed sections.
const allDebug = 256 << 20

// debugOpener opens files of the guest with parts of the debug information of one program.
type debugOpener struct {
	v    *View
	left uint64
}

// open is dies.Opener: of a copy that was given for the path, or of the guest's file, which it has to have in memory as a whole.
func (o *debugOpener) open(name string) (*dies.File, error) {
	name = path.Clean(name)
	o.v.files.mu.Lock()
	part := o.v.files.parts[name]
	o.v.files.mu.Unlock()
	if part != nil {
		return o.file(name, part.BuildID(), part, nil), nil
	}
	b, err := o.read(name)
	if err != nil {
		return nil, err
	}
	file, err := elf.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return o.file(name, file.BuildID(), file, nil), nil
}

// read reads a whole file of the guest. A file that the guest does not have in memory is fs.ErrNotExist.
func (o *debugOpener) read(name string) ([]byte, error) {
	absent := func(err error) error { return fmt.Errorf("%s: %w: %w", name, fs.ErrNotExist, err) }
	in, _, err := o.v.running.files.resolve(name, o.v.read)
	if err != nil {
		return nil, absent(err)
	}
	if in.Size > min(maxFile, o.left) {
		return nil, fmt.Errorf("%s: %d bytes are too many", name, in.Size)
	}
	b := make([]byte, in.Size)
	for at := uint64(0); at < in.Size; at += guest.PageSize {
		if !o.v.pageBytes(in, at/guest.PageSize, b[at:min(at+guest.PageSize, in.Size)], o.v.read) {
			return nil, absent(ErrNoPage)
		}
	}
	o.left -= in.Size
	return b, nil
}

// file returns the sections of a file. has reports which parts of it are known; nil: all.
func (o *debugOpener) file(name, buildID string, file *elf.File, has func(off, n uint64) bool) *dies.File {
	return &dies.File{Path: name, BuildID: buildID, Section: func(section string) ([]byte, error) {
		at := file.IndexDebug(section)
		if at < 0 {
			return nil, nil
		}
		var all []byte
		for n := at; n < len(file.Sections); n++ {
			// An object has each of its type units in a separate section.
			s := &file.Sections[n]
			if s.Name != file.Sections[at].Name || n > at && !strings.HasSuffix(section, ".dwo") {
				continue
			}
			if has != nil && !has(s.Off, s.Size) {
				return nil, errNotInMemory
			}
			b, err := file.Data(n, min(allDebug, o.left))
			if err != nil {
				return nil, err
			}
			if file.IsCompressed(n) || n > at {
				o.left -= uint64(len(b))
			}
			if all == nil {
				all = b[:len(b):len(b)]
			} else {
				all = append(all, b...)
			}
		}
		return all, nil
	}}
}

// separate returns the separate debug information of a file that the guest has where distributions put it, or nil.
func (o *debugOpener) separate(f *userFile, file *elf.File) *dies.File {
	id := f.buildID
	if len(id) < 3 {
		return nil
	}
	names := []string{"/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"}
	if n := file.Index(".gnu_debuglink"); n >= 0 {
		s := &file.Sections[n]
		f.mu.Lock()
		known := f.has(s.Off, s.Size)
		f.mu.Unlock()
		if b := file.Bytes(s.Off, s.Size); known {
			name, _, _ := strings.Cut(string(b), "\x00")
			dir := path.Dir(f.path)
			if name != "" && !strings.Contains(name, "/") {
				names = append(names, dir+"/"+name, dir+"/.debug/"+name, "/usr/lib/debug"+dir+"/"+name)
			}
		}
	}
	for _, name := range names {
		if d, err := o.open(name); err == nil && d.BuildID == id {
			d.Path = f.path // files beside it are looked for beside the program
			return d
		}
	}
	return nil
}

// isDebugPart reports whether a file only has a part of a program's debug information: split units, or what programs share.
func isDebugPart(file *elf.File) bool {
	some := false
	for i := range file.Sections {
		s := &file.Sections[i]
		some = some || strings.HasPrefix(s.Name, ".debug_") || strings.HasPrefix(s.Name, ".zdebug_")
		if s.Has(debugelf.SHF_EXECINSTR) {
			return false
		}
	}
	return some && len(file.Progs) == 0
}

// givePart registers a file with a part of debug information. Callers hold mu.
func (u *userFiles) givePart(name string, file *elf.File) error {
	total := uint64(file.Size())
	for at, p := range u.parts {
		if at != name {
			total += uint64(p.Size())
		}
	}
	if total > allDebug || len(u.parts) >= maxParts && u.parts[name] == nil {
		return fmt.Errorf("%d bytes of debug information in %d files: at most %d, and %d files", total, len(u.parts), allDebug, maxParts)
	}
	if u.parts == nil {
		u.parts = map[string]*elf.File{}
	}
	u.parts[name] = file
	return nil
}

// maxParts is the most files with a part of debug information.
const maxParts = 4096
