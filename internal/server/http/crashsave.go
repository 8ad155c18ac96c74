package http

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// errNoCrash: the guest is not what it was when it crashed.
var errNoCrash = errors.New("the guest was reset meanwhile")

// saveCrash saves a guest that has come to its end where --save-on-crash says, and returns what the log is to say of
// that. Without the flag it returns nil. still reports whether a snapshot is of that end.
func (s *server) saveCrash(still func(*snapshot.Snapshot) bool) []any {
	path := s.opt.saveOnCrash
	if path == "" {
		return nil
	}
	snap, err := s.save()
	switch {
	case err != nil:
	case !still(snap):
		err = errNoCrash
	default:
		err = files.ReplaceLink(path, 0o600, func(f *os.File) error {
			_, err := snap.WriteTo(f)
			return err
		})
	}
	if err != nil {
		return []any{"notSaved", err}
	}
	return []any{"saved", path, "look", "guestprobe --core " + path + " bt --all"}
}

// hasCrashed reports whether a snapshot is of a guest that has crashed.
func hasCrashed(snap *snapshot.Snapshot) bool {
	return snap.Config.Ended == string(machine.PhaseCrashed)
}

// kernelPanicked notes whether the kernel of a Linux guest has panicked.
func (s *server) kernelPanicked(now *bool) bool {
	*now = false
	if l, ok := s.guest.(kernelGuest); ok && s.opt.saveOnCrash != "" {
		k, _ := l.Kernel()
		*now = k.System == machine.KernelPanicked
	}
	return *now
}

// checkSaveOnCrash refuses a file that cannot be there when it is needed, and makes its path good for another directory.
func (o *options) checkSaveOnCrash() error {
	if o.saveOnCrash == "" {
		return nil
	}
	path, err := filepath.Abs(o.saveOnCrash)
	if err != nil {
		return fmt.Errorf("--save-on-crash: %w", err)
	}
	o.saveOnCrash = path
	if st, err := os.Stat(filepath.Dir(path)); err != nil {
		return command.Usagef("--save-on-crash: %w", err)
	} else if !st.IsDir() {
		return command.Usagef("--save-on-crash: %s is no directory", filepath.Dir(path))
	}
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return command.Usagef("--save-on-crash %s: it is no regular file", path)
	}
	return nil
}
