package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// put makes a file with a text, and returns its path.
func put(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pipe makes a named pipe that is not open.
func pipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRead: regular files are read up to a limit, and nothing else is waited for.
func TestRead(t *testing.T) {
	path := put(t, "text")
	if b, err := Read(path, 4); err != nil || string(b) != "text" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := Read(path, 3); !errors.Is(err, ErrTooLarge) {
		t.Errorf("above the limit: %v", err)
	}
	for _, path := range []string{pipe(t), t.TempDir(), "/dev/zero", filepath.Join(t.TempDir(), "none"), strings.Repeat("x", 300), ""} {
		if _, err := Read(path, 4); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestInput: input through a pipe is waited for until the user gives up.
func TestInput(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	path := pipe(t)
	if _, err := Input(ctx, nil, path, 4); !errors.Is(err, context.Canceled) {
		t.Errorf("a pipe that nobody writes into: %v", err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0) // who waits there is let go
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if b, err := Input(context.Background(), strings.NewReader("text"), "-", 4); err != nil || string(b) != "text" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := Input(context.Background(), nil, put(t, "text"), 3); !errors.Is(err, ErrTooLarge) {
		t.Errorf("above the limit: %v", err)
	}
}

// TestReplaceDeviceLink: a link to something other than a regular file, such as
// /dev/stdout, stays.
func TestReplaceDeviceLink(t *testing.T) {
	for _, to := range []string{"/dev/null", t.TempDir()} {
		path := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		for name, f := range map[string]func(string, fs.FileMode, func(*os.File) error) error{"Replace": Replace, "ReplaceLink": ReplaceLink} {
			if err := f(path, 0o600, func(*os.File) error { return nil }); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
				t.Errorf("%s of a link to %s: %v", name, to, err)
			}
			if got, err := os.Readlink(path); err != nil || got != to {
				t.Errorf("%s of a link to %s: it leads to %q, %v", name, to, got, err)
			}
		}
	}
}

// TestReplace: a file has either the new or the old contents, and no other file
// remains.
func TestReplace(t *testing.T) {
	path, failed := put(t, "old"), errors.New("failed")
	write := func(text string, err error) func(*os.File) error {
		return func(f *os.File) error {
			_, e := f.WriteString(text)
			return errors.Join(e, err)
		}
	}
	if err := Replace(path, 0o600, write("half", failed)); !errors.Is(err, failed) {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "old" {
		t.Errorf("behind a failure: %q, %v", b, err)
	}
	if err := Replace(path, 0o600, func(f *os.File) error { // a file that cannot be written
		f.Close()
		return write("new", nil)(f)
	}); !errors.Is(err, os.ErrClosed) || !strings.HasPrefix(err.Error(), path+": ") {
		t.Error(err)
	}
	if err := Replace(path, 0o600, write("new", nil)); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
		t.Errorf("%q, %v", b, err)
	}
	alone := func(when string) {
		t.Helper()
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
			t.Errorf("%s there are %v, %v", when, left, err)
		}
	}
	alone("behind")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := Replace(link, 0o644, write("new", nil)); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(link); err != nil || to != path {
		t.Errorf("a link leads to %s: %v", to, err)
	}
	alone("behind a link")
	if err := ReplaceLink(link, 0o600, write("other", nil)); err != nil {
		t.Error(err)
	}
	if st, err := os.Lstat(link); err != nil || !st.Mode().IsRegular() {
		t.Errorf("the link is %v, %v", st.Mode(), err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
		t.Errorf("where the link led there is %q, %v", b, err)
	}
	dangling := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink(filepath.Join(t.TempDir(), "nothing"), dangling), ReplaceLink(dangling, 0o600, write("other", nil))); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(dangling); err != nil || string(b) != "other" {
		t.Errorf("in the place of a link to nothing there is %q, %v", b, err)
	}
	// Who is killed leaves nothing, where the file system can do that.
	if fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_RDWR, 0o600); err == nil {
		unix.Close(fd)
		if err := Replace(path, 0o600, func(f *os.File) error { alone("meanwhile"); return write("newer", nil)(f) }); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "newer" {
			t.Errorf("%q, %v", b, err)
		}
		alone("behind that")
	}
	for path, want := range map[string]error{
		pipe(t): nil, t.TempDir(): nil, filepath.Join(t.TempDir(), "none", "x"): fs.ErrNotExist, strings.Repeat("x", 300): syscall.ENAMETOOLONG,
	} {
		err := Replace(path, 0o600, write("new", nil))
		if err == nil || !strings.HasPrefix(err.Error(), path+": ") || want != nil && !errors.Is(err, want) || strings.Contains(err.Error(), ".guestprobe-") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestLater: a file is as it was, or not there, until there is something to write.
func TestLater(t *testing.T) {
	for what, was := range map[string]string{"a file": "old text", "none": ""} {
		path := filepath.Join(t.TempDir(), "f")
		if was != "" {
			path = put(t, was)
		}
		open := func() *Output {
			t.Helper()
			o, err := CreateLater(context.Background(), path)
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		if err := open().Close(); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(path); string(b) != was || (err == nil) != (was != "") {
			t.Errorf("%s, not begun: %q, %v", what, b, err)
		}
		o := open()
		if _, err := o.Write([]byte("new")); err != nil {
			t.Error(err)
		}
		if err := errors.Join(o.Begin(), o.Close()); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(path); string(b) != "new" || err != nil {
			t.Errorf("%s: %q, %v", what, b, err)
		}
	}
	o, err := CreateLater(context.Background(), "/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Write([]byte("text")); err != nil {
		t.Error(err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if _, err := CreateLater(context.Background(), filepath.Join(t.TempDir(), "none", "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestWholly: a file is as it was until all of it is there, whatever becomes of who writes it.
func TestWholly(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	path := filepath.Join(dir, "report")
	w, err := CreateWhole(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there before it is done: %v", err)
	}
	same, err := CreateWhole(ctx, filepath.Join(dir, ".", "report"))
	if err != nil || !w.Same(same) {
		t.Errorf("not the same file: %v", err)
	}
	if err := same.Close(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(w.Commit(), w.Close()); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "half" {
		t.Errorf("%q, %v", b, err)
	}
	given, err := CreateWhole(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = given.Write([]byte("other"))
	if err := given.Close(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "half" {
		t.Errorf("given up: %q, %v", b, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("there are %v, %v", left, err)
	}
	if _, err := CreateWhole(ctx, filepath.Join(dir, "none", "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	null, err := CreateWhole(ctx, "/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	_, werr := null.Write([]byte("x"))
	if err := errors.Join(werr, null.Commit(), null.Close()); err != nil {
		t.Error(err)
	}
}
