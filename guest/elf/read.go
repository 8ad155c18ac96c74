package elf

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/files"
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
// memory that the system can take back. If the file becomes shorter later, an access
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
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b []byte
	if size > limit {
		err = &Error{Part: "file", Reason: fmt.Sprintf("%d bytes, more than %d", size, limit), Fix: "strip its debug information"}
	} else {
		b, err = read(f, size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}
