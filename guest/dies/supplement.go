package dies

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
)

// MissingError is returned if a file that the debug information refers to is not
// found, or is of another build.
type MissingError struct {
	What  string   // the contents of the file, such as "unit main.c"
	Name  string   // as in the debug information
	Tried []string // the places searched
	Other string   // a file found there of another build; "" for none
	Lacks string   // the package that should contain it, but does not; "" for none
	Fix   string
}

// Error says where the file was looked for, and what to do.
func (e *MissingError) Error() string {
	why := "is not found"
	switch {
	case e.Other != "":
		why = fmt.Sprintf("is not found: %s is of another build", e.Other)
	case len(e.Tried) > 0:
		why = fmt.Sprintf("is not found at %s", strings.Join(e.Tried, ", "))
	}
	if e.Lacks != "" {
		why += fmt.Sprintf(", and the package %s does not have it", e.Lacks)
	}
	return fmt.Sprintf("%s is in %s, which %s: %s", e.What, e.Name, why, e.Fix)
}

// Is makes errors.Is find fs.ErrNotExist.
func (e *MissingError) Is(target error) bool { return target == fs.ErrNotExist }

// supplement is the file with entries shared by several programs (dwz -m).
type supplement struct {
	path   string
	region *region
	sec    *sections
}

// loadSupplement opens the supplementary file, if one is named.
func (d *Data) loadSupplement(f *File) error {
	name, id, err := supplementName(f)
	if err != nil || name == "" {
		return err
	}
	file, err := d.openSupplement(name, id)
	if err != nil {
		return err
	}
	d.Paths = append(d.Paths, file.Path)
	info, err := file.Section(".debug_info")
	if err != nil {
		return fmt.Errorf("%s: %w", file.Path, err)
	}
	s := &supplement{path: file.Path}
	if s.sec, err = readSections(file, ""); err != nil {
		return fmt.Errorf("%s: %w", file.Path, err)
	}
	if s.region, err = d.add(info); err != nil {
		return err
	}
	d.main.sup = s
	return nil
}

// supplementName returns the name of the file and its build ID: from .gnu_debugaltlink, or from .debug_sup (DWARF 5, 7.3.6).
func supplementName(f *File) (name, id string, err error) {
	b, err := f.Section(".gnu_debugaltlink")
	if err != nil {
		return "", "", err
	}
	if len(b) > 0 {
		c := &cursor{b: b}
		name := c.cstring()
		if c.bad || len(name) == 0 {
			return "", "", fmt.Errorf("%w: .gnu_debugaltlink names no file", errDamaged)
		}
		return string(name), hex.EncodeToString(c.b), nil
	}
	if b, err = f.Section(".debug_sup"); err != nil || len(b) == 0 {
		return "", "", err
	}
	c := &cursor{b: b}
	version, is := c.u16(), c.u8()
	file := c.cstring()
	sum := c.take(c.uleb())
	if c.bad || version < 2 || version > 5 {
		return "", "", fmt.Errorf("%w: .debug_sup", errDamaged)
	}
	if is != 0 {
		return "", "", errors.New("this is the supplementary file of others (dwz -m), which have the program's debug information: name one of those")
	}
	return string(file), hex.EncodeToString(sum), nil
}

// openSupplement looks for the file as gdb does: by its name relative to the folder
// of the program's file, and by its build ID in the folders with debug information.
func (d *Data) openSupplement(name, id string) (*File, error) {
	missing := &MissingError{What: "a part of it that programs share (dwz -m)", Name: name,
		Fix: fmt.Sprintf("put the file of build ID %s there", id)}
	for _, path := range d.supplementPaths(name, id) {
		missing.Tried = append(missing.Tried, path)
		f, err := d.openOther(path)
		switch {
		case isAbsent(err):
			continue
		case err != nil:
			return nil, err
		}
		if own, err := supplementID(f); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		} else if id != "" && own != id {
			missing.Other = path
			continue
		}
		return f, nil
	}
	if d.file.Path == "" {
		missing.Fix = "name the program's file, so that this one is looked for beside it"
	}
	return nil, missing
}

// supplementID identifies a supplementary file: its build ID, or the checksum in its
// .debug_sup.
func supplementID(f *File) (string, error) {
	b, err := f.Section(".debug_sup")
	if err != nil || len(b) == 0 {
		return f.BuildID, err
	}
	c := &cursor{b: b}
	c.u16()
	c.u8()
	c.cstring()
	if sum := c.take(c.uleb()); !c.bad && len(sum) > 0 {
		return hex.EncodeToString(sum), nil
	}
	return f.BuildID, nil
}

func (d *Data) supplementPaths(name, id string) (paths []string) {
	if d.file.Path == "" {
		return nil
	}
	roots := []string{"/usr/lib/debug"}
	if root, _, ok := strings.Cut(d.file.Path, "/.build-id/"); ok {
		roots = append([]string{root}, roots...)
	}
	paths = d.pathsBeside(name, "")
	if len(id) > 2 {
		for _, root := range roots {
			paths = append(paths, filepath.Join(root, ".build-id", id[:2], id[2:]+".debug"))
		}
	}
	return paths
}

// pathsBeside returns the places to look for a file named in the program's file: by
// its name, from dir if that is not "", from the folder of the program's file and of
// the target of that if it is a link, and in these folders themselves.
func (d *Data) pathsBeside(name, dir string) (paths []string) {
	add := func(path string) {
		for _, p := range paths {
			if p == path {
				return
			}
		}
		paths = append(paths, path)
	}
	folders := []string{filepath.Dir(d.file.Path)}
	if real, err := filepath.EvalSymlinks(d.file.Path); err == nil {
		folders = append(folders, filepath.Dir(real))
	}
	switch {
	case filepath.IsAbs(name):
		add(filepath.Clean(name))
	default:
		if filepath.IsAbs(dir) {
			add(filepath.Join(dir, name))
		}
		for _, f := range folders {
			add(filepath.Join(f, name))
		}
	}
	for _, f := range folders {
		add(filepath.Join(f, filepath.Base(name)))
	}
	return paths
}

// isAbsent reports whether a file does not exist, or is not accessible: another place
// may have it.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR)
}

// openOther opens a file next to the program's.
func (d *Data) openOther(path string) (*File, error) {
	if d.open == nil || bytes.IndexByte([]byte(path), 0) >= 0 {
		return nil, fs.ErrNotExist
	}
	if len(d.Paths) == maxFiles {
		return nil, fmt.Errorf("its units are in more than %d files: make a package of them (dwp -e %s)", maxFiles, d.file.Path)
	}
	return d.open(path)
}
