package machine

import (
	"bytes"
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
)

// givenFile is the user's copy of a guest's file.
type givenFile struct {
	path string
	b    []byte
}

// ErrNoFiles is returned for a guest that does not run Linux.
var ErrNoFiles = errors.New("a copy of a file is about a program of a Linux guest: this guest has no files")

// GiveFile passes a copy of one of the guest's files, or separate debug
// information for one, or a part of that, to the guest's view, as linux.View.Give does, for this
// boot and later ones. b must not change afterwards. It returns Give's errors,
// and an error if the guest is not Linux. It may be called from any thread
// except a probe handler's, but not during Reset.
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
	g.given = addGiven(g.given, f, given.NamesOnly)
	return given, nil
}

// addGiven returns the files with f added. A copy replaces an earlier file with its path; debug information that is there already is not
// kept twice.
func addGiven(all []givenFile, f givenFile, namesOnly bool) []givenFile {
	n := slices.IndexFunc(all, func(old givenFile) bool {
		return old.path == f.path && (!namesOnly || bytes.Equal(old.b, f.b))
	})
	switch {
	case n >= 0 && namesOnly:
		return all
	case n >= 0:
		all = append(all[:n:n], all[n+1:]...)
	}
	return append(all, f)
}

func (g *linuxGuest) give(f givenFile) (linux.Given, error) {
	return g.seen.Load().Give(f.path, f.b, g.files.Load().usesFile)
}

// restoreFiles passes the files to the view of a new boot.
func (g *linuxGuest) restoreFiles(m *Machine) {
	for _, f := range g.given {
		if _, err := g.give(f); err != nil {
			m.log.Warn("a copy of a file is not used in this boot", "err", err)
		}
	}
}

// usesFile reports whether a probe is in r.
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
