package session

import (
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Script is a loaded script: its probes are attached, and the records of its programs
// wait to be taken. The caller prints them, and runs the programs of intervals,
// events and ends: by Run and Stop, or by ForEach, Tick and RunAll. Close ends it.
type Script struct {
	st       *Session
	compiled *script.Script
	obj      *Object
	owner    *Owner
	records  scriptRecords
	exit     bool // a record taken by ForEach requested the end
	status   int64
}

// ScriptOptions configure the compilation and loading of a script.
type ScriptOptions struct {
	Name    string        // in errors; "" means stdin
	Args    []string      // positional parameters
	Import  []script.File // the files that the script imports
	Unsafe  bool          // the script may change the guest
	OnHost  bool          // its programs run at exits, even if they could run in the guest
	Emulate bool          // its watches do not use debug registers

	// Stop, if not nil, is called regularly during the compilation; an error ends it.
	Stop func() error
}

// CompileScript compiles a script for this guest. The error is a *script.Error, or an
// error of ScriptOptions.Stop.
func (st *Session) CompileScript(text string, o ScriptOptions) (*script.Script, error) {
	_, linux := st.guest.Image().(probe.Kernel)
	return script.Compile(text, st.ScriptTarget(), script.Options{
		Name: o.Name, Params: o.Args, Import: o.Import, Unsafe: o.Unsafe, Files: linux, CPUs: st.guest.Target().NumCPU(),
		Now: st.hub.Now(), Epoch: st.since.UnixNano() - st.epoch, Stop: o.Stop,
	})
}

// LoadScript attaches the probes of a compiled script, disabled: Begin enables them.
// Its probes have an Owner. The error wraps a *script.Error that points into the
// script if one of its probes was rejected.
func (st *Session) LoadScript(sc *script.Script, o ScriptOptions) (*Script, error) {
	st.loading.RLock()
	defer st.loading.RUnlock()
	loaded, err := st.programs.LoadScript(sc.Object, sc.Probes, program.LoadOptions{OnHost: o.OnHost, User: st.atUserCode})
	if err != nil {
		return nil, objectError(err)
	}
	s := &Script{st: st, compiled: sc, owner: &Owner{}}
	s.records.ready = make(chan struct{}, 1)
	s.obj = &Object{loaded: loaded, script: s}
	orders, err := st.recorders.programOrders(loaded, Spec{Disabled: true, OnHost: o.OnHost})
	for i, p := range loaded.Programs {
		if err == nil && p.Kind == bpf.Watch {
			orders[i].spec.Emulate, orders[i].spec.OnHost = o.Emulate, false
		}
	}
	if err == nil {
		_, err = st.apply(orders, s.owner, s.obj)
	}
	if err == nil {
		return s, nil
	}
	loaded.Close()
	return nil, s.refusal(err)
}

// refusal makes the rejection of one of the script's probes point into the script. An
// internal error is returned unchanged.
func (s *Script) refusal(err error) error {
	e := ErrorOf(err)
	loaded := s.obj.loaded
	if e.Index == nil || *e.Index >= len(loaded.Programs) || e.Code == "" || e.Code == Code(probe.CodeTarget) {
		return err
	}
	why := e.Text
	if e.Detail != "" {
		why += " (" + e.Detail + ")"
	}
	at := s.compiled.RefusalError(loaded.Programs[*e.Index].Name, "%s", why)
	return &Error{Code: CodeBadScript, Errno: e.Errno, Text: at.Error(), Err: at}
}

// CompiledScript returns the compiled script.
func (s *Script) CompiledScript() *script.Script { return s.compiled }

// Owner returns the owner of the script's probes.
func (s *Script) Owner() *Owner { return s.owner }

// Object returns the script's programs and maps.
func (s *Script) Object() *Object { return s.obj }

// NewPrinter returns a printer of the script's records and maps; see script.Script.NewPrinter.
func (s *Script) NewPrinter(json bool, write, warn func(text string)) *script.Printer {
	return s.compiled.NewPrinter(s.mapByName, scriptTarget{s.st}, json, s.obj.loaded.Hold, write, warn)
}

// Begin enables the script's probes, unless the script has already called exit.
func (s *Script) Begin() error {
	if _, exits := s.Exit(); exits {
		return nil
	}
	if err := s.enable(true); err != nil {
		return err
	}
	if err := s.st.engine.Optimize(); err != nil {
		s.st.log.Warn("optimize", "err", err)
	}
	return nil
}

// Exit reports whether the script has called exit, and with which status: the first
// nonzero one, if any. Earlier records may still wait. It is for the goroutine that
// calls ForEach.
func (s *Script) Exit() (status int64, ok bool) {
	status, ok = s.compiled.ExitInMaps(s.mapByName)
	if s.status != 0 {
		status = s.status
	}
	return status, ok || s.exit
}

// mapByName returns a map of the script.
func (s *Script) mapByName(name string) *bpf.Map { return s.obj.loaded.Maps()[name] }

// enable enables or disables the script's probes.
func (s *Script) enable(on bool) error {
	st := s.st
	if err := st.lockChanges(); err != nil {
		return err
	}
	defer st.changes.Unlock()
	_, err := st.enable(st.selectProbes(func(a *Probe) bool { return a.owner == s.owner }), on)
	return err
}

// Disable disables the script's probes. Programs that run in the guest continue: see Quiesce.
func (s *Script) Disable() error { return s.enable(false) }

// Quiesce stops the script's probes: it disables them, calls disabled, if not nil,
// waits at most wait for the programs that run in the guest, detaches the probes, and
// takes over the records of their programs. The maps then are final, except for the
// effects of RunAll. It returns the result of EndOwner.
func (s *Script) Quiesce(wait time.Duration, disabled func()) ([]Info, error) {
	if err := s.Disable(); err != nil && !s.st.closed.Load() {
		s.st.log.Error("stop the probes of a script", "err", err)
	}
	if disabled != nil {
		disabled()
	}
	s.obj.loaded.Settle(wait)
	gone, err := s.st.EndOwner(s.owner) // calls under way return to return probes that are disabled, too
	s.st.Poll()
	return gone, err
}

// Sample returns a program of the script without a place in the guest, for sampling
// vCPUs. It may be called once for each name.
func (s *Script) Sample(name string) *program.Program { return s.obj.loaded.Sample(name) }

// IdlePrograms returns the programs of the script without a place in the guest.
func (s *Script) IdlePrograms() []bpf.LoadedProgram { return s.obj.loaded.Idle }

// RunAll runs programs of the script without a place in the guest, in their order.
// failed, if not nil, is called with each run that ends early.
func (s *Script) RunAll(names []string, failed func(name string, err error)) {
	s.st.loading.RLock() // a reset reinitializes its maps
	defer s.st.loading.RUnlock()
	for _, name := range names {
		if err := s.obj.loaded.Run(name); err != nil && failed != nil {
			failed(name, err)
		}
	}
}

// Close detaches the script's probes, and frees its maps. It may be called again. It
// returns the result of EndOwner.
func (s *Script) Close() ([]Info, error) {
	gone, err := s.st.EndOwner(s.owner)
	s.st.objects.end(s.obj)
	return gone, err
}

// ScriptRecord is a record written by a script's programs.
type ScriptRecord struct {
	Data []byte
	Time int64 // when it was taken from the programs' ring, on the clock of the event hub
}

// scriptRecords queues the records of a script's programs for its goroutine. It is a
// program.Emitter.
type scriptRecords struct {
	ready chan struct{} // capacity 1: there is something to take

	mu    sync.Mutex
	queue []ScriptRecord
	bytes int
	lost  uint64
}

const (
	// maxQueued bounds the records that wait for a script's goroutine, in bytes: at a
	// script's end they are still printed.
	maxQueued = 4 << 20
	// MaxTaken is the most records that ForEach takes.
	MaxTaken = 1024
)

// Put implements program.Emitter.
func (q *scriptRecords) Put(_ int, at int64, data []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes+len(data) > maxQueued {
		q.lost++
		return false
	}
	q.queue, q.bytes = append(q.queue, ScriptRecord{append([]byte(nil), data...), at}), q.bytes+len(data)
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

// Ready returns a channel that yields when there are records to take.
func (s *Script) Ready() <-chan struct{} { return s.records.ready }

// PendingRecords returns how many records wait to be taken.
func (s *Script) PendingRecords() int {
	s.records.mu.Lock()
	defer s.records.mu.Unlock()
	return len(s.records.queue)
}

// LostRecords returns how many records were lost before they could be taken.
func (s *Script) LostRecords() uint64 {
	s.records.mu.Lock()
	defer s.records.mu.Unlock()
	return s.records.lost
}

// ForEach takes the next records, at most MaxTaken, and calls f with each and the one
// after it, if any: a printer needs both.
func (s *Script) ForEach(f func(r ScriptRecord, next []byte)) {
	records, after := s.take()
	for i, r := range records {
		next := after
		if i+1 < len(records) {
			next = records[i+1].Data
		}
		if status, ok := s.compiled.Exit(r.Data); ok && s.status == 0 { // the first nonzero one is kept, even if a reset has reinitialized the maps
			s.exit, s.status = true, status
		}
		f(r, next)
	}
}

// take returns the next records, at most MaxTaken, and the one after them, if any.
func (s *Script) take() (records []ScriptRecord, next []byte) {
	q := &s.records
	q.mu.Lock()
	defer q.mu.Unlock()
	records = q.queue[:min(len(q.queue), MaxTaken)]
	for _, r := range records {
		q.bytes -= len(r.Data)
	}
	if q.queue = q.queue[len(records):]; len(q.queue) == 0 {
		q.queue = nil // free its memory
		return records, nil
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return records, q.queue[0].Data
}
