package linux

import (
	"bytes"
	"cmp"
	debugelf "debug/elf"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// A file that is only partly, or not at all, in the guest's memory can be known by a
// copy that the user gives. Its names and its code then come from the copy, and each
// page of the file in the guest must equal the copy's, whenever it appears.

// ErrOtherFile is returned if a copy is not one of the guest's file.
var ErrOtherFile = errors.New("it is not a copy of the guest's file")

// errUsed is returned for a second copy of a file that has probes.
var errUsed = errors.New("another copy of it was given, and there are probes in that: detach them first")

// Given describes a file that is known by a copy.
type Given struct {
	Path      string // without symbolic links, if the guest has the file in memory
	BuildID   string // hexadecimal digits; "" = none
	Functions int    // functions with names
	Pages     int    // pages in the guest's memory, all equal to the copy's
	Present   bool   // the guest has the file in memory
	NamesOnly bool   // the copy is separate debug information
}

// Give registers a copy of the file at path, or separate debug information of it,
// which has its names and its build ID, or a part of that, as a .dwo or .dwp file. used reports whether there are probes in a
// range of code. Errors are ErrOtherFile and errors that say why the copy cannot be
// used; then nothing has changed.
func (v *View) Give(name string, b []byte, used func(guest.Range) bool) (Given, error) {
	fail := func(err error) (Given, error) { return Given{}, fmt.Errorf("%s: %w", name, err) }
	if !strings.HasPrefix(name, "/") || path.Clean(name) != name || len(name) > maxPath {
		return fail(errors.New("it is no path in the guest: it begins with a slash, and has no . or .. in it"))
	}
	if why := v.GoneReason(); why != "" {
		return fail(errors.New(why))
	}
	file, err := elf.Parse(b)
	if err != nil {
		return fail(err)
	}
	v.files.mu.Lock()
	defer v.files.mu.Unlock()
	v.files.given++
	if isDebugPart(file) {
		if err := v.files.givePart(name, file); err != nil {
			return fail(err)
		}
		return Given{Path: name, BuildID: file.BuildID(), NamesOnly: true}, nil
	}
	var f *userFile
	names := isDebug(file)
	if names {
		f, err = v.giveNames(name, file)
	} else {
		f, err = v.giveCopy(name, b, used)
	}
	if err != nil {
		return fail(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	g := Given{Path: f.path, BuildID: f.buildID, Functions: len(f.names.Load().Symbols()), Present: f.inode.Addr != 0, NamesOnly: names}
	for i := range f.have {
		if _, err := v.running.files.Page(f.inode, uint64(i), v.read); g.Present && err == nil {
			g.Pages++
		}
	}
	return g, nil
}

// isDebug reports whether a file describes code that it does not contain (objcopy
// --only-keep-debug).
func isDebug(file *elf.File) bool {
	some := false
	for i := range file.Sections {
		if s := &file.Sections[i]; s.Has(debugelf.SHF_EXECINSTR) {
			if !s.Is(debugelf.SHT_NOBITS) {
				return false
			}
			some = true
		}
	}
	return some
}

// giveNames registers the names of separate debug information. Callers hold the
// files' mu.
func (v *View) giveNames(name string, file *elf.File) (*userFile, error) {
	f, err := v.openLocked(name)
	if err != nil {
		return nil, fmt.Errorf("this is debug information, which needs the program, too: %w: run it once, or give a copy of it first", err)
	}
	switch id := file.BuildID(); {
	case f.buildID == "":
		return nil, errors.New("the guest does not have its build ID in memory, or it has none: give a copy of the program")
	case id != f.buildID:
		return nil, fmt.Errorf("%w: build ID %s, and the guest's is %s", ErrOtherFile, id, f.buildID)
	}
	names := f.namesOf(file, func(off, n uint64) bool { return file.Bytes(off, n) != nil })
	if names.none != "" {
		return nil, errors.New(names.none)
	}
	f.names.Store(names)
	f.debug.Store(file)
	return f, nil
}

// giveCopy registers a copy. Callers hold the files' mu.
func (v *View) giveCopy(name string, b []byte, used func(guest.Range) bool) (*userFile, error) {
	in, at, err := v.running.files.resolve(name, v.read)
	there := err == nil
	var old *userFile
	if there {
		old = v.files.fileOf(in, v.running.files, v.read)
	} else {
		at = name
	}
	if old == nil {
		old = cmp.Or(v.files.awaitedCopy(at), v.files.awaitedCopy(name))
	}
	switch {
	case old == nil || !old.given:
	case bytes.Equal(old.data, b) && (!there || old.present()):
		return old, nil
	case used(guest.Range{Start: old.base, End: old.base + 1<<fileShift}):
		return nil, errUsed
	}
	f, err := v.files.newFile(at, uint64(len(b)))
	if err != nil {
		return nil, err
	}
	if old != nil && !old.given { // bytes of its code that are already known stay
		f.base, f.path = old.base, old.path
	}
	f.data, f.given = b, true
	for i := range f.have {
		f.have[i] = true
	}
	if err := f.parse(); err != nil {
		return nil, err
	}
	v.files.readFrames(f, v)
	if there {
		if err := f.adopt(v, in, old, v.read); err != nil {
			return nil, err
		}
	}
	if i := int((f.base - fileCode) >> fileShift); i < len(v.files.all) {
		v.files.put(i, f)
		return f, nil
	}
	if v.files.put(len(v.files.all), f); old != nil {
		old.mu.Lock()
		old.given, old.inode = false, inode{}
		old.mu.Unlock()
	}
	return f, nil
}

// present reports whether the guest had the file in memory.
func (f *userFile) present() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inode.Addr != 0
}

// awaitedCopy returns the copy given for the file at path, if the guest did not have
// the file in memory so far, or nil. Callers hold mu.
func (u *userFiles) awaitedCopy(path string) *userFile {
	for _, f := range u.all {
		f.mu.Lock()
		found := f.given && f.inode.Addr == 0 && f.path == path
		f.mu.Unlock()
		if found {
			return f
		}
	}
	return nil
}

// adopt makes in the guest's file that f is a copy of, if each page of the file in
// the guest equals the copy's. Its pages contain no probes, unless the file is known
// as old, which then has the bytes without probes. Callers hold the files' mu.
func (f *userFile) adopt(v *View, in inode, old *userFile, read Read) error {
	if in.Size != uint64(len(f.data)) {
		return fmt.Errorf("%w: %d bytes, and the guest's has %d", ErrOtherFile, len(f.data), in.Size)
	}
	var page [guest.PageSize]byte
	for i := range f.have {
		off := i * guest.PageSize
		n := min(guest.PageSize, len(f.data)-off)
		b := page[:n]
		if old != nil && !old.given {
			if !old.readPage(v, uint64(i), b) {
				continue
			}
		} else if !v.pageBytes(in, uint64(i), b, read) {
			continue
		}
		if !bytes.Equal(b, f.data[off:off+n]) {
			return fmt.Errorf("%w: there are other bytes in the %d at offset %#x", ErrOtherFile, n, off)
		}
	}
	f.mu.Lock()
	f.inode = in
	f.mu.Unlock()
	return nil
}

// readPage reads the known bytes of a page.
func (f *userFile) readPage(v *View, index uint64, b []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fill(v, index) && copy(b, f.data[index*guest.PageSize:]) == len(b)
}

// pageBytes reads a page of a file, if the guest has it in memory before and after
// the read.
func (v *View) pageBytes(in inode, index uint64, b []byte, read Read) bool {
	x := v.running.files
	p, err := x.Page(in, index, read)
	base := v.running.tasks.directBase(read)
	if err != nil || base == 0 || read(base+guest.GVA(p.PA), b) != nil {
		return false
	}
	again, err := x.Page(in, index, read)
	return err == nil && again.PA == p.PA
}

// lookAgain is how long a missing file is not looked for again.
const lookAgain = 50 * time.Millisecond

// guestInode returns the guest's inode of the file. Errors are ErrOtherFile and any
// error of Files.resolve.
func (f *userFile) guestInode(v *View, read Read) (inode, error) {
	f.mu.Lock()
	in, sought, why := f.inode, f.sought, f.whyNot
	f.mu.Unlock()
	if in.Addr != 0 {
		if now, mode, err := v.running.files.inodeAt(in.Addr, read); err == nil && mode == modeRegular && now.isSame(in) && now.Mapping == in.Mapping {
			return now, nil
		}
	}
	if time.Since(sought) < lookAgain {
		return inode{}, why
	}
	v.files.mu.Lock()
	defer v.files.mu.Unlock()
	now, _, err := v.running.files.resolve(f.path, read)
	f.mu.Lock()
	in = f.inode
	f.mu.Unlock()
	switch {
	case err != nil:
	case in.Addr != 0 && !now.isSame(in):
		err = errNoFile
	case in.Addr != 0:
	case v.files.fileOf(now, v.running.files, read) != nil:
		err = errNoFile // it is known by another name
	default:
		err = f.adopt(v, now, nil, read)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.sought, f.whyNot = time.Now(), err
		return inode{}, err
	}
	f.inode = now
	return now, nil
}

// FileBytes returns the known bytes of the page of a file at the View's address addr:
// from the beginning of the page on, fewer at the end of the file, or nil. They must
// not be changed.
func (v *View) FileBytes(addr guest.GVA) []byte {
	f := v.file(addr)
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	off := uint64(addr-f.base) &^ (guest.PageSize - 1)
	if off >= uint64(len(f.data)) || !f.have[off/guest.PageSize] {
		return nil
	}
	return f.data[off:min(off+guest.PageSize, uint64(len(f.data)))]
}

// FilePath returns the path of the file that contains addr, or "".
func (v *View) FilePath(addr guest.GVA) string {
	if f := v.file(addr); f != nil {
		return f.path
	}
	return ""
}
