package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Input reads a user's input: the file at path, which may be a pipe, or in if it is
// not nil; path is then its name in errors. The end of ctx ends the wait for a writer
// of a pipe, or for typed input; partial input is then lost.
func Input(ctx context.Context, in io.Reader, path string, limit int64) ([]byte, error) {
	b, err := wait(ctx, func() ([]byte, error) {
		if in == nil {
			f, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			return io.ReadAll(io.LimitReader(f, limit+1))
		}
		return io.ReadAll(io.LimitReader(in, limit+1))
	})
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, fmt.Errorf("%s: %w", path, err)
	case err != nil:
		return nil, err
	case int64(len(b)) > limit:
		return nil, fmt.Errorf("%s: %w: more than %d bytes", path, ErrTooLarge, limit)
	}
	return b, nil
}

// Create creates the file at path for writing. The end of ctx ends the wait for a
// reader of a named pipe.
func Create(ctx context.Context, path string) (*os.File, error) {
	return wait(ctx, func() (*os.File, error) {
		// For writing only: a pipe that is also open for reading accepts data that
		// will never be read (fifo(7)).
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	})
}

// wait waits for the result of do, which continues on its own if ctx ends.
func wait[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := do()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
