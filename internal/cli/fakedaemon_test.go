package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// fakeDaemon answers the API like a daemon with a fixed guest, but without a guest. Each fake daemon has other numbers.
type fakeDaemon struct {
	name   string
	n      uint64 // makes its numbers differ from other daemons'
	broken bool   // rejects everything except the requests of 'guestprobe ps'
	member *fleet.Member
	net    *fleet.Network

	mu    sync.Mutex
	asked map[uint64]chan struct{} // by stream: closed when a client requests its end
}

// fakeEpoch is the start of all fakes' clocks.
var fakeEpoch = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// startFake serves a fake daemon on a socket in dir and in the fleet at url.
func startFake(t *testing.T, dir, url, name string, n uint64, broken bool) {
	t.Helper()
	f := &fakeDaemon{name: name, n: n, broken: broken, asked: map[uint64]chan struct{}{}}
	path := filepath.Join(dir, name+".sock")
	local, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+api.LockSuffix, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f.net, err = fleet.Connect(patience.Context(t), fleet.Address{URL: url}, "fake", false, nil); err != nil {
		t.Fatal(err)
	}
	if f.member, err = f.net.Join(fleet.Labels{"name": name, "rack": fmt.Sprint(n)}); err != nil {
		t.Fatal(err)
	}
	hs := &http.Server{Handler: f}
	var served sync.WaitGroup
	for _, l := range []net.Listener{local, f.member} {
		served.Go(func() { _ = hs.Serve(l) })
	}
	t.Cleanup(func() {
		hs.Close()
		served.Wait()
		f.net.Close()
	})
}

// startStrange serves on a socket in dir, but answers every request of the API with 404.
func startStrange(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name+".sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+api.LockSuffix, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hs := &http.Server{Handler: http.NotFoundHandler()}
	served := make(chan error)
	go func() { served <- hs.Serve(l) }()
	t.Cleanup(func() {
		hs.Close()
		<-served
	})
}

// ServeHTTP implements http.Handler.
func (f *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(api.LevelHeader, api.Current.String())
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/version":
		answerFake(w, api.Version{Version: "1.2.3"})
		return
	case "/v1/daemon":
		answerFake(w, api.Daemon{PID: 4711, Probes: 2})
		return
	case "/v1/guest":
		answerFake(w, api.Guest{State: "running", Image: "built-in", VCPUs: 1, CPUs: []api.CPUInfo{{State: "running", Total: 10 * f.n, Hits: 4 * f.n, TrapExits: 6 * f.n}}})
		return
	}
	if f.broken {
		rejectFake(w, http.StatusConflict, api.Error{Code: "guest_not_running", Errno: "ESHUTDOWN", Message: "the guest has ended", Detail: "start it again"})
		return
	}
	path, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	switch r.Method + " " + path {
	case "GET probes", "PATCH probes", "DELETE probes":
		f.probes(w, r)
	case "POST probes":
		f.attach(w, r)
	case "GET kprobes":
		if name == "enabled" {
			on := f.n != 2
			answerFake(w, api.Knobs{Enabled: &on})
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintf(w, "the kernel's %s of %s\n", name, f.name)
	case "GET places":
		answerFake(w, api.PlaceList{Places: []api.Place{{Probe: "kprobe:vfs_read"}}})
	case "POST check":
		answerFake(w, api.Checked{Probes: 1, Places: []api.Place{{Probe: "kprobe:vfs_read"}}})
	case "GET fleet":
		f.fleet(w, r)
	case "GET scripts", "DELETE scripts", "POST scripts":
		f.scripts(w, r, name)
	case "POST events":
		f.events(w, r)
	case "DELETE events":
		id, _ := strconv.ParseUint(name, 10, 64)
		f.mu.Lock()
		if asked := f.asked[id]; asked != nil {
			delete(f.asked, id)
			close(asked)
		}
		f.mu.Unlock()
		answerFake(w, struct{}{})
	default:
		rejectFake(w, http.StatusNotFound, api.Error{Code: "no_route", Message: "the fake has no " + r.Method + " " + r.URL.Path})
	}
}

