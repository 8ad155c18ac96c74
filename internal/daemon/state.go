package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/files"
)

// maxState bounds what is kept of clients' attachments, in bytes: their objects are in it.
const maxState = 1 << 30

// state keeps in the folder of --state what clients have attached, for the daemon that is started next.
type state struct {
	path string
	lock *os.File
	dirt chan struct{} // capacity 1: something was changed
	mu   sync.Mutex    // held while it is written
}

// openState takes the folder, which is made if need be. Another daemon's is refused.
func openState(dir string) (*state, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, "attached"+api.LockSuffix))
	switch {
	case errors.Is(err, ErrSocketLive):
		return nil, fmt.Errorf("--state %s: another daemon has it", dir)
	case err != nil:
		return nil, fmt.Errorf("--state: %w", err)
	}
	return &state{path: filepath.Join(dir, "attached.json"), lock: lock, dirt: make(chan struct{}, 1)}, nil
}

// close lets another daemon have the folder. The lock's file stays: who has opened it meanwhile must find it by its name.
func (k *state) close() { k.lock.Close() }

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
			if err := s.writeState(); err != nil && !errors.Is(err, errClosing) {
				s.log.Error("what clients have attached cannot be kept", "err", err)
			}
		case <-s.stop:
			return
		}
	}
}

// writeState writes down what clients have attached, in the place of what is there.
func (s *server) writeState() error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if err := s.probes.change(); err != nil {
		return err
	}
	on := s.attachments(ofOthers)
	on.release()
	s.probes.changes.Unlock()
	on.LeftOut = nil // it is of clients who are told that it ends
	b, err := json.Marshal(on)
	if err != nil {
		return err
	}
	return files.Replace(s.state.path, 0o600, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

// restoreState attaches what the clients of the daemon before had attached. What cannot be is told, and is no error.
func (s *server) restoreState() error {
	b, err := files.Read(s.state.path, maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var on attachments
	if err == nil {
		err = json.Unmarshal(b, &on)
	}
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	s.notRestored = s.attachAll(&on)
	s.markOrigin(api.OriginRestored)
	s.log.Info("what clients had attached is restored", "probes", s.probes.count(), "scripts", len(s.scripts.all()), "not", len(s.notRestored))
	return nil
}

// ofOthers reports whether what has that origin comes again without the daemon's state: from its flags, or from its fleet.
func ofOthers(origin string) bool { return origin == api.OriginStart || origin == api.OriginFleet }

// tellLost says at the end what of clients goes with the daemon for good, and returns how much that is.
func (s *server) tellLost() int {
	var lost []string
	for _, a := range s.probes.snapshot() {
		a.mu.Lock()
		if !ofOthers(a.origin) && a.stay && (a.object == nil || a.object.script == nil) {
			lost = append(lost, a.def.Name())
		}
		a.mu.Unlock()
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
