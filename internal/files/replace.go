package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Replace makes the file at path what write writes: whoever opens it finds all of that, or what was there before. path is
// a regular file, or nothing is there. Errors begin with the path, those of write that are not about the file are as
// they are.
func Replace(path string, write func(f *os.File) error) error {
	failed := func(err error) error {
		var no syscall.Errno // without the path, which is not the user's
		if errors.As(err, &no) {
			err = no
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	switch st, err := os.Stat(path); {
	case err == nil && !st.Mode().IsRegular():
		return failed(irregular(st))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return failed(err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".guestprobe-*")
	if err != nil {
		return failed(err)
	}
	defer func() {
		f.Close()
		os.Remove(f.Name()) // it is there when something has failed
	}()
	if err := write(f); err != nil {
		if e := (*fs.PathError)(nil); errors.As(err, &e) && e.Path == f.Name() {
			return failed(err)
		}
		return err
	}
	if err := errors.Join(f.Close(), os.Rename(f.Name(), path)); err != nil {
		return failed(err)
	}
	return nil
}
