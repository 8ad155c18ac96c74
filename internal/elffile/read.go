package elffile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ReadFile reads the regular file at path, which errors begin with. One above
// limit bytes is an *Error, before anything is read.
func ReadFile(path string, limit int64) ([]byte, error) {
	return open(path, limit, func(f *os.File, size int64) ([]byte, error) {
		b := make([]byte, size)
		_, err := io.ReadFull(f, b)
		return b, err
	})
}

// MapFile is ReadFile by a mapping, for files of which little is looked at: it takes
// memory that the system can take back. Where the file is made shorter meanwhile, an access
// faults (mmap(2), SIGBUS): see runtime/debug.SetPanicOnFault. Unmap ends the mapping.
func MapFile(path string, limit int64) (b []byte, unmap func(), err error) {
	b, err = open(path, limit, func(f *os.File, size int64) ([]byte, error) {
		if size == 0 {
			return nil, nil // no mapping has no bytes
		}
		return unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE)
	})
	return b, func() {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}, err
}

// open gives the regular file at path, and its size, to read.
func open(path string, limit int64, read func(*os.File, int64) ([]byte, error)) ([]byte, error) {
	b, err := openRegular(path, limit, read)
	if err == nil {
		return b, nil
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err // it has the path, too
	}
	return nil, fmt.Errorf("%s: %w", path, err)
}

func openRegular(path string, limit int64, read func(*os.File, int64) ([]byte, error)) ([]byte, error) {
	// Asked before opening, which would wait for the other end of a named pipe.
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case st.Size() > limit:
		return nil, &Error{Part: "file", Reason: fmt.Sprintf("%d bytes, more than %d", st.Size(), limit), Fix: "strip its debug information"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return read(f, st.Size())
}
