package saved

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// maxFile bounds the file, which contains object files, in bytes.
const maxFile = 1 << 30

// version is the version of the file; older daemons wrote version 1 without this
// field.
const version = 1

// fileName is the name of the file.
const fileName = "attached.json"

// File is the content of the file.
type File struct {
	Version int `json:"version"`
	Attachments
	// Pending are attachments that could not be attached to the present guest:
	// each start and each reset tries them again.
	Pending *Attachments `json:"pending,omitempty"`
}

// Store keeps clients' attachments in the folder of --state, for the daemon that
// is started next. Any goroutine may use it. A nil Store keeps nothing. Use must
// be called before the file is written.
type Store struct {
	path    string
	lock    *os.File
	dirt    chan struct{} // capacity 1: something was changed
	log     *slog.Logger
	collect func() (*Attachments, error) // describes the present attachments for the file; session.ErrClosed once the daemon has detached them

	mu      sync.Mutex // held while it is written
	last    []byte     // the file's content; nil: not known
	pending Attachments

	// One write may serve several changes that wait for it.
	turn     sync.Mutex
	asked    uint64 // changes
	finished uint64 // how many of these are written, or have failed
	err      error  // of the last write
}

// Open opens the folder, and creates it if necessary. It rejects a folder that
// another daemon uses, and one that others can write to. user is the user that
// the daemon will change to.
func Open(dir string, user ...int) (*Store, error) {
	if err := files.CheckPrivate(dir, user...); err != nil {
		return nil, fmt.Errorf("--state %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	dir, err := filepath.EvalSymlinks(dir) // the folder that was checked, even if a link comes before a ..
	if err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	k := &Store{path: filepath.Join(dir, fileName), dirt: make(chan struct{}, 1)}
	if _, err := k.Read(user...); err != nil {
		return nil, err
	}
	lock, err := files.Lock(filepath.Join(dir, "attached"+api.LockSuffix))
	var locked *files.LockedError
	switch {
	case errors.As(err, &locked):
		return nil, fmt.Errorf("--state %s: another daemon has it", dir)
	case err != nil:
		return nil, fmt.Errorf("--state: %w", err)
	}
	k.lock = lock
	return k, nil
}

// Read reads the file; nil: it does not exist.
func (k *Store) Read(user ...int) (*File, error) { return Read(filepath.Dir(k.path), user...) }

// Read reads the file in a folder, or returns nil if it does not exist. It
// rejects a file that others can write to.
func Read(dir string, user ...int) (*File, error) {
	path := filepath.Join(dir, fileName)
	if err := files.CheckPrivate(path, user...); err != nil {
		return nil, fmt.Errorf("--state %w", err)
	}
	b, err := files.Read(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--state %w", err)
	}
	f, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("--state %s: %w", path, err)
	}
	return f, nil
}

// decode decodes the content of a file.
func decode(b []byte) (*File, error) {
	var head struct {
		Version int `json:"version"`
	}
	var f File
	err := json.Unmarshal(b, &head)
	switch {
	case len(b) == 0:
		return nil, errors.New("the file is empty: it was cut off. Move it away to start without what clients had attached")
	case bytes.Equal(bytes.TrimSpace(b), []byte("null")):
		err = errors.New("it must be an object, not null")
	case err == nil && (head.Version < 0 || head.Version > version):
		return nil, fmt.Errorf("it has version %d, and this guestprobed knows versions up to %d. Start the guestprobed that wrote it, or move the file away", head.Version, version)
	case err == nil:
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("the file is damaged (%s). Move it away to start without what clients had attached", api.DecodeText(err))
	}
	return &f, nil
}

// Close releases the folder for another daemon. The lock's file stays: a daemon
// that has opened it must find it under its name.
func (k *Store) Close() { k.lock.Close() }

// PendingNames returns the names of the pending attachments.
func (k *Store) PendingNames() []string {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pending.Words()
}

// Forget removes pending attachments with these names: events of probes, with or
// without their groups, or a script. It reports whether it has found any.
func (k *Store) Forget(script bool, names ...string) (found bool) {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.pending.Probes) + len(k.pending.Scripts)
	if script {
		k.pending.Scripts = slices.DeleteFunc(k.pending.Scripts, func(s Script) bool { return slices.Contains(names, s.Run.Detach) })
	} else {
		k.pending.Probes = slices.DeleteFunc(k.pending.Probes, func(spec api.ProbeSpec) bool {
			d, err := event.Parse(spec.Def)
			return err == nil && (slices.Contains(names, d.Name()) || slices.Contains(names, d.Event))
		})
	}
	return n != len(k.pending.Probes)+len(k.pending.Scripts)
}

