package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/source"
)

// runningScript is a script that runs for a stream. It belongs to the request's goroutine,
// or that of a script without a client, but for its records.
type runningScript struct {
	*stream
	s       *server
	script  *script.Script
	obj     *object
	own     *session
	printer *script.Printer
	records scriptRecords
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
	exit    bool   // the script has called exit, with status
	status  int64
}

// scriptRecords are the records of a script's programs on their way to its goroutine. It
// is a program.Emitter.
type scriptRecords struct {
	ready chan struct{} // capacity 1: there is something

	mu    sync.Mutex
	queue []scriptRecord
	bytes int
	lost  uint64
}

// scriptRecord is one of them, and when it came.
type scriptRecord struct {
	data []byte
	time int64
}

const (
	// maxQueued bounds what waits for a script's goroutine, in bytes: at a script's end it is printed yet.
	maxQueued = 4 << 20
	// maxTaken is how many records are printed before it is looked at what else there is to do.
	maxTaken = 1024
)

// Put implements program.Emitter.
func (q *scriptRecords) Put(_ int, time int64, data []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes+len(data) > maxQueued {
		q.lost++
		return false
	}
	q.queue, q.bytes = append(q.queue, scriptRecord{append([]byte(nil), data...), time}), q.bytes+len(data)
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return true
}

// Lose implements program.Emitter.
func (q *scriptRecords) Lose(_ int, n uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost += n
}

