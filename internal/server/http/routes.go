package http

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// route is an Operation with its handler.
type route struct {
	Operation
	serve handler
}

// handler serves a request with this query.
type handler func(*server, http.ResponseWriter, *http.Request, values) error

// plainHandler returns the handler of a route without a query.
func plainHandler(serve func(*server, http.ResponseWriter, *http.Request) error) handler {
	return func(s *server, w http.ResponseWriter, r *http.Request, _ values) error { return serve(s, w, r) }
}

// routes are all routes, in the order of the document.
func routes() []route { return append(guestRoutes(), probeRoutes()...) }

// handler returns the mux over all routes. It runs after the checks that every
// request passes.
func (s *server) handler() http.Handler {
	byPath := map[string]map[string]route{}
	for _, r := range routes() {
		if byPath[r.Path] == nil {
			byPath[r.Path] = map[string]route{}
		}
		byPath[r.Path][r.Method] = r
	}
	mux := http.NewServeMux()
	for path, methods := range byPath {
		// The mux does not check methods, because its answer would have no envelope.
		mux.Handle(path, s.methods(methods))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &api.Error{Code: api.CodeNoRoute, Errno: "ENOENT", Message: "no route " + r.URL.Path, Detail: "this daemon speaks " + api.V1})
	})
	return s.guard(mux)
}

func (s *server) methods(methods map[string]route) http.HandlerFunc {
	var allow []string
	for m := range methods {
		allow = append(allow, m)
	}
	slices.Sort(allow)
	return func(w http.ResponseWriter, r *http.Request) {
		rt, ok := methods[r.Method]
		if !ok {
			w.Header().Set("Allow", strings.Join(allow, ", "))
			writeError(w, &api.Error{
				Code: api.CodeBadMethod, Errno: "EOPNOTSUPP",
				Message: "method " + r.Method + " is not allowed on " + r.URL.Path, Detail: "allowed: " + strings.Join(allow, ", "),
			})
			return
		}
		q, err := rt.query(r)
		if err == nil {
			err = s.checkLooksOnly(rt)
		}
		if err == nil {
			err = rt.serve(s, w, r, q)
		}
		if err != nil {
			if e := toAPI(err); e.Code == api.CodeInternal {
				s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			}
			writeError(w, err)
		}
	}
}

// guard checks the client and the daemon's state, contains panics, and logs
// every request that may change something, with the client.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		p := requestPeer(r)
		w := &recorder{ResponseWriter: rw, stall: s.limits.Load().stall}
		start := time.Now()
		end, refused := begin(w, r)
		defer end()
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler {
					panic(v)
				}
				s.log.Error("panic in request", "method", r.Method, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
				if w.status == 0 {
					writeError(w, errors.New("panic while serving the request"))
				}
			}
			if r.Method != http.MethodGet && w.status < http.StatusBadRequest {
				s.state.MarkChanged()
			}
			looks := r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.Path == checkPath // a page sends one for each typed key
			if !looks || w.status == http.StatusForbidden {
				s.log.Info("request", "method", r.Method, "path", r.URL.Path, "status", w.status, "uid", p.UID, "pid", p.PID, "took", time.Since(start))
			}
		}()
		w.Header().Set(api.LevelHeader, api.Current.String())
		if err := s.access.check(p); err != nil {
			writeError(w, err)
			return
		}
		if err := oldClient(r); err != nil {
			writeError(w, err)
			return
		}
		if refused != nil {
			writeError(w, refused)
			return
		}
		if s.probes.Closed() {
			writeError(w, errClosing)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// oldClient rejects a client that reports an older API level than the daemon
// supports. Such a client may still request /version.
func oldClient(r *http.Request) error {
	said := r.Header.Get(api.LevelHeader)
	if said == "" || r.URL.Path == "/version" {
		return nil
	}
	l, err := api.ParseLevel(said)
	switch {
	case err != nil:
		return badValue("header %s: %v", api.LevelHeader, err)
	case l.Before(api.OldestClient):
		return &api.Error{
			Code: api.CodeOldClient, Errno: "EPROTONOSUPPORT", Message: fmt.Sprintf("this client is too old: it speaks level %s of the API, and guestprobed %s needs %s", l, api.Build().Version, api.OldestClient),
			Detail: "update guestprobe to the daemon's version",
		}
	}
	return nil
}

// recorder remembers the status of an answer, and times out if its client does
// not read.
type recorder struct {
	http.ResponseWriter
	status int
	stall  time.Duration // for the client to read some of it; 0: the writer times out itself
}

// WriteHeader records the first status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write records the implied status, and writes.
func (r *recorder) Write(p []byte) (n int, err error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	if r.stall == 0 {
		return r.ResponseWriter.Write(p)
	}
	rc := http.NewResponseController(r.ResponseWriter)
	for part := range slices.Chunk(p, maxGather) {
		_ = rc.SetWriteDeadline(time.Now().Add(r.stall))
		m, err := r.ResponseWriter.Write(part)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
