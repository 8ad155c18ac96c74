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

// Replace replaces the contents of the file at path by the output of write: a reader
// that opens it finds either all of that, or the former contents. path is a regular
// file or a link to one, or does not exist; a new file gets the permissions perm,
// less the user's mask. Errors begin with the path; errors of write that are not
// about the file are returned unchanged.
func Replace(path string, perm fs.FileMode, write func(f *os.File) error) error {
	return replace(path, perm, replacing{}, write)
}

// ReplaceLink is Replace, but replaces a symbolic link to a regular file, or to
// nothing, by a file; the target of the link stays unchanged.
func ReplaceLink(path string, perm fs.FileMode, write func(f *os.File) error) error {
	return replace(path, perm, replacing{link: true}, write)
}

// replacing says how to replace a file.
type replacing struct {
	link   bool // replace a symbolic link itself
	synced bool // sync the file and its folder to the disk at the end
}

// ReplaceSynced is Replace, and syncs the file and its folder to the disk before it
// returns.
func ReplaceSynced(path string, perm fs.FileMode, write func(f *os.File) error) error {
	return replace(path, perm, replacing{synced: true}, write)
}

func replace(path string, perm fs.FileMode, how replacing, write func(f *os.File) error) error {
	failed := func(err error) error {
		var no syscall.Errno // without the path, which the user does not know
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
		// A link to a device, a pipe or a folder, such as /dev/stdout, is the
		// system's: it stays.
		if to, err := os.Stat(path); err == nil && !to.Mode().IsRegular() {
			return failed(irregularError(to))
		}
	case err == nil && !st.Mode().IsRegular():
		return failed(irregularError(st))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return failed(err)
	}
	to := path
	if real, err := filepath.EvalSymlinks(path); err == nil && !how.link {
		to = real // the link stays
	}
	f, named, err := createTemporary(filepath.Dir(to), perm)
	if err != nil {
		return failed(err)
	}
	defer func() {
		f.Close()
		if named {
			os.Remove(f.Name()) // it still exists if something has failed
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

// syncFolder syncs the names in a folder to the disk.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// createTemporary creates a file for writing and reading. If the file system supports
// it, the file has no name yet, so that it disappears with the process, however that
// ends; link names it. Otherwise only the user can access it, whatever perm is.
func createTemporary(dir string, perm fs.FileMode) (f *os.File, named bool, err error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, uint32(perm.Perm()))
	if err != nil {
		f, err := os.CreateTemp(dir, ".guestprobe-*")
		return f, true, err
	}
	f = os.NewFile(uintptr(fd), filepath.Join(dir, ".guestprobe-"+rand.Text()))
	if _, err := os.Stat(handle(f)); err != nil { // there is no /proc: it could not get a name
		f.Close()
		f, err := os.CreateTemp(dir, ".guestprobe-*")
		return f, true, err
	}
	return f, false, nil
}

// link gives a file of createTemporary its name.
func link(f *os.File) error {
	return unix.Linkat(unix.AT_FDCWD, handle(f), unix.AT_FDCWD, f.Name(), unix.AT_SYMLINK_FOLLOW)
}

// handle is the path of an open file in /proc.
func handle(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
