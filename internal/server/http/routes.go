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

// route is one operation of the API. docs/openapi.yaml describes each, and a
// test compares the two lists.
type route struct {
	method string
	path   string
	serve  func(*server, http.ResponseWriter, *http.Request) error
	query  []string // parameters it takes; any other is an error
}

func routes() []route {
	return []route{
		{http.MethodGet, "/version", (*server).getVersion, nil},
		{http.MethodGet, "/metrics", (*server).getMetrics, nil},
		{http.MethodGet, "/v1/host", (*server).getHost, nil},
		{http.MethodGet, "/v1/daemon", (*server).getDaemon, nil},
		{http.MethodGet, "/v1/fleet", (*server).getFleet, []string{"revision"}},
		{http.MethodGet, "/v1/guest", (*server).getGuest, nil},
		{http.MethodPost, "/v1/guest/pause", (*server).pauseGuest, nil},
		{http.MethodPost, "/v1/guest/resume", (*server).resumeGuest, nil},
		{http.MethodPost, "/v1/guest/step", (*server).stepGuest, nil},
		{http.MethodPost, "/v1/guest/reset", (*server).resetGuest, nil},
		{http.MethodPost, "/v1/guest/save", (*server).saveGuest, nil},
		{http.MethodPost, "/v1/snapshots", (*server).putSnapshot, nil},
		{http.MethodPost, "/v1/guest/call", (*server).callGuest, nil},
		{http.MethodGet, "/v1/guest/text", (*server).getText, nil},
		{http.MethodGet, "/v1/guest/console", (*server).streamConsole, []string{"follow", "bytes"}},
		{http.MethodPost, "/v1/guest/console", (*server).typeConsole, nil},
		{http.MethodGet, "/v1/symbols", (*server).getSymbols, []string{"match", "kind", "limit", "types"}},
		{http.MethodGet, "/v1/tasks", (*server).getTasks, []string{"threads"}},
		{http.MethodGet, "/v1/registers", (*server).getRegisters, []string{"vcpu", "vectors"}},
		{http.MethodPut, "/v1/registers", (*server).putRegisters, nil},
		{http.MethodGet, "/v1/memory", (*server).getMemory, []string{"at", "length", "vcpu", "task", "space", "live", "type", "symbols"}},
		{http.MethodPut, "/v1/memory", (*server).putMemory, nil},
		{http.MethodGet, "/v1/backtraces", (*server).getBacktraces, []string{"vcpu", "task"}},
		{http.MethodGet, "/v1/pagetables", (*server).getPageWalk, []string{"at", "vcpu", "task", "space"}},
		{http.MethodGet, "/v1/disas", (*server).getDisas, []string{"at", "lines"}},
		{http.MethodGet, "/v1/variables", (*server).getVariables, []string{"at"}},
		{http.MethodGet, "/v1/probes", (*server).getProbes, []string{"probe"}},
		{http.MethodPost, "/v1/probes", (*server).createProbes, nil},
		{http.MethodDelete, "/v1/probes", (*server).deleteProbes, []string{"probe"}},
		{http.MethodPatch, "/v1/probes", (*server).patchProbes, nil},
		{http.MethodGet, "/v1/probes/{probe}", (*server).getProbe, nil},
		{http.MethodPatch, "/v1/probes/{probe}", (*server).patchProbe, nil},
		{http.MethodDelete, "/v1/probes/{probe}", (*server).deleteProbe, nil},
		{http.MethodPost, "/v1/programs", (*server).createPrograms, nil},
		{http.MethodPost, "/v1/files", (*server).giveFile, nil},
		{http.MethodPost, "/v1/scripts", (*server).runScript, nil},
		{http.MethodGet, "/v1/scripts", (*server).getScripts, nil},
		{http.MethodGet, "/v1/scripts/{script}", (*server).getScript, []string{"format"}},
		{http.MethodGet, "/v1/scripts/{script}/output", (*server).followScript, nil},
		{http.MethodDelete, "/v1/scripts/{script}", (*server).stopScript, nil},
		{http.MethodGet, "/v1/places", (*server).getPlaces, []string{"match", "types"}},
		{http.MethodGet, "/v1/maps", (*server).getMaps, nil},
		{http.MethodGet, "/v1/charts", (*server).getCharts, []string{"of"}},
		{http.MethodGet, "/v1/maps/{map}", (*server).getMap, nil},
		{http.MethodGet, "/v1/events", (*server).streamEvents, []string{"probe"}},
		{http.MethodPost, "/v1/events", (*server).streamEvents, nil},
		{http.MethodDelete, "/v1/events/{stream}", (*server).endStream, nil},
		{http.MethodPost, "/v1/profile", (*server).streamProfile, nil},
		{http.MethodPost, "/v1/counts", (*server).streamCounts, nil},
		{http.MethodPost, checkPath, (*server).check, nil},
		{http.MethodPost, "/v1/web", (*server).openPage, nil},
		{http.MethodGet, "/v1/blacklist", (*server).getBlacklist, nil},
		{http.MethodGet, "/v1/kprobes/enabled", (*server).getKnobs, nil},
		{http.MethodPut, "/v1/kprobes/enabled", (*server).putKnobs, nil},
		{http.MethodGet, "/v1/kprobes/optimization", (*server).getOptimization, nil},
		{http.MethodPut, "/v1/kprobes/optimization", (*server).putOptimization, nil},
		{http.MethodGet, "/v1/kprobes/list", (*server).getKernelList, nil},
		{http.MethodGet, "/v1/kprobes/blacklist", (*server).getKernelBlacklist, nil},
		{http.MethodGet, "/v1/kprobes/profile", (*server).getKernelProfile, nil},
	}
}

// handler returns the mux over all routes, behind the checks that every
// request passes.
func (s *server) handler() http.Handler {
	byPath := map[string]map[string]route{}
	for _, r := range routes() {
		if byPath[r.path] == nil {
			byPath[r.path] = map[string]route{}
		}
		byPath[r.path][r.method] = r
	}
	mux := http.NewServeMux()
	for path, methods := range byPath {
		// Methods are not left to the mux: its own answer has no envelope.
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
		err := knownQuery(r, rt.query)
		if err == nil {
			err = s.onlyLooks(rt)
		}
		if err == nil {
			err = rt.serve(s, w, r)
		}
		if err != nil {
			if e := toAPI(err); e.Code == api.CodeInternal {
				s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			}
			writeError(w, err)
		}
	}
}

// guard checks the peer and our own state, contains panics, and logs every
// request that may change something, with who asked.
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
				s.changed()
			}
			looks := r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.Path == checkPath // of which one comes with each key
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
		if s.probes.closed.Load() {
			writeError(w, errClosing)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// oldClient refuses a client that says it is older than what we serve; it may ask for our version all the same.
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

var errClosing = &api.Error{Code: api.CodeClosing, Errno: "ESHUTDOWN", Message: "the daemon is stopping"}

// recorder remembers the status of an answer, and gives up one that its client does
// not read.
type recorder struct {
	http.ResponseWriter
	status int
	stall  time.Duration // for the client to read some of it; 0: the writer sees to that
}

// WriteHeader notes the first status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write notes the implied status, and writes.
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
