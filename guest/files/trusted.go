package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ErrUntrusted is wrapped by errors of CheckTrusted and CheckPrivate.
var ErrUntrusted = errors.New("others could have put something else there")

// maxLinks bounds the symbolic links on the way to a file.
const maxLinks = 40

// CheckTrusted returns an error if another user could replace or change the file at
// path: the file, each folder on the way to it, and each symbolic link on the way
// must belong to root, to us, to the user who called sudo, or to a user in also, and
// must not be writable by others. In a sticky folder that others may write to, such
// as /tmp, our files remain ours. These are the rules of sshd's StrictModes, which on
// Debian also allow a user's own group. A missing file is not an error; errors begin
// with the path.
func CheckTrusted(path string, also ...int) error { return checkTrusted(path, true, also) }

// CheckPrivate is CheckTrusted for a file or folder that we made: path itself must not be a symbolic link.
func CheckPrivate(path string, also ...int) error { return checkTrusted(path, false, also) }

func checkTrusted(path string, follow bool, also []int) error {
	owners := append([]int{0, os.Geteuid()}, also...)
	// A user who starts a program by sudo may have its files at home.
	if n, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		owners = append(owners, n)
	}
	failed := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", path, ErrUntrusted, fmt.Sprintf(format, args...))
	}
	// The meaning of .. depends on the target of a link before it, as in the kernel:
	// the path is not cleaned first.
	abs := path
	if !filepath.IsAbs(path) {
		wd, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		abs = wd + "/" + path
	}
	at := "/"
	todo := append([]string{""}, names(abs)...)
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		last := len(todo) == 0
		next := filepath.Join(at, name) // of a folder and a name, or the folder's own
		st, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			if e := (*fs.PathError)(nil); errors.As(err, &e) {
				err = e.Err
			}
			return fmt.Errorf("%s: %w", path, err)
		}
		owner := st.Sys().(*syscall.Stat_t).Uid
		if !slices.Contains(owners, int(owner)) {
			return failed("%s belongs to user %d. Give it to user %d, or take another place", next, owner, os.Geteuid())
		}
		if st.Mode().Type() == fs.ModeSymlink {
			if last && !follow {
				return failed("%s is a symbolic link. Give the path that it leads to", next)
			}
			if links++; links > maxLinks {
				return fmt.Errorf("%s: %w", path, syscall.ELOOP)
			}
			to, err := os.Readlink(next)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if filepath.IsAbs(to) {
				at = "/"
			}
			todo = append(names(to), todo...)
			if len(todo) == 0 { // a link to /
				todo = []string{""}
			}
			continue
		}
		open := st.Mode().Perm()&0o022 != 0
		if gid := st.Sys().(*syscall.Stat_t).Gid; owner != 0 && gid == owner && st.Mode().Perm()&0o002 == 0 {
			open = false // the user's own group, which has no other members
		}
		sticky := st.IsDir() && st.Mode()&fs.ModeSticky != 0
		if open && !(sticky && !last) {
			return failed("users other than its owner may write to %s (mode %04o). 'chmod go-w' it, or take another place", next, st.Mode().Perm())
		}
		at = next
	}
	return nil
}

// names returns the parts of a path.
func names(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}
