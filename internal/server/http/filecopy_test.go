package http

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// filesGuest is a fakeGuest that takes copies of files.
type filesGuest struct {
	*fakeGuest
	err   error
	path  string
	bytes string
}

func (g *filesGuest) GiveFile(path string, b []byte) (linux.Given, error) {
	g.path, g.bytes = path, string(b)
	return linux.Given{Path: "/usr" + path, BuildID: "ab12", Functions: 7, Pages: 3, Present: true}, g.err
}

// TestGiveFile: copies of files reach the guest, and what it says of them the client.
func TestGiveFile(t *testing.T) {
	g := &filesGuest{fakeGuest: newFakeGuest(t, 2)}
	h := serveGuest(t, g.fakeGuest, defaultOptions())
	give := func(want api.Code) (api.GivenFile, error) {
		t.Helper()
		got, err := h.c.GiveFile(h.ctx, api.GiveFile{Path: "/bin/cat", Copy: []byte("\x7fELF")})
		var wire *api.Error
		if errors.As(err, &wire) != (want != "") || want != "" && wire.Code != want {
			t.Errorf("%v, want %q", err, want)
		}
		return got, err
	}
	_, err := give(api.CodeUnavailable)
	if err == nil || !strings.Contains(err.Error(), machine.ErrNoFiles.Error()) {
		t.Error(err)
	}
	h.s.guest = g
	if got, _ := give(""); g.path != "/bin/cat" || g.bytes != "\x7fELF" || got != (api.GivenFile{Path: "/usr/bin/cat", BuildID: "ab12", Functions: 7, Pages: 3, Present: true}) {
		t.Errorf("%+v, the guest has %q %q", got, g.path, g.bytes)
	}
	for _, want := range []error{linux.ErrOtherFile, machine.ErrNoFiles} {
		g.err = want
		code := map[bool]api.Code{true: api.CodeUnavailable, false: api.CodeBadFile}[want == machine.ErrNoFiles]
		if _, err := give(code); err == nil || !strings.Contains(err.Error(), want.Error()) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	for body, want := range map[string]string{
		`{"copy":"AAAA"}`:                   "path is missing",
		`{"path":"/bin/cat"}`:               "copy is missing",
		`{"path":"/bin/cat","copy":"?"}`:    "illegal base64",
		`{"path":"/x","copy":"AA==","a":1}`: "unknown field",
		`{"path":"/x","copy":"` + base64.StdEncoding.EncodeToString(make([]byte, maxFileBody)) + `"}`: "a file has at most 16 MiB",
	} {
		if code, text := h.rawRequest("POST", "/v1/files", body); code/100 != 4 || !strings.Contains(text, want) {
			t.Errorf("%.60s: %d %s, want %s", body, code, text, want)
		}
	}
}
