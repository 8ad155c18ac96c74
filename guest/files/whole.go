package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Whole is a file to write that appears as a whole when Commit is called, and stays
// unchanged, or absent, until then, even if the process is killed. A path to
// something other than a regular file, such as a pipe or a device, is written
// directly. Only one goroutine may use it.
type Whole struct {
	path  string
	to    string // path of a regular file, without links
	f     *os.File
	named bool    // f has a name that is not to
	other *Output // used instead of f
}

// CreateWhole opens such a file. It fails now if the file could not be written.
func CreateWhole(ctx context.Context, path string) (*Whole, error) {
	w := &Whole{path: path, to: path}
	st, err := os.Stat(path)
	switch {
	case err == nil && !st.Mode().IsRegular():
		w.other, err = CreateLater(ctx, path)
		return w, err
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		w.to = real
	}
	if w.to, err = filepath.Abs(w.to); err != nil {
		return nil, err
	}
	if w.f, w.named, err = createTemporary(filepath.Dir(w.to), 0o666); err != nil {
		no := syscall.EIO
		errors.As(err, &no)
		return nil, &fs.PathError{Op: "open", Path: path, Err: no}
	}
	return w, nil
}

// Same reports whether both would be the same file.
func (w *Whole) Same(other *Whole) bool {
	if w.other != nil || other.other != nil {
		return w.other != nil && other.other != nil && w.other.Same(other.other)
	}
	return w.to == other.to
}

// Write implements io.Writer.
func (w *Whole) Write(b []byte) (int, error) {
	if w.other != nil {
		return w.other.Write(b)
	}
	return w.f.Write(b)
}

// Commit moves the file to its place.
func (w *Whole) Commit() error {
	if w.other != nil {
		return nil
	}
	if !w.named {
		if err := link(w.f); err != nil {
			return fmt.Errorf("%s: %w", w.path, err)
		}
		w.named = true
	}
	if err := os.Rename(w.f.Name(), w.to); err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	w.named = false
	return nil
}

// Close discards output without Commit.
func (w *Whole) Close() error {
	if w.other != nil {
		return w.other.Close()
	}
	if w.named {
		os.Remove(w.f.Name())
	}
	return w.f.Close()
}