func answerFake(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func rejectFake(w http.ResponseWriter, status int, e api.Error) {
	w.WriteHeader(status)
	answerFake(w, api.ErrorBody{Error: e})
}

// listProbes returns the daemon's probes. The second one has a different name in each daemon.
func (f *fakeDaemon) listProbes() []api.Probe {
	counts := func(n uint64) api.Stats {
		s := api.Stats{Counts: api.Counts{Hits: 10 * n, Handled: 7 * n, Filtered: 2 * n, Missed: n, Returns: 6 * n}, Abandoned: n, Lost: n / 2, Events: 7 * n}
		s.CPUs = []api.CPUStats{{Counts: s.Counts}}
		return s
	}
	own := fmt.Sprintf("kprobes/own%d", f.n)
	return []api.Probe{
		{
			ID: 1, Name: "kprobes/myread", Def: "p:kprobes/myread vfs_read", Kind: "k", Symbol: "vfs_read", Addr: 0xffffffff81000000 + api.Hex(f.n)<<8, Enabled: true, Armed: true, Plan: "boost",
			Runs: "in the guest", Filter: "fd == 3", Unoptimized: &api.Unoptimized{Reason: "too_short", Meaning: "the function is too short", Detail: "too_short: 3 bytes"}, Stats: counts(f.n),
		},
		{
			ID: 2, Name: own, Def: "r:" + own + " do_fork", Kind: "r", Symbol: "do_fork", Addr: 0xffffffff81001000, Enabled: f.n != 2, Plan: "emulate", MaxActive: 4, InUse: 1, HighWater: 3,
			Optimized: true, Pending: f.n == 2, Stats: counts(f.n + 3),
		},
	}
}

// findProbes returns the named probes, or an error for the first name without probes.
func (f *fakeDaemon) findProbes(w http.ResponseWriter, names []string) ([]api.Probe, bool) {
	all := f.listProbes()
	if len(names) == 0 {
		return all, true
	}
	out := []api.Probe{}
	for _, name := range names {
		i := slices.IndexFunc(all, func(p api.Probe) bool {
			return p.Name == name || p.Name == "kprobes/"+name || fmt.Sprint(p.ID) == name
		})
		if i < 0 {
			rejectFake(w, http.StatusNotFound, api.Error{Code: api.CodeProbeNotFound, Errno: "ENOENT", Message: fmt.Sprintf("no probe %q", name)})
			return nil, false
		}
		out = append(out, all[i])
	}
	return out, true
}

// probes lists, changes and detaches probes.
func (f *fakeDaemon) probes(w http.ResponseWriter, r *http.Request) {
	names := r.URL.Query()["name"]
	var patch api.PatchProbes
	if r.Method == http.MethodPatch {
		_ = json.NewDecoder(r.Body).Decode(&patch)
		names = patch.Names
	}
	ps, ok := f.findProbes(w, names)
	if !ok {
		return
	}
	for i := range ps {
		p := &ps[i]
		switch {
		case r.Method == http.MethodDelete && p.Kind == "r":
			p.Stats.UnderWay = 2
		case patch.Enabled != nil:
			p.Enabled = *patch.Enabled
		case patch.Filter != nil:
			p.Filter = *patch.Filter
		}
	}
	answerFake(w, api.ProbeList{Probes: ps})
}

// attach attaches definitions. The function nosuch does not exist.
func (f *fakeDaemon) attach(w http.ResponseWriter, r *http.Request) {
	var req api.CreateProbes
	_ = json.NewDecoder(r.Body).Decode(&req)
	l := api.ProbeList{Probes: []api.Probe{}}
	for i, s := range req.Probes {
		switch {
		case strings.Contains(s.Def, "nosuch"):
			rejectFake(w, http.StatusNotFound, api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: `no symbol "nosuch"`, Index: &i})
			return
		case strings.Contains(s.Def, "%%"):
			at := strings.Index(s.Def, "%%")
			rejectFake(w, http.StatusBadRequest, api.Error{Code: api.CodeBadDefinition, Errno: "EINVAL", Message: "not a register", Index: &i, Column: &at, Command: s.Def})
			return
		case strings.HasPrefix(s.Def, "-"):
			l.Detached = append(l.Detached, f.listProbes()[0])
		case strings.HasPrefix(s.Def, "#"):
		case strings.Contains(s.Def, "*"):
			l.Probes = append(l.Probes, f.listProbes()...)
			l.Skipped = append(l.Skipped, api.Skipped{Def: "p vfs_write", Error: api.Error{Code: "blacklisted", Errno: "EINVAL", Message: "vfs_write may not be probed"}})
		default:
			p := f.listProbes()[0]
			p.Def, p.OnHost, p.Cost, p.Parts = s.Def, "its function is too short", "an exit for each access", []string{"vfs_read.part.0"}
			l.Probes = append(l.Probes, p)
		}
	}
	answerFake(w, l)
}

// fleet reports that the daemon runs all definitions of the fleet, except a script named refused.
func (f *fakeDaemon) fleet(w http.ResponseWriter, r *http.Request) {
	x, err := f.net.Definitions(r.Context())
	if err != nil {
		rejectFake(w, http.StatusInternalServerError, api.Error{Code: "internal", Message: err.Error()})
		return
	}
	s := api.FleetState{Name: f.name, Connected: true, Definitions: []api.FleetDefinition{}}
	s.Revision, _ = strconv.ParseUint(r.URL.Query().Get("revision"), 10, 64)
	for _, d := range x.Definitions {
		def := api.FleetDefinition{Name: d.Name, ID: d.ID, Where: d.Where, Kind: api.KindScript, State: api.DefinitionRunning}
		switch {
		case strings.HasPrefix(d.Name, "probes"):
			def.Kind, def.Probes = api.KindProbes, []uint64{1}
		case d.Name == "refused":
			def.State, def.Error = api.DefinitionRefused, &api.Error{Code: api.CodeBadScript, Errno: "EINVAL", Message: "it does not compile here"}
		}
		s.Definitions = append(s.Definitions, def)
	}
	answerFake(w, s)
}
