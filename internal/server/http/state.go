package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// maxState bounds what is kept of clients' attachments, in bytes: their objects are in it.
const maxState = 1 << 30

// stateVersion is that of the file; one without a version is of an older daemon, and of version 1 but for that.
const stateVersion = 1

// stateName is the name of the file.
const stateName = "attached.json"

// stateFile is what the file has.
type stateFile struct {
	Version int `json:"version"`
	attachments
	// Pending is what could not be attached to the guest as it is: each start and each reset tries it again.
	Pending *attachments `json:"pending,omitempty"`
}

// state keeps in the folder of --state what clients have attached, for the daemon that is started next.
type state struct {
	path string
	lock *os.File
	dirt chan struct{} // capacity 1: something was changed

	mu      sync.Mutex // held while it is written
	last    []byte     // what is in the file; nil: not known
	pending attachments

	// One write may be for several changes that wait for it.
	turn     sync.Mutex
	asked    uint64 // changes
	finished uint64 // of these: they were written, or not
	err      error  // of the last write
}

// openState takes the folder, which is made if need be. Another daemon's is refused, and one that others can write to; the user is who
// the daemon becomes.
func openState(dir string, user ...int) (*state, error) {
	if err := files.Private(dir, user...); err != nil {
		return nil, fmt.Errorf("--state %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	dir, err := filepath.EvalSymlinks(dir) // the one that was checked, also where a link comes before a ..
	if err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	k := &state{path: filepath.Join(dir, stateName), dirt: make(chan struct{}, 1)}
	if _, err := k.read(user...); err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(dir, "attached"+api.LockSuffix))
	switch {
	case errors.Is(err, errSocketLive):
		return nil, fmt.Errorf("--state %s: another daemon has it", dir)
	case err != nil:
		return nil, fmt.Errorf("--state: %w", err)
	}
	k.lock = lock
	return k, nil
}

// read reads the file; nil: there is none.
func (k *state) read(user ...int) (*stateFile, error) {
	if err := files.Private(k.path, user...); err != nil {
		return nil, fmt.Errorf("--state %w", err)
	}
	b, err := files.Read(k.path, maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--state %w", err)
	}
	f, err := readState(b)
	if err != nil {
		return nil, fmt.Errorf("--state %s: %w", k.path, err)
	}
	return f, nil
}

// readState reads what a file has.
func readState(b []byte) (*stateFile, error) {
	var head struct {
		Version int `json:"version"`
	}
	var f stateFile
	err := json.Unmarshal(b, &head)
	switch {
	case len(b) == 0:
		return nil, errors.New("the file is empty: it was cut off. Move it away to start without what clients had attached")
	case err == nil && (head.Version < 0 || head.Version > stateVersion):
		return nil, fmt.Errorf("it has version %d, and this guestprobed knows versions up to %d. Start the guestprobed that wrote it, or move the file away", head.Version, stateVersion)
	case err == nil:
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("the file is damaged (%s). Move it away to start without what clients had attached", api.DecodeText(err))
	}
	return &f, nil
}

// close lets another daemon have the folder. The lock's file stays: who has opened it meanwhile must find it by its name.
func (k *state) close() { k.lock.Close() }

// waiting is what is pending, in words.
func (k *state) waiting() []string {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pending.words()
}

// words names what is in attachments.
func (on *attachments) words() (out []string) {
	for _, p := range on.Probes {
		out = append(out, p.Def)
	}
	for _, o := range on.Objects {
		out = append(out, "programs "+o.Attach.Section)
	}
	for _, s := range on.Scripts {
		out = append(out, "script "+s.Run.Detach)
	}
	return out
}

// forget takes what is pending of these names away: events of probes, with their groups or without, or a script. It reports
// whether it has found something.
func (k *state) forget(script bool, names ...string) (found bool) {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.pending.Probes) + len(k.pending.Scripts)
	if script {
		k.pending.Scripts = slices.DeleteFunc(k.pending.Scripts, func(s savedScript) bool { return slices.Contains(names, s.Run.Detach) })
	} else {
		k.pending.Probes = slices.DeleteFunc(k.pending.Probes, func(spec api.ProbeSpec) bool {
			d, err := event.Parse(spec.Def)
			return err == nil && (slices.Contains(names, d.Name()) || slices.Contains(names, d.Event))
		})
	}
	return n != len(k.pending.Probes)+len(k.pending.Scripts)
}

// forgetAll takes all that is pending of probes and programs away.
func (k *state) forgetAll() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending.Probes, k.pending.Objects = nil, nil
}

