package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Replace makes the file at path what write writes: whoever opens it finds all of that, or what was there before. path is
// a regular file or a link to one, or nothing is there; what is made may be used as perm says, less the user's mask. Errors begin with the path, those of write that are not about the file are as
// they are.
func Replace(path string, perm fs.FileMode, write func(f *os.File) error) error {
	return replace(path, perm, replacing{}, write)
}

// ReplaceLink is Replace, but takes the place of a symbolic link: what that leads to stays as it is.
func ReplaceLink(path string, perm fs.FileMode, write func(f *os.File) error) error {
	return replace(path, perm, replacing{link: true}, write)
}

// replacing says how a file is replaced.
type replacing struct {
	link   bool // a symbolic link itself
	synced bool // the file and its folder are on the disk at the end
}

// ReplaceSynced is Replace, and has the file and its folder on the disk when it returns.
func ReplaceSynced(path string, perm fs.FileMode, write func(f *os.File) error) error {
	return replace(path, perm, replacing{synced: true}, write)
}

func replace(path string, perm fs.FileMode, how replacing, write func(f *os.File) error) error {
	failed := func(err error) error {
		var no syscall.Errno // without the path, which is not the user's
		if errors.As(err, &no) {
			err = no
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	look := os.Stat
	if how.link {
		look = os.Lstat
	}
	switch st, err := look(path); {
	case err == nil && how.link && st.Mode()&fs.ModeSymlink != 0:
	case err == nil && !st.Mode().IsRegular():
		return failed(irregular(st))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return failed(err)
	}
	to := path
	if real, err := filepath.EvalSymlinks(path); err == nil && !how.link {
		to = real // the link stays
	}
	f, named, err := temporary(filepath.Dir(to), perm)
	if err != nil {
		return failed(err)
	}
	defer func() {
		f.Close()
		if named {
			os.Remove(f.Name()) // it is there when something has failed
		}
	}()
	if err := write(f); err != nil {
		if e := (*fs.PathError)(nil); errors.As(err, &e) && e.Path == f.Name() {
			return failed(err)
		}
		return err
	}
	if how.synced {
		if err := f.Sync(); err != nil {
			return failed(err)
		}
	}
	if !named {
		if err := link(f); err != nil {
			return failed(err)
		}
		named = true
	}
	if err := errors.Join(f.Close(), os.Rename(f.Name(), to)); err != nil {
		return failed(err)
	}
	if how.synced {
		if err := syncFolder(filepath.Dir(to)); err != nil {
			return failed(err)
		}
	}
	return nil
}

// syncFolder has the names in a folder on the disk.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// temporary makes a file to write and read. Where the file system can do that it has no name yet, so that it goes with
// the process, however that ends; link gives it the one that it says. Elsewhere it is the user's alone whatever perm is.
func temporary(dir string, perm fs.FileMode) (f *os.File, named bool, err error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, uint32(perm.Perm()))
	if err != nil {
		f, err := os.CreateTemp(dir, ".guestprobe-*")
		return f, true, err
	}
	f = os.NewFile(uintptr(fd), filepath.Join(dir, ".guestprobe-"+rand.Text()))
	if _, err := os.Stat(handle(f)); err != nil { // there is no /proc: it could have no name
		f.Close()
		f, err := os.CreateTemp(dir, ".guestprobe-*")
		return f, true, err
	}
	return f, false, nil
}

// link gives a file of temporary its name.
func link(f *os.File) error {
	return unix.Linkat(unix.AT_FDCWD, handle(f), unix.AT_FDCWD, f.Name(), unix.AT_SYMLINK_FOLLOW)
}

// handle is where /proc has an open file.
func handle(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