// take returns the next records, at most maxTaken, and the one behind them, if any.
func (q *scriptRecords) take() (records []scriptRecord, next []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	records = q.queue[:min(len(q.queue), maxTaken)]
	for _, r := range records {
		q.bytes -= len(r.data)
	}
	if q.queue = q.queue[len(records):]; len(q.queue) == 0 {
		q.queue = nil // what it was in may be given back
		return records, nil
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return records, q.queue[0].data
}

// scriptTarget is what a script knows of the guest.
type scriptTarget struct{ st *store }

// functions are those that a pattern matches, or with user those of them that are user code,
// by address, but for what cannot be probed; with each what a script calls it, which is its
// address where several have the name. With returns their returns are probed. Left is called with why one cannot be; nil
// is none.
func (t scriptTarget) functions(pattern string, user, returns bool, left func(error)) iter.Seq2[guest.Symbol, string] {
	return func(yield func(guest.Symbol, string) bool) {
		img := t.st.guest.Image()
		seen := map[guest.GVA]bool{} // a function may have several names
		for _, sym := range img.Match(pattern) {
			if sym.Kind != guest.SymFunc || seen[sym.Addr] || user && !sym.User {
				continue
			}
			seen[sym.Addr] = true
			var p probe.Probe = &probe.Kprobe{Addr: sym.Addr}
			if returns {
				p = &probe.Kretprobe{Kprobe: probe.Kprobe{Addr: sym.Addr}}
			}
			if _, err := t.st.engine.Check(p); err != nil {
				if left != nil {
					left(err)
				}
			} else if !yield(sym, source.FunctionPlace(img, sym).String()) {
				return
			}
		}
	}
}

// Match implements script.Target: it leaves out what cannot be probed.
func (t scriptTarget) Match(pattern string, user, returns bool) (names []string, left map[string]int) {
	if guest.CheckGlob(pattern) != nil {
		return nil, nil
	}
	left = map[string]int{}
	why := func(err error) {
		var refused *probe.Error
		if errors.As(err, &refused) {
			left[strings.ReplaceAll(strings.ToLower(string(refused.Code)), "_", " ")]++
			return
		}
		left[err.Error()]++
	}
	for _, name := range t.functions(pattern, user, returns, why) {
		if names = append(names, name); len(names) > script.MaxPoints {
			break
		}
	}
	return names, left
}

// Lookup implements script.Target. Of several symbols of a name it is one: registering a
// probe there is refused.
func (t scriptTarget) Lookup(name string) (addr uint64, ok bool, why string) {
	sym, err := t.st.guest.Image().Lookup(name)
	var ambiguous *guest.AmbiguousSymbolError
	if why = guest.Advice(err); err != nil && strings.HasPrefix(name, "/") && !errors.Is(err, guest.ErrSymbolNotFound) {
		why = err.Error()
	}
	return uint64(sym.Addr), err == nil || errors.As(err, &ambiguous) || errors.Is(err, guest.ErrModuleNotFound), why
}

// Exits implements script.Target.
func (t scriptTarget) Exits() []string { return machine.ExitReasons() }

// User implements script.Target.
func (t scriptTarget) User(name string) bool { return t.st.atUserCode(name) }

// Name implements script.Names.
func (t scriptTarget) Name(addr uint64) (string, uint64, bool) {
	sym, ok := t.st.guest.Image().Find(guest.GVA(addr))
	return guest.ShownName(sym.Name), addr - uint64(sym.Addr), ok
}

// Shown implements script.Names.
func (scriptTarget) Shown(addr uint64) uint64 { return linux.FileByte(guest.GVA(addr)) }

// scriptError turns what is wrong with a script into what goes over the wire.
func scriptError(err error) error {
	var e *script.Error
	if !errors.As(err, &e) {
		return err
	}
	column, width := e.Mark, e.Width
	return &api.Error{
		Code: api.CodeBadScript, Errno: "EINVAL", Message: fmt.Sprintf("%s:%d:%d-%d: ERROR: %s", e.Name, e.Line, e.Col, e.End, e.Message), Detail: e.Hint,
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
		s.endSession(rs.own)
		rs.endSlow(rs.lostTotal(), rs.own.finals())
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
	rs := &runningScript{s: s, script: sc, own: &session{}, format: req.Format, data: req.Data, every: time.Duration(req.IntervalMS) * time.Millisecond, began: s.probes.now(), life: s.guestLife()}
	defer func() {
		if err != nil {
			rs.close()
		}
	}()
	rs.records.ready = make(chan struct{}, 1)
	if rs.samples, err = rs.newSampling(); err != nil {
		return nil, nil, err
	}
	if err := rs.load(req); err != nil {
		return nil, nil, err
	}
	rs.printer = sc.NewPrinter(func(name string) *bpf.Map { return rs.obj.Maps()[name] }, scriptTarget{s.probes}, rs.format == api.ScriptJSON, rs.obj.Hold, rs.write, func(text string) { rs.warn([]string{text}) })
	warnings = append(sc.Warnings, rs.runAll(sc.Begin)...)
	s.probes.programs.Poll()
	if err := rs.begin(); err != nil {
		return nil, nil, err
	}
	return rs, warnings, nil
}

// start is the first record of a stream with that number, for a client that has just begun
// the script.
func (rs *runningScript) start(who peer, stream uint64) api.Start {
	st := rs.s.probes
	ps := st.came(slices.SortedFunc(maps.Keys(rs.own.only), func(a, b *attached) int { return cmp.Compare(a.id, b.id) }))
	rs.s.logAttached(slices.Values(ps), "uid", who.UID, "pid", who.PID)
	if !rs.data {
		rs.printer.Attached(rs.script.Attached())
	}
	idle := []api.ProgramInfo{}
	for _, p := range rs.obj.Idle {
		idle = append(idle, api.ProgramInfo{Name: p.Name(), Section: p.Section, Maps: []string{}, Instructions: p.Len(), Budget: p.Budget()})
	}
	return api.Start{Idle: idle, Stream: stream, Epoch: st.since, TimeNS: rs.began, BootNS: st.boot.Load(), Probes: ps, Attached: rs.script.Attached()}
}

// load attaches the programs of the script, which do not run yet.
func (rs *runningScript) load(req *api.RunScript) error {
	st := rs.s.probes
	st.loading.RLock()
	defer st.loading.RUnlock()
	loaded, err := st.programs.LoadScript(rs.script.Object, rs.script.Probes, program.LoadOptions{OnHost: req.OnHost, User: st.atUserCode})
	if err != nil {
		return objectError(err)
	}
	rs.obj = &object{Object: loaded, script: rs}
	specs, err := programSpecs(loaded, api.ProbeSpec{Disabled: true, OnHost: req.OnHost})
	for i, p := range loaded.Programs {
		if err == nil && p.Kind == bpf.Watch {
			specs[i].Emulate, specs[i].OnHost = req.Emulate, false
		}
	}
	if err == nil {
		_, _, err = st.apply(specs, rs.own, rs.obj)
	}
	if err == nil {
		return nil
	}
	loaded.Close()
	e := *toAPI(err)
	if e.Index == nil || *e.Index >= len(loaded.Programs) || status(e.Code) == http.StatusInternalServerError {
		return err
	}
	why := e.Message
	if e.Detail != "" {
		why += " (" + e.Detail + ")"
	}
	refused := scriptError(rs.script.Refused(loaded.Programs[*e.Index].Name, "%s", why)).(*api.Error)
	refused.Errno = e.Errno
	return refused
}

// begin has the probes arrive, unless the script has ended already.
func (rs *runningScript) begin() error {
	if rs.exits() {
		return nil
	}
	if err := rs.switchProbes(true); err != nil {
		return err
	}
	if err := rs.s.probes.engine.Optimize(); err != nil {
		rs.s.log.Warn("optimize", "err", err)
	}
	rs.samples.begin(rs)
	return nil
}

// exits reports whether the script has asked for its end already.
func (rs *runningScript) exits() bool {
	rs.records.mu.Lock()
	defer rs.records.mu.Unlock()
	return slices.ContainsFunc(rs.records.queue, func(r scriptRecord) bool {
		_, ok := rs.script.Exit(r.data)
		return ok
	})
}

// switchProbes switches those of the script on or off.
func (rs *runningScript) switchProbes(on bool) error {
	st := rs.s.probes
	if err := st.change(); err != nil {
		return err
	}
	defer st.changes.Unlock()
	_, err := st.enable(st.chosen(func(a *attached) bool { return a.stream == rs.own }), on)
	return err
}

// close gives back what the script takes. It may be repeated.
func (rs *runningScript) close() {
	rs.samples.end()
	if rs.obj != nil {
		rs.s.endSession(rs.own)
		rs.s.probes.objects.end(rs.obj)
	}
}

// runAll runs programs that are at no place in the guest, and returns warnings.
func (rs *runningScript) runAll(names []string) (warnings []string) {
	st := rs.s.probes
	st.loading.RLock() // a reset begins its maps anew
	defer st.loading.RUnlock()
	for _, name := range names {
		if err := rs.obj.Run(name); err != nil {
			rs.cut++
			warnings = append(warnings, rs.fault(name, err, 1))
		}
	}
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
