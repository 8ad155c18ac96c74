package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// Output is a file to write that is as it was, or not there, until there is something to write. One goroutine at a time
// may use it.
type Output struct {
	f     *os.File
	made  bool // it was not there before
	begun bool
}

// Later is Create, but for what is in the file, which stays until Begin.
func Later(ctx context.Context, path string) (*Output, error) {
	return wait(ctx, func() (*Output, error) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			return &Output{f: f, made: true}, err
		}
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
		return &Output{f: f}, err
	})
}

// Same reports whether both are one regular file: what is written to it by one is gone with the other.
func (o *Output) Same(other *Output) bool {
	a, aerr := o.f.Stat()
	b, berr := other.f.Stat()
	return aerr == nil && berr == nil && a.Mode().IsRegular() && os.SameFile(a, b)
}

// Begin takes out what was in the file.
func (o *Output) Begin() error {
	if o.begun {
		return nil
	}
	o.begun = true
	if st, err := o.f.Stat(); err != nil || !st.Mode().IsRegular() {
		return err
	}
	return o.f.Truncate(0)
}

// Write implements io.Writer. It begins.
func (o *Output) Write(b []byte) (int, error) {
	if err := o.Begin(); err != nil {
		return 0, err
	}
	return o.f.Write(b)
}

// Close closes the file, and removes one that Later has made and that was not begun.
func (o *Output) Close() error {
	var err error
	if o.made && !o.begun {
		err = os.Remove(o.f.Name())
	}
	return errors.Join(err, o.f.Close())
}
