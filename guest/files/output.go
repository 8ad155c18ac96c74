package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// Output is a file to write that stays unchanged, or absent, until the first write.
// One goroutine at a time may use it.
type Output struct {
	f     *os.File
	made  bool // it did not exist before
	begun bool
}

// CreateLater is Create, except that the contents of the file stay until Begin.
func CreateLater(ctx context.Context, path string) (*Output, error) {
	return wait(ctx, func() (*Output, error) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			return &Output{f: f, made: true}, err
		}
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
		return &Output{f: f}, err
	})
}

// Same reports whether both are the same regular file: output written by one would be
// lost with the other.
func (o *Output) Same(other *Output) bool {
	a, aerr := o.f.Stat()
	b, berr := other.f.Stat()
	return aerr == nil && berr == nil && a.Mode().IsRegular() && os.SameFile(a, b)
}

// Begin truncates the file.
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

// Write implements io.Writer. It calls Begin.
func (o *Output) Write(b []byte) (int, error) {
	if err := o.Begin(); err != nil {
		return 0, err
	}
	return o.f.Write(b)
}

// Close closes the file, and removes it if CreateLater has created it and it was not
// begun.
func (o *Output) Close() error {
	var err error
	if o.made && !o.begun {
		err = os.Remove(o.f.Name())
	}
	return errors.Join(err, o.f.Close())
}
