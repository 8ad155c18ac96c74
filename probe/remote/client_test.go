package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serve answers every request on a socket with h and returns a client of it.
func serve(t *testing.T, h http.HandlerFunc) (*Client, context.Context) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.LevelHeader, api.Current.String())
		h(w, r)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln)
	}()
	c := New(path)
	t.Cleanup(func() {
		c.Close()
		srv.Close()
		<-done
	})
	return c, patience.Context(t)
}

func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	ln, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
	for _, tc := range []struct {
		name, path string
		is         error
		text       string
	}{
		{"nothing", filepath.Join(dir, "no"), fs.ErrNotExist, "no daemon answers on " + dir + "/no: connect: no such file or directory"},
		{"stale", stale, syscall.ECONNREFUSED, "connect: connection refused"},
		{"long", "/" + strings.Repeat("x", 107), syscall.ENAMETOOLONG, "is 108 bytes long"},
	} {
		c := New(tc.path)
		_, err := c.Guest(t.Context())
		if !errors.Is(err, ErrUnreachable) || !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v; want %v with %q", tc.name, err, tc.is, tc.text)
		}
	}
}

func TestErrorsAreRebuilt(t *testing.T) {
	index := 3
	want := api.Error{Code: api.CodeProbeNotFound, Errno: "ENOENT", Message: "no probe", Detail: "look", Index: &index}
	c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: want})
	})
	_, err := c.Detach(ctx, "x/y")
	var got *api.Error
	if !errors.As(err, &got) || *got.Index != 3 || got.Detail != "look" {
		t.Errorf("error %#v", err)
	}
	if !errors.Is(err, api.ErrProbeNotFound) || !errors.Is(err, syscall.ENOENT) || errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v is not what it was", err)
	}
}

// flush sends the data written so far: an answer that is aborted before that never
// begins.
func flush(w http.ResponseWriter) {
	if err := http.NewResponseController(w).Flush(); err != nil {
		panic(err)
	}
}

// TestStrangeAnswers has what no daemon of ours says.
func TestStrangeAnswers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		want   error
	}{
		{"no envelope", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "gone", http.StatusGone) }, ErrProtocol},
		{"empty envelope", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500); fmt.Fprint(w, `{}`) }, ErrProtocol},
		{"not json", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>") }, ErrProtocol},
		{"wrong type", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"state":5}`) }, ErrProtocol},
		{"hangs up", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, ErrUnreachable},
		{"hangs up in the middle", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"st`)
			flush(w)
			panic(http.ErrAbortHandler)
		}, ErrUnreachable},
		{"hangs up in a refusal", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"err`)
			flush(w)
			panic(http.ErrAbortHandler)
		}, ErrUnreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, ctx := serve(t, tc.answer)
			if _, err := c.Guest(ctx); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			// A snapshot is any bytes: only how the answer ends can be wrong.
			if err := c.Save(ctx, io.Discard); tc.want == ErrUnreachable && !errors.Is(err, tc.want) {
				t.Errorf("save: error %v, want %v", err, tc.want)
			}
		})
	}
}

// TestSaveNowhere: what a snapshot is written to has failed, not the daemon.
func TestSaveNowhere(t *testing.T) {
	c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "a snapshot") })
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := c.Save(ctx, full); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v, want ENOSPC alone", err)
	}
}

func TestRequests(t *testing.T) {
	var got string
	c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.EscapedPath() + "?" + r.URL.RawQuery + " " + string(b)
		if agent := r.Header.Get("User-Agent"); !strings.HasPrefix(agent, "guestprobe/") {
			t.Errorf("agent %q", agent)
		}
		if strings.HasPrefix(r.URL.Path, "/v1/kprobes/li") {
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, "{not json}\n")
			return
		}
		fmt.Fprint(w, `{}`)
	})
	on := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for _, tc := range []struct {
		call func() error
		want string
	}{
		{func() error { _, err := c.Version(ctx); return err }, "GET /version? "},
		{func() error { _, err := c.Pause(ctx); return err }, "POST /v1/guest/pause? "},
		{func() error { _, err := c.Resume(ctx); return err }, "POST /v1/guest/resume? "},
		{func() error { _, err := c.Reset(ctx, api.ResetGuest{Paused: true}); return err }, `POST /v1/guest/reset? {"paused":true}`},
		{func() error { _, err := c.Call(ctx, api.Call{Symbol: "f", Args: []api.Hex{1}}); return err },
			`POST /v1/guest/call? {"symbol":"f","args":["0x0000000000000001"]}`},
		{func() error { _, err := c.Text(ctx); return err }, "GET /v1/guest/text? "},
		{func() error { _, err := c.Probe(ctx, "g/e"); return err }, "GET /v1/probes/g%2Fe? "},
		{func() error { _, err := c.Probe(ctx, "a?b#c"); return err }, "GET /v1/probes/a%3Fb%23c? "},
		{func() error { _, err := c.SetEnabled(ctx, "e", false); return err }, `PATCH /v1/probes/e? {"enabled":false}`},
		{func() error { _, err := c.DetachAll(ctx); return err }, "DELETE /v1/probes? "},
		{func() error { return c.SetArmed(ctx, true) }, `PUT /v1/kprobes/enabled? {"enabled":true}`},
		{func() error { _, err := c.Symbols(ctx, SymbolQuery{Match: "a*", Kind: "func", Limit: 3}); return err }, "GET /v1/symbols?kind=func&limit=3&match=a%2A "},
		{func() error { _, err := c.Tasks(ctx, true); return err }, "GET /v1/tasks?threads=true "},
		{func() error { _, err := c.Blacklist(ctx); return err }, "GET /v1/blacklist? "},
	} {
		on(tc.call())
		if got != tc.want {
			t.Errorf("request %q, want %q", got, tc.want)
		}
	}
	if text, err := c.KernelList(ctx, "list"); err != nil || text != "{not json}\n" {
		t.Errorf("kernel list %q, %v", text, err)
	}
}

