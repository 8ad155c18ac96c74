package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrForeignLock is wrapped by errors of Lock and CheckLock about a file that was not
// made by Lock.
var ErrForeignLock = errors.New("is not a file of ours: remove it")

// LockedError says that another process has the lock.
type LockedError struct{ PID string } // as written by that process; may be empty

// Error names the process.
func (e *LockedError) Error() string { return "process " + e.PID + " has it" }

// Lock opens and locks a file, creating it if necessary, and writes our process
// number into it for the error message of the next process. The lock ends when the
// file is closed, or with the process. The former owner may have removed the file
// since it was opened here: then the lock is on a file without a name, and Lock tries
// again. The error is a *LockedError, or names the file.
func Lock(path string) (*os.File, error) {
	for {
		f, err := openLock(path)
		if err != nil {
			return nil, err
		}
		var held, named unix.Stat_t
		if err := errors.Join(unix.Fstat(int(f.Fd()), &held), unix.Lstat(path, &named)); err == nil && held.Ino == named.Ino && held.Dev == named.Dev {
			// The content is only for that message; a full disk is no reason not to
			// start.
			if f.Truncate(0) == nil {
				_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
			}
			return f, nil
		}
		f.Close()
	}
}

// openLock opens and locks the file that is now at path.
func openLock(path string) (_ *os.File, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("lock file %s: a link, %w", path, ErrForeignLock)
	}
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// A hard link could make us write to any file of ours.
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 || int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("lock file %s: %w", path, ErrForeignLock)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			var pid [16]byte
			n, _ := f.Read(pid[:])
			return nil, &LockedError{strings.TrimSpace(string(pid[:n]))}
		}
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	return f, nil
}

// CheckLock checks that the lock file at path is one of ours, or can be created, as
// Lock does.
func CheckLock(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("lock file: %w", err)
	case st.Mode().Type() == fs.ModeSymlink:
		return fmt.Errorf("lock file %s: a link, %w", path, ErrForeignLock)
	}
	if x := st.Sys().(*syscall.Stat_t); !st.Mode().IsRegular() || x.Nlink > 1 || int(x.Uid) != os.Geteuid() {
		return fmt.Errorf("lock file %s: %w", path, ErrForeignLock)
	}
	if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
		return &fs.PathError{Op: "lock file: open", Path: path, Err: err}
	}
	return nil
}
