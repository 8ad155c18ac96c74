package http

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// FuzzCreateProbes sends any body to POST /v1/probes. The answer is either the
// probes, all of which can be detached again, or an envelope with a code; in
// between there is nothing, and the guest's text is what it was.
func FuzzCreateProbes(f *testing.F) {
	for _, seed := range []string{
		`{"def":"p:a schedule a=%di b=+8($stack):u64"}`,
		`{"probes":[{"def":"p schedule"},{"def":"p:g/e do_wait+1 $arg1","post":true,"regs":true,"disabled":true}]}`,
		`{"probes":[{"def":"p:a schedule"},{"def":"p:a do_wait"}]}`,
		`{"def":"p 0xffffffff80201000 @vfs_bytes_read \\1:u8 x=$comm:string"}`,
		`{"def":"w:a rw@vfs_bytes_read:8 x=%ax","emulate":true}`, `{"def":"w:a x@schedule","space":"0x1000"}`, `{"def":"p:a schedule","space":"0x1001"}`,
		`{"def":"r:a schedule $retval"}`, `{"def":"-:a"}`, `{"probes":[{"def":"p:a schedule"},{"def":"!p:a schedule"},{"def":" #"}]}`, `{"def":"p:a schedule","probes":null}`,
		`{"def":"p:a  schedule\n#x"}`, `{"def":"p:\u0000 \ud800"}`, `{"DEF":"p schedule"}`, `{"def":1e999}`,
		`[]`, `null`, `""`, ``, `{`, "{\"def\":\"p \xff\"}", `{"def":"p schedule"}{}`,
	} {
		f.Add([]byte(seed))
	}
	o := defaultOptions()
	g := newFakeGuest(f, 1)
	s := newServer(slog.New(slog.DiscardHandler), o, g, func() uint64 { return 0 })
	f.Cleanup(func() { s.probes.Close() })
	h := s.handler()
	send := func(method, path, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, peer{UID: uint32(os.Getuid())})))
		return w
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		w := send(http.MethodPost, "/v1/probes", string(body))
		switch {
		case w.Code == http.StatusCreated:
			var l api.ProbeList
			if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || l.Probes == nil {
				t.Fatalf("created: %v: %s", err, w.Body)
			}
			for _, p := range l.Probes {
				// What a listing shows can be attached again.
				if w := send(http.MethodDelete, fmt.Sprintf("/v1/probes/%d", p.ID), ""); w.Code != http.StatusOK {
					t.Fatalf("detach %s: %s", p.Name, w.Body)
				}
				def, err := json.Marshal(api.ProbeSpec{Def: p.Def})
				if err != nil {
					t.Fatal(err)
				}
				if w := send(http.MethodPost, "/v1/probes", string(def)); w.Code != http.StatusCreated {
					t.Fatalf("attach %q again: %s", p.Def, w.Body)
				}
			}
			if _, err := s.probes.DetachIf(func(*session.Probe) bool { return true }); err != nil {
				t.Fatal(err)
			}
		case w.Code >= 400 && w.Code < 500 || w.Code == http.StatusNotImplemented:
			var e api.ErrorBody
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error.Code == "" || e.Error.Message == "" {
				t.Fatalf("status %d without an envelope: %v: %s", w.Code, err, w.Body)
			}
			if c := e.Error.Column; c != nil && (*c < 0 || *c > len(e.Error.Command)+1) {
				t.Fatalf("column %d in %q", *c, e.Error.Command)
			}
		default:
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
		if n := len(s.probes.Probes()); n != 0 {
			t.Fatalf("%d probes are left", n)
		}
		if text, err := compareText(g); err != nil || !text.Identical {
			t.Fatalf("text differs: %v %v", text.Ranges, err)
		}
	})
}
