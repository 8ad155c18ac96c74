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

// ErrUntrusted is wrapped by errors of Trusted and Private.
var ErrUntrusted = errors.New("others could have put something else there")

// maxLinks bounds the symbolic links on the way to a file.
const maxLinks = 40

// Trusted returns an error if somebody else could replace or change what path leads to: it, each folder on the way to it, and
// each symbolic link followed on the way, must belong to root, to us, to who called sudo, or to a user of also, and nobody else
// may write to it. In a sticky folder that others may write to, as /tmp, what is ours stays ours. These are the rules of sshd's
// StrictModes, which on Debian allow a user's own group, too. What is not there is no error; errors begin with the path.
func Trusted(path string, also ...int) error { return trusted(path, true, also) }

// Private is Trusted for a file or folder that we made: path itself must not be a symbolic link.
func Private(path string, also ...int) error { return trusted(path, false, also) }

func trusted(path string, follow bool, also []int) error {
	owners := append([]int{0, os.Geteuid()}, also...)
	// Who starts a program by sudo may have its files at home.
	if n, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		owners = append(owners, n)
	}
	failed := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", path, ErrUntrusted, fmt.Sprintf(format, args...))
	}
	// What .. is of depends on where a link before it leads, as for the kernel: nothing is left out of the path before.
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
			open = false // the user's own group, which nobody else is in
		}
		sticky := st.IsDir() && st.Mode()&fs.ModeSticky != 0
		if open && !(sticky && !last) {
			return failed("users other than its owner may write to %s (mode %04o). 'chmod go-w' it, or take another place", next, st.Mode().Perm())
		}
		at = next
	}
	return nil
}

// names are the parts of a path.
func names(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}