// changed notes that something was attached or has gone. It does not wait.
func (s *server) changed() {
	if s.state == nil {
		return
	}
	select {
	case s.state.dirt <- struct{}{}:
	default:
	}
}

// keepState writes the state down after each change, until the daemon stops.
func (s *server) keepState() {
	for {
		select {
		case <-s.state.dirt:
			if err := s.writeState(); err != nil && !errors.Is(err, session.ErrClosed) {
				s.log.Error("what clients have attached cannot be kept", "err", err)
			}
		case <-s.stop:
			return
		}
	}
}

// keep writes the state down before a request is answered that has changed it, together with those that wait as well. The error is
// for the client.
func (s *server) keep() error {
	k := s.state
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
		err = s.writeStateLocked()
		k.turn.Lock()
		k.finished, k.err = all, err
		k.turn.Unlock()
	}
	k.mu.Unlock()
	if err == nil || errors.Is(err, session.ErrClosed) {
		return nil // the daemon writes it at its end
	}
	s.log.Error("what clients have attached cannot be kept", "err", err)
	errno := "EIO"
	if no := syscall.Errno(0); errors.As(err, &no) {
		errno = probe.ErrnoName(no)
	}
	return &api.Error{Code: api.CodeNotKept, Errno: errno, Message: "it cannot be kept for the next start: " + err.Error(), Detail: "free the disk of --state, then try again"}
}

// kept is keep for a request that is not undone where that fails: the error says so.
func (s *server) kept(what string) error {
	err := s.keep()
	var wire *api.Error
	if errors.As(err, &wire) {
		e := *wire
		e.Message = what + ", but " + e.Message
		return &e
	}
	return err
}

// writeState writes down what clients have attached, in the place of what is there.
func (s *server) writeState() error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.writeStateLocked()
}

// writeStateLocked is writeState. The caller has the state's mu.
func (s *server) writeStateLocked() error {
	k := s.state
	var on *attachments
	if err := s.probes.Exclusive(func() error {
		on = s.attachments(ofOthers)
		on.release()
		return nil
	}); err != nil {
		return err
	}
	on.LeftOut = nil // it is of clients who are told that it ends
	f := stateFile{Version: stateVersion, attachments: *on}
	if len(k.pending.words()) > 0 {
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

// restoreState attaches what the clients of the daemon before had attached. What cannot be stays in the file, is tried again at each
// reset and start, and is no error.
func (s *server) restoreState() error {
	f, err := s.state.read(s.opt.stateUsers()...)
	if f == nil || err != nil {
		return err
	}
	pending := s.attachAll(&f.attachments)
	if f.Pending != nil {
		f.Pending.Disarmed = false
		pending.add(s.attachAll(f.Pending))
	}
	s.state.mu.Lock()
	s.state.pending = *pending
	s.state.mu.Unlock()
	s.markOrigin(api.OriginRestored)
	s.log.Info("what clients had attached is restored", "probes", len(s.probes.Probes()), "scripts", len(s.scripts.all()), "not", len(pending.words()))
	return nil
}

// restorePending attaches what could not be attached to the guest before it was reset.
func (s *server) restorePending() {
	k := s.state
	if k == nil || len(k.waiting()) == 0 {
		return
	}
	k.mu.Lock()
	on := k.pending
	k.pending = attachments{}
	k.mu.Unlock()
	left := s.attachAll(&on)
	k.mu.Lock()
	k.pending.add(left)
	k.mu.Unlock()
	s.changed()
}

// stateUsers are those who may own the folder of --state besides the daemon's user.
func (o *options) stateUsers() []int {
	if o.user.asked == "" {
		return nil
	}
	return []int{o.user.UID}
}

// ofOthers reports whether what has that origin comes again without the daemon's state: from its flags, or from its fleet.
func ofOthers(origin string) bool { return origin == api.OriginStart || origin == api.OriginFleet }

// tellLost says at the end what of clients goes with the daemon for good, and returns how much that is.
func (s *server) tellLost() int {
	var lost []string
	for _, a := range s.probes.Probes() {
		if !ofOthers(a.Label()) && a.Stays() && (a.Object() == nil || a.Object().Script() == nil) {
			lost = append(lost, a.Name())
		}
	}
	for _, k := range s.scripts.all() {
		if !ofOthers(k.origin) {
			lost = append(lost, "script "+k.req.Detach)
		}
	}
	if len(lost) > 0 {
		const most = 20
		s.log.Warn("what clients have attached goes with the daemon: --state DIR keeps it", "number", len(lost), "first", lost[:min(len(lost), most)])
	}
	return len(lost)
}
