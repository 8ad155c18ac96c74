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

	"github.com/guestprobe/guestprobe/internal/scriptfiles"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/session"
)

// runningScript is a script that runs for a stream. Apart from its records, it
// belongs to the goroutine of the request, or to its own if it runs without a
// client.
type runningScript struct {
	*stream
	host    *scriptHost
	script  *script.Script
	loaded  *session.Script // nil: not yet
	printer *script.Printer
	format  string        // of the output
	data    bool          // the output is sent as api.RunScript.Data says
	fleet   *published    // nil: not started by a definition of the fleet
	time    int64         // of the record that is printed
	mapsAt  time.Time     // when the maps were sent as they were
	taking  time.Duration // how long that took
	every   time.Duration // how often maps are printed and cleared; 0: only at the end
	began   int64         // on the store's clock
	life    guestLife
	stops   uint64        // the last stop of a vCPU that it knows of
	samples *sampling     // nil: the script has no samples
	ending  func()        // called when its end begins, or nil
	look    chan func()   // functions to run between two records; nil: not used
	over    chan struct{} // closed when no more functions of look are run
	name    string        // given by its client, if it has one
	ended   api.End       // once it has

	written, dropped atomic.Uint64 // records, as of the last ones sent

	out     []byte // printed, and not put yet
	gone    error  // why the client cannot be written to
	read    uint64 // records that were printed
	damaged uint64 // invalid records, which count as lost
	cut     uint64 // runs that have ended early
	cutWhy  string // and the first one's reason
}

// scriptError converts an error in a script into an API error.
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
		Code: api.CodeBadScript, Errno: errno, Message: fmt.Sprintf("%s:%d:%d-%d: ERROR: %s", e.Name, e.Line, e.Col, e.End, e.Message), Detail: e.Advice(),
		Column: &column, Width: &width, Command: e.Source,
	}
}

// runScript runs a script for the duration of the stream, or without one.
func (sh *scriptHost) runScript(w http.ResponseWriter, r *http.Request) error {
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
		return sh.keepScript(w, r, &req)
	}
	rs, warnings, err := sh.startScript(r.Context(), &req)
	if err != nil {
		return err
	}
	defer rs.close()
	if rs.stream, err = sh.streams.openStream(w, r); err != nil {
		return err
	}
	defer sh.streams.closeStream(rs.stream)
	rs.put(api.RecordStart, rs.start(requestPeer(r), rs.id))
	rs.warn(warnings)
	heart := time.NewTicker(sh.opt.heartbeat)
	defer heart.Stop()
	rs.name = req.Name
	defer sh.scripts.follow(rs)()
	if err := rs.run(r.Context(), heart.C); errors.Is(err, errSlow) {
		sh.log.Warn("a script is ended: its client does not read", "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
		sh.endSession(rs.owner())
		rs.endSlow(rs.countLost(), wireInfos(rs.owner().Finals()))
	}
	return nil // the client is gone
}

// maxEvery bounds api.RunScript.IntervalMS.
const maxEvery = 24 * time.Hour

// startScript compiles a script, runs its BEGIN probes, and arms the others.
// close ends it. Output is kept until run, which needs a stream.
func (sh *scriptHost) startScript(ctx context.Context, req *api.RunScript) (_ *runningScript, warnings []string, err error) {
	sc, err := sh.compileScript(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	rs := &runningScript{host: sh, script: sc, format: req.Format, data: req.Data, every: time.Duration(req.IntervalMS) * time.Millisecond, began: sh.probes.Now(), life: sh.control.guestLife()}
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
	sh.probes.Poll()
	if _, exits := rs.loaded.Exit(); exits {
		return rs, warnings, nil
	}
	if err := rs.loaded.Begin(); err != nil {
		return nil, nil, err
	}
	rs.samples.begin(rs)
	return rs, warnings, nil
}

// start returns the first record of the stream with that number, for a client
// that has just started the script.
func (rs *runningScript) start(who peer, stream uint64) api.Start {
	st := rs.host.probes
	ps := wireInfos(st.Describe(slices.SortedFunc(rs.owner().Probes(), func(a, b *session.Probe) int { return cmp.Compare(a.ID(), b.ID()) })))
	rs.host.logAttached(slices.Values(ps), "uid", who.UID, "pid", who.PID)
	if !rs.data {
		rs.printer.PrintAttached(rs.script.CountProbes())
	}
	idle := []api.ProgramInfo{}
	for _, p := range rs.loaded.IdlePrograms() {
		idle = append(idle, api.ProgramInfo{Name: p.Name(), Section: p.Section, Maps: []string{}, Instructions: p.Len(), Budget: p.Budget()})
	}
	return api.Start{Idle: idle, Stream: stream, Epoch: st.Epoch(), TimeNS: rs.began, BootNS: rs.host.control.boot.Load(), Probes: ps, Notes: rs.script.Notes, Attached: rs.script.CountProbes()}
}

// load attaches the programs of the script. They do not run yet.
func (rs *runningScript) load(req *api.RunScript) (err error) {
	rs.loaded, err = rs.host.probes.LoadScript(rs.script, scriptOptions(req))
	return scriptError(err)
}

// scriptOptions returns how to compile and load a script.
func scriptOptions(req *api.RunScript) session.ScriptOptions {
	return session.ScriptOptions{Name: req.Name, Args: req.Args, Import: scriptfiles.ForCompiler(req.Files), Unsafe: req.Unsafe, OnHost: req.OnHost, Emulate: req.Emulate}
}

// owner returns the owner of the script's probes.
func (rs *runningScript) owner() *session.Owner { return rs.loaded.Owner() }

// close frees the script's resources. It may be repeated.
func (rs *runningScript) close() {
	rs.samples.end()
	if rs.loaded != nil {
		rs.host.logEnd(rs.loaded.Close())
	}
}

// runAll runs programs that are not at a place in the guest, and returns
// warnings.
func (rs *runningScript) runAll(names []string) (warnings []string) {
	rs.loaded.RunAll(names, func(name string, err error) {
		why := rs.fault(name, err, 1)
		rs.noteCut(1, why)
		warnings = append(warnings, why)
	})
	return warnings
}

// fault returns the warning that runs of a program have ended early.
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
