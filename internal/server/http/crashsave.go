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

// errNoCrash: the guest has changed since it crashed.
var errNoCrash = errors.New("the guest was reset during the request")

// saveCrash saves a guest that has ended to the file of --save-on-crash, and
// returns log attributes about that. Without the flag it returns nil. still
// reports whether a snapshot is of the same end.
func (sv *saver) saveCrash(still func(*snapshot.Snapshot) bool) []any {
	path := sv.opt.saveOnCrash
	if path == "" {
		return nil
	}
	snap, err := sv.save()
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

// hasCrashed reports whether the guest of a snapshot has crashed.
func hasCrashed(snap *snapshot.Snapshot) bool {
	return snap.Config.Ended == string(machine.PhaseCrashed)
}

// kernelPanicked records whether the kernel of a Linux guest has panicked.
func (sv *saver) kernelPanicked(now *bool) bool {
	*now = false
	if l, ok := sv.guest.(kernelGuest); ok && sv.opt.saveOnCrash != "" {
		k, _ := l.Kernel()
		*now = k.System == machine.KernelPanicked
	}
	return *now
}

// checkSaveOnCrash rejects a file that cannot be written at a crash, and makes
// its path absolute.
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
