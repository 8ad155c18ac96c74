package elffile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ReadFile reads the regular file at path, which errors begin with. One above
// limit bytes is an *Error, before anything is read.
func ReadFile(path string, limit int64) ([]byte, error) {
	b, err := readFile(path, limit)
	if err == nil {
		return b, nil
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err // it has the path, too
	}
	return nil, fmt.Errorf("%s: %w", path, err)
}

func readFile(path string, limit int64) ([]byte, error) {
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
	b := make([]byte, st.Size())
	_, err = io.ReadFull(f, b)
	return b, err
}