// ForgetAll removes all pending probes and programs.
func (k *Store) ForgetAll() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending.Probes, k.pending.Objects = nil, nil
}

// MarkChanged records that something was attached or detached. It does not wait.
func (k *Store) MarkChanged() {
	if k == nil {
		return
	}
	select {
	case k.dirt <- struct{}{}:
	default:
	}
}

// WriteChanges writes the file after each change, until stop is closed.
func (k *Store) WriteChanges(stop <-chan struct{}) {
	for {
		select {
		case <-k.dirt:
			if err := k.Write(); err != nil && !errors.Is(err, session.ErrClosed) {
				k.log.Error("what clients have attached cannot be kept", "err", err)
			}
		case <-stop:
			return
		}
	}
}

// Keep writes the state to the file before a request that has changed it is
// answered. Requests that wait at the same time share one write. The error is
// for the client.
func (k *Store) Keep() error {
	if k == nil {
		return nil
	}
	k.turn.Lock()
	k.asked++
	mine := k.asked
	k.turn.Unlock()
	k.mu.Lock()
	k.turn.Lock()
	done, all, err := k.finished >= mine, k.asked, k.err
	k.turn.Unlock()
	if !done {
		err = k.writeLocked()
		k.turn.Lock()
		k.finished, k.err = all, err
		k.turn.Unlock()
	}
	k.mu.Unlock()
	if err == nil || errors.Is(err, session.ErrClosed) {
		return nil // the daemon writes it at its end
	}
	k.log.Error("what clients have attached cannot be kept", "err", err)
	errno := "EIO"
	if no := syscall.Errno(0); errors.As(err, &no) {
		errno = probe.ErrnoName(no)
	}
	return &api.Error{Code: api.CodeNotKept, Errno: errno, Message: "it cannot be kept for the next start: " + err.Error(), Detail: "free the disk of --state, then try again"}
}

// Write writes the file, and replaces an existing one.
func (k *Store) Write() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writeLocked()
}

// writeLocked is Write. The caller has mu.
func (k *Store) writeLocked() error {
	on, err := k.collect()
	if err != nil {
		return err
	}
	on.LeftOut = nil // for users of snapshots only
	f := File{Version: version, Attachments: *on}
	if len(k.pending.Words()) > 0 {
		f.Pending = &k.pending
	}
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if k.last != nil && bytes.Equal(b, k.last) {
		return nil
	}
	k.last = nil
	if err := files.ReplaceSynced(k.path, 0o600, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	}); err != nil {
		return err
	}
	k.last = b
	return nil
}

// Path returns the name of the file.
func (k *Store) Path() string { return k.path }

// Use sets the function that describes the attachments for the file; its error
// is session.ErrClosed once the daemon has detached all. It is called before any
// other method except Read.
func (k *Store) Use(log *slog.Logger, collect func() (*Attachments, error)) {
	k.log, k.collect = log, collect
}

// TakePending returns the pending attachments, and forgets them.
func (k *Store) TakePending() Attachments {
	k.mu.Lock()
	defer k.mu.Unlock()
	on := k.pending
	k.pending = Attachments{}
	return on
}

// AddPending adds attachments that could not be attached to this guest.
func (k *Store) AddPending(on *Attachments) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending.Add(on)
}
