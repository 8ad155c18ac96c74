package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrTooLarge is wrapped in the error for a file above its limit.
var ErrTooLarge = errors.New("the file is too large")

// Open opens the regular file at path for reading, and returns its size. It does not
// block, as opening a named pipe would, and never opens devices. Errors begin with
// the path.
func Open(path string) (*os.File, int64, error) {
	f, size, err := open(path)
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err // it contains the path too
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	return f, size, nil
}

func open(path string) (*os.File, int64, error) {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return nil, 0, errors.Join(err, irregularError(st))
	}
	// It may have been replaced by now.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil, 0, errors.Join(err, irregularError(st), f.Close())
	}
	return f, st.Size(), nil
}

// irregularError is the error for something that is not a regular file.
func irregularError(st fs.FileInfo) error {
	if st == nil {
		return nil
	}
	return errors.New("not a regular file")
}

// Read reads the regular file at path. A file above limit bytes is not read:
// ErrTooLarge. Errors begin with the path.
func Read(path string, limit int64) ([]byte, error) {
	f, size, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("%s: %w: %d bytes, more than %d", path, ErrTooLarge, size, limit)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}
