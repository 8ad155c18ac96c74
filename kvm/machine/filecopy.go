package machine

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
)

// givenFile is a copy of a guest's file that the user gave.
type givenFile struct {
	path string
	b    []byte
}

// ErrNoFiles is returned for a guest that does not run Linux.
var ErrNoFiles = errors.New("a copy of a file is about a program of a Linux guest: this guest has no files")

// GiveFile makes a copy of a file of the guest's known, or separate debug information of one,
// as linux.View.Give does, for this boot and those that follow. b must not change afterwards.
// Errors are Give's, and that the guest runs no Linux. It may be called from any thread but a
// probe handler's, not beside Reset.
func (m *Machine) GiveFile(path string, b []byte) (linux.Given, error) {
	g, ok := m.payload().(*linuxGuest)
	if !ok {
		return linux.Given{}, ErrNoFiles
	}
	f := givenFile{path, b}
	given, err := g.give(f)
	if err != nil {
		return given, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !given.NamesOnly { // instead of what was given before
		for i, old := range g.given {
			if old.path == path {
				g.given = append(g.given[:i:i], g.given[i+1:]...)
				break
			}
		}
	}
	g.given = append(g.given, f)
	return given, nil
}

func (g *linuxGuest) give(f givenFile) (linux.Given, error) {
	return g.seen.Load().Give(f.path, f.b, g.files.Load().usesFile)
}

// restoreFiles tells the view of a new boot of the files.
func (g *linuxGuest) restoreFiles(m *Machine) {
	for _, f := range g.given {
		if _, err := g.give(f); err != nil {
			m.log.Warn("a copy of a file is not used in this boot", "err", err)
		}
	}
}

// usesFile reports whether there is a probe in r.
func (t *fileText) usesFile(r guest.Range) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, s := range t.sites {
		if s.armed && at >= r.Start && at < r.End {
			return true
		}
	}
	return false
}
