package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/session"
)

// runningScript is a script that runs for a stream. It belongs to the request's goroutine,
// or that of a script without a client, but for its records.
type runningScript struct {
	*stream
	s       *server
	script  *script.Script
	loaded  *session.Script // nil: not yet
	printer *script.Printer
	format  string        // of what is printed
	data    bool          // it goes out as api.RunScript.Data says
	fleet   *published    // nil: it is none of a definition of the fleet
	time    int64         // of the record that is printed
	mapsAt  time.Time     // when the maps were sent as they were
	taking  time.Duration // how long that took
	every   time.Duration // maps are printed and cleared so often; 0: at the end alone
	began   int64         // on the store's clock
	life    guestLife
	stops   uint64        // the last stop of a vCPU that it knows of
	samples *sampling     // nil: it has none
	ending  func()        // told when its end begins, or nil
	look    chan func()   // is run between two records; nil: nobody asks
	over    chan struct{} // closed when nothing of look is run any more
	name    string        // as its client has said, of a script with one
	ended   api.End       // once it has

	written, dropped atomic.Uint64 // records, as of what was sent

	out     []byte // printed, and not put yet
	gone    error  // the client is, or does not read
	read    uint64 // records that were printed
	damaged uint64 // records that make no sense, which count as lost
	cut     uint64 // runs that have ended early
}

// scriptError turns what is wrong with a script into what goes over the wire.
func scriptError(err error) error {
	var e *script.Error
	if !errors.As(err, &e) {
		return err
	}
	errno := "EINVAL"
	var refused *session.Error
	if errors.As(err, &refused) {
		errno = probe.ErrnoName(refused.Errno)
	}
	column, width := e.Mark, e.Width
	return &api.Error{
		Code: api.CodeBadScript, Errno: errno, Message: fmt.Sprintf("%s:%d:%d-%d: ERROR: %s", e.Name, e.Line, e.Col, e.End, e.Message), Detail: e.Hint,
		Column: &column, Width: &width, Command: e.Source,
	}
}

// runScript runs a script for the time of the stream, or without one.
func (s *server) runScript(w http.ResponseWriter, r *http.Request) error {
	var req api.RunScript
	if err := readLarge(w, r, &req); err != nil {
		return err
	}
	switch req.Format {
	case "":
		req.Format = api.ScriptText
	case api.ScriptText, api.ScriptJSON:
	default:
		return badValue("format %q: want text or json", req.Format)
	}
	if req.IntervalMS > uint64(maxEvery/time.Millisecond) {
		return badValue("intervalMs %d: more than %d", req.IntervalMS, maxEvery/time.Millisecond)
	}
	if req.Data && req.Detach != "" {
		return badValue("data: is for streams")
	}
	if req.Metrics && req.Detach == "" {
		return badValue("metrics: goes with detach")
	}
	if req.Detach != "" {
		return s.keepScript(w, r, &req)
	}
	rs, warnings, err := s.startScript(r.Context(), &req)
	if err != nil {
		return err
	}
	defer rs.close()
	if rs.stream, err = s.openStream(w, r); err != nil {
		return err
	}
	defer s.closeStream(rs.stream)
	rs.put(api.RecordStart, rs.start(requestPeer(r), rs.id))
	rs.warn(warnings)
	heart := time.NewTicker(s.opt.heartbeat)
	defer heart.Stop()
	rs.name = req.Name
	defer s.scripts.follow(rs)()
	if err := rs.run(r.Context(), heart.C); errors.Is(err, errSlow) {
		s.log.Warn("a script is ended: its client does not read", "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
		s.endSession(rs.own())
		rs.endSlow(rs.lostTotal(), wireInfos(rs.own().Finals()))
	}
	return nil // the client is gone; nobody is left to tell
}

// maxEvery bounds api.RunScript.IntervalMS.
const maxEvery = 24 * time.Hour

// startScript compiles a script, runs what is for its beginning, and has its probes arrive;
// close ends it. What it prints waits for run, which needs a stream.
func (s *server) startScript(ctx context.Context, req *api.RunScript) (_ *runningScript, warnings []string, err error) {
	sc, err := s.compileScript(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	rs := &runningScript{s: s, script: sc, format: req.Format, data: req.Data, every: time.Duration(req.IntervalMS) * time.Millisecond, began: s.probes.Now(), life: s.guestLife()}
	defer func() {
		if err != nil {
			rs.close()
		}
	}()
	if rs.samples, err = rs.newSampling(); err != nil {
		return nil, nil, err
	}
	if err := rs.load(req); err != nil {
		return nil, nil, err
	}
	rs.printer = rs.loaded.NewPrinter(rs.format == api.ScriptJSON, rs.write, func(text string) { rs.warn([]string{text}) })
	warnings = append(sc.Warnings, rs.runAll(sc.Begin)...)
	s.probes.Poll()
	if _, exits := rs.loaded.Exit(); exits {
		return rs, warnings, nil
	}
	if err := rs.loaded.Begin(); err != nil {
		return nil, nil, err
	}
	rs.samples.begin(rs)
	return rs, warnings, nil
}

// start is the first record of a stream with that number, for a client that has just begun
// the script.
func (rs *runningScript) start(who peer, stream uint64) api.Start {
	st := rs.s.probes
	ps := wireInfos(st.Describe(slices.SortedFunc(rs.own().Probes(), func(a, b *session.Probe) int { return cmp.Compare(a.ID(), b.ID()) })))
	rs.s.logAttached(slices.Values(ps), "uid", who.UID, "pid", who.PID)
	if !rs.data {
		rs.printer.Attached(rs.script.Attached())
	}
	idle := []api.ProgramInfo{}
	for _, p := range rs.loaded.Idle() {
		idle = append(idle, api.ProgramInfo{Name: p.Name(), Section: p.Section, Maps: []string{}, Instructions: p.Len(), Budget: p.Budget()})
	}
	return api.Start{Idle: idle, Stream: stream, Epoch: st.Epoch(), TimeNS: rs.began, BootNS: rs.s.boot.Load(), Probes: ps, Attached: rs.script.Attached()}
}

// load attaches the programs of the script, which do not run yet.
func (rs *runningScript) load(req *api.RunScript) (err error) {
	rs.loaded, err = rs.s.probes.LoadScript(rs.script, scriptOptions(req))
	return scriptError(err)
}

// scriptOptions says how a script is compiled and loaded.
func scriptOptions(req *api.RunScript) session.ScriptOptions {
	return session.ScriptOptions{Name: req.Name, Args: req.Args, Unsafe: req.Unsafe, OnHost: req.OnHost, Emulate: req.Emulate}
}

// own returns the owner of the script's probes.
func (rs *runningScript) own() *session.Owner { return rs.loaded.Owner() }

// close gives back what the script takes. It may be repeated.
func (rs *runningScript) close() {
	rs.samples.end()
	if rs.loaded != nil {
		rs.s.logEnd(rs.loaded.Close())
	}
}

// runAll runs programs that are at no place in the guest, and returns warnings.
func (rs *runningScript) runAll(names []string) (warnings []string) {
	rs.loaded.RunAll(names, func(name string, err error) {
		rs.cut++
		warnings = append(warnings, rs.fault(name, err, 1))
	})
	return warnings
}

// fault is the warning that runs of a program have ended early.
func (rs *runningScript) fault(name string, err error, times uint64) string {
	var f *bpf.Fault
	if !errors.As(err, &f) {
		return err.Error()
	}
	what := f.Code.String()
	if times > 1 {
		what += fmt.Sprintf(" (%d times)", times)
	}
	return rs.script.Source(name, f.PC, what)
}
