package web

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

//go:embed page
var pages embed.FS

// Limits of requests of the page.
const (
	maxBody    = 23 << 20         // of a request of the API; the API has limits of its own below it
	bodyTime   = 10 * time.Second // for it to come
	headerTime = 10 * time.Second
	idleTime   = 5 * time.Minute // of a connection between requests
	quietTime  = time.Minute     // between log lines about rejected requests
	maxLogged  = 200             // bytes of a stranger's text
)

// Config is the configuration of a Site.
type Config struct {
	API      http.Handler      // serves /v1, for browsers that have shown a token
	Files    map[string][]byte // files in addition to the page's own, by name
	MaxConns int               // connections at a time
	Stall    time.Duration     // for a browser to read some of an answer
	Log      *slog.Logger
}

// Site serves the page, and the API for it, to browsers on this machine that
// have shown a token. Its methods may be called from any goroutine.
type Site struct {
	Config
	files    map[string][]byte
	sessions sessions
	life     context.Context
	end      context.CancelFunc

	mu     sync.Mutex
	closed bool           // no more sockets may start
	open   sync.WaitGroup // sockets; mu guards its Add
	told   time.Time      // when a rejected request was logged
	untold int            // since
}

// New returns a Site. Close ends it.
func New(c Config) (*Site, error) {
	s := &Site{Config: c, files: map[string][]byte{}}
	s.life, s.end = context.WithCancel(context.Background())
	top, err := fs.Sub(pages, "page")
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(top, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		s.files["/"+name], err = fs.ReadFile(top, name)
		return err
	})
	for name, b := range c.Files {
		s.files["/"+name] = b
	}
	s.files["/"] = s.files["/index.html"]
	return s, err
}

// Server returns an HTTP server of the site, for a Listener on a loopback address.
func (s *Site) Server() *http.Server {
	return &http.Server{
		Handler: s, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn), ConnContext: withLimit,
	}
}

// Listener bounds the connections of a listener of the site's server.
func (s *Site) Listener(l net.Listener) net.Listener { return Limit(l, s.MaxConns) }

// Close closes all sockets. Sockets that close by themselves within ctx have
// sent their end.
func (s *Site) Close(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.open.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	s.end()
	<-ended
}

// headers restrict the page: it loads only files of this server, and is shown
// only in frames of its own.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; worker-src 'self'; frame-src 'self'; " +
		"frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "SAMEORIGIN",
	"Cache-Control":                "no-store",
}

// ServeHTTP serves one request.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	if why := strangeReason(r); why != "" {
		s.tell(why, r)
		refuse(w, http.StatusForbidden, why, "open the page by the address that 'guestprobe web' prints")
		return
	}
	switch {
	case r.URL.Path == "/session":
		s.begin(w, r)
	case r.URL.Path == "/socket":
		s.serveSocket(w, r)
	case strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == "/version":
		s.serveAPI(w, r)
	default:
		s.serveFile(w, r)
	}
}

// tell logs a rejected request, unless it has just logged one. A rejected client
// may send any number of requests with any text.
func (s *Site) tell(why string, r *http.Request) {
	s.mu.Lock()
	if time.Since(s.told) < quietTime {
		s.untold++
		s.mu.Unlock()
		return
	}
	before := s.untold
	s.told, s.untold = time.Now(), 0
	s.mu.Unlock()
	short := func(v string) string { return v[:min(len(v), maxLogged)] }
	s.Log.Warn("a request to the page is refused", "why", why, "host", short(r.Host), "origin", short(r.Header.Get("Origin")), "path", short(r.URL.Path), "untold", before)
}

// strangeReason returns why a request cannot come from the page, or "". The host
// name in the request must be ours: a page whose own host name resolves to this
// address sends another one. The origin of the request must be this page.
func strangeReason(r *http.Request) string {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return "this is no connection of a browser"
	}
	_, port, _ := net.SplitHostPort(addr.String())
	if r.Host != addr.String() && r.Host != net.JoinHostPort("localhost", port) {
		return "the page is served under its own address only"
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		return "the request comes from another page"
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return ""
	}
	// A user who clicks a link to the page gets its files, which hold no secret.
	if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.URL.Path == "/" {
		return ""
	}
	return "the request comes from another page"
}

// refuse answers with the envelope of the API's errors.
func refuse(w http.ResponseWriter, status int, message, detail string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error means that the client does not read the answer.
	_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Error{Code: api.CodeForbidden, Errno: "EACCES", Message: message, Detail: detail}})
}

func (s *Site) serveFile(w http.ResponseWriter, r *http.Request) {
	b, ok := s.files[r.URL.Path]
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.NotFound(w, r)
		return
	}
	kind := mime.TypeByExtension(path.Ext(r.URL.Path))
	switch path.Ext(r.URL.Path) { // independent of the machine's tables of types
	case ".js":
		kind = "text/javascript; charset=utf-8"
	case ".css":
		kind = "text/css; charset=utf-8"
	case ".svg":
		kind = "image/svg+xml"
	case ".html", "":
		kind = "text/html; charset=utf-8"
	}
	w.Header().Set("Content-Type", kind)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

// serveAPI passes a request on, once its body has arrived.
func (s *Site) serveAPI(w http.ResponseWriter, r *http.Request) {
	se := s.sessions.find(r)
	if se == nil || !se.has(r.Header.Get("Guestprobe-Key")) {
		refuse(w, http.StatusUnauthorized, "the page has no valid token", "'guestprobe web' prints an address with a new one")
		return
	}
	trust(r)
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = rc.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		refuse(w, http.StatusRequestEntityTooLarge, "the body is too large", "")
		return
	case err != nil:
		refuse(w, http.StatusRequestTimeout, "the body has not come", "")
		return
	}
	in := r.Clone(se.as(r.Context()))
	in.Body = io.NopCloser(bytes.NewReader(b))
	in.ContentLength = int64(len(b))
	in.Header.Del("Cookie")
	in.Header.Del("Guestprobe-Key")
	s.API.ServeHTTP(w, in)
}
