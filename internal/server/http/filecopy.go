package http

import (
	"errors"
	"net/http"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// fileGuest has the methods of a Guest that accepts copies of its files.
type fileGuest interface {
	GiveFile(path string, b []byte) (linux.Given, error)
}

// giveFile accepts a copy of one of the guest's files.
func (s *server) giveFile(w http.ResponseWriter, r *http.Request) error {
	if err := s.effort.room(); err != nil {
		return err
	}
	var req api.GiveFile
	if err := readLarge(w, r, &req); err != nil {
		return err
	}
	switch {
	case req.Path == "":
		return badValue("path is missing: the file's in the guest")
	case len(req.Copy) == 0:
		return badValue("copy is missing: the bytes of the file")
	}
	g, ok := s.guest.(fileGuest)
	if !ok {
		return &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: machine.ErrNoFiles.Error()}
	}
	s.resetMu.Lock() // a reset reads the files again
	defer s.resetMu.Unlock()
	given, err := g.GiveFile(req.Path, req.Copy)
	switch {
	case errors.Is(err, machine.ErrNoFiles):
		return &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: err.Error()}
	case err != nil:
		return &api.Error{Code: api.CodeBadFile, Errno: "EINVAL", Message: err.Error()}
	}
	writeJSON(w, http.StatusOK, api.GivenFile(given))
	return nil
}