func TestStream(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		types      []api.RecordType
		end        error
	}{
		{"whole", `{"type":"start","data":{}}` + "\n" + `{"type":"later"}` + "\n" + `{"type":"end","data":{"reason":"exit"}}` + "\n",
			[]api.RecordType{"start", "later", "end"}, io.EOF},
		{"cut off", `{"type":"start"}` + "\n", []api.RecordType{"start"}, ErrCutOff},
		{"cut in a record", `{"type":"start"}` + "\n" + `{"ty`, []api.RecordType{"start"}, ErrCutOff},
		{"cut before the newline", `{"type":"start"}`, nil, ErrCutOff},
		{"nothing", "", nil, ErrCutOff},
		{"no json", "x\n", nil, ErrProtocol},
		{"long line", `{"type":"start","data":"` + strings.Repeat("x", 2<<20) + `"}` + "\n", []api.RecordType{"start"}, ErrCutOff},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, tc.body) })
			s, err := c.Events(ctx, api.StreamEvents{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, want := range tc.types {
				r, err := s.Next()
				if err != nil || r.Type != want {
					t.Fatalf("record %q, %v; want %q", r.Type, err, want)
				}
			}
			for range 2 {
				if _, err := s.Next(); !errors.Is(err, tc.end) {
					t.Errorf("end %v, want %v", err, tc.end)
				}
				if tc.end != io.EOF {
					break
				}
			}
		})
	}
}

// TestStreamObeysItsContext waits in Next, in the middle of a record, when the
// caller gives up.
func TestStreamObeysItsContext(t *testing.T) {
	c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"type":"hi`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	because := errors.New("enough")
	ctx, cancel := context.WithCancelCause(ctx)
	s, err := c.Events(ctx, api.StreamEvents{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cancel(because)
	if _, err := s.Next(); !errors.Is(err, because) {
		t.Errorf("error %v, want %v", err, because)
	}
}

// TestLevels: what we speak is said, and a daemon that is too old, or older than the header, is refused in one line that
// says what to do; a newer one is not.
func TestLevels(t *testing.T) {
	older := api.Level{Major: api.OldestDaemon.Major, Minor: api.OldestDaemon.Minor - 1}
	for _, tc := range []struct {
		says string
		is   error
		text string
	}{
		{api.Current.String(), nil, ""},
		{"1.9999", nil, ""},
		{older.String(), ErrOldDaemon, "speaks level " + older.String() + " of the API, and this guestprobe needs " + api.OldestDaemon.String() + ": start guestprobed of version "},
		{"0.7", ErrOldDaemon, "speaks level 0.7"},
		{"", ErrOldDaemon, "does not say which level of the API it speaks"},
		{"one", ErrProtocol, "want MAJOR.MINOR"},
	} {
		c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get(api.LevelHeader); got != api.Current.String() {
				t.Errorf("the request says %q", got)
			}
			w.Header().Set(api.LevelHeader, tc.says)
			if tc.says == "" {
				w.Header().Del(api.LevelHeader)
			}
			fmt.Fprint(w, `{"state":"running"}`)
		})
		_, err := c.Guest(ctx)
		if !errors.Is(err, tc.is) || err != nil && (!strings.Contains(err.Error(), tc.text) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("daemon of %q: %v; want %v with %q", tc.says, err, tc.is, tc.text)
		}
		if _, err := c.Console(ctx, true); !errors.Is(err, tc.is) {
			t.Errorf("a stream of %q: %v", tc.says, err)
		}
	}
}
