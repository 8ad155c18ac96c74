package http

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// programGroup is the group of the events of programs from object files.
const programGroup = "bpf"

// sharedGuest is what a Guest has whose memory programs can share.
type sharedGuest interface {
	program.Shared
	Clock(now func() int64) (machine.Clock, error)
	NoStage(user bool) string // why no stage runs in the guest, "" = they do
}

// newPrograms makes the runtime of a guest's programs.
func newPrograms(log *slog.Logger, g Guest, hub *event.Hub, memory uint64) *program.Runtime {
	cfg := program.Config{
		CPUs: len(g.State().VCPUs), Memory: int64(memory), Now: hub.Now, Wake: hub.Wake, Engine: g.Engine(), Read: g.ReadText,
		Stop: func(f func() error) error { return g.Stop(func(probe.World) error { return f() }) },
		Trace: func(prog string, cpu int, msg []byte) {
			log.Info("trace_printk", "program", prog, "cpu", cpu, "text", strings.TrimRight(string(msg), "\n"))
		},
	}
	if s, ok := g.(stepping); ok {
		cfg.StopAll = s.StopAll
	}
	if l, ok := g.(linuxGuest); ok && l.kernel() != nil {
		cfg.Kernel, cfg.Tasks = l.kernel().programs, l.kernel().reader
	}
	s, ok := g.(sharedGuest)
	if !ok {
		return program.New(cfg)
	}
	cfg.Shared = s
	cfg.Clock = func() (bpf.Clock, error) {
		c, err := s.Clock(hub.Now)
		if err != nil {
			return bpf.Clock{}, err
		}
		return bpf.Clock{TSC: c.TSC, Mult: 1e6 << 32 / c.KHz, Time: uint64(c.At)}, nil
	}
	return program.New(cfg)
}

// attachProgram makes the program of an object the handlers of a, which is not
// registered yet. Callers hold changes.
func (st *store) attachProgram(a *attached) {
	if a.watch != nil {
		a.prog.AttachWatch(a.watch)
		a.onHost = a.prog.Why
		return
	}
	// Registering it gives the reason where there is no such place.
	addr, user, entry, _ := st.engine.Resolve(a.kprobe)
	refuse := st.noStage(user)
	if r, ok := a.probe.(*probe.Kretprobe); ok {
		a.prog.AttachReturn(r, addr, user, refuse)
	} else {
		a.prog.Attach(a.kprobe, addr, user, entry, refuse)
	}
	a.onHost = a.prog.Why
}

// noStage returns why no program runs in the guest at code of that privilege, or "".
func (st *store) noStage(user bool) string {
	if g, ok := st.guest.(sharedGuest); ok {
		return g.NoStage(user)
	}
	return ""
}

// dropPrograms gives back what the programs of probes take; they are not registered,
// or no more. Callers hold changes.
func (st *store) dropPrograms(as []*attached) {
	var ds []*program.Definition
	for _, a := range as {
		if a.program != nil {
			ds = append(ds, a.program)
		}
	}
	st.programs.Drop(ds...)
	st.objects.leave(as)
}

// createPrograms attaches the programs of an object file.
func (s *server) createPrograms(w http.ResponseWriter, r *http.Request) error {
	if err := s.effort.room(); err != nil {
		return err
	}
	var req api.AttachProgram
	if err := readLarge(w, r, &req); err != nil {
		return err
	}
	if len(req.Object) == 0 {
		return badValue("object is missing: the bytes of an object file")
	}
	ps, err := s.probes.attachObject(req)
	if err != nil {
		return err
	}
	if err := s.keep(); err != nil {
		_, gone := s.probes.detachIf(func(a *attached) bool {
			return slices.ContainsFunc(ps, func(p api.Probe) bool { return p.ID == a.id })
		})
		return errors.Join(err, gone)
	}
	s.logAttached(slices.Values(ps), "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
	writeProbes(w, http.StatusCreated, slices.Values(ps), api.ProbeList{})
	return nil
}

// attachObject loads an object file and attaches its programs, all or none.
func (st *store) attachObject(req api.AttachProgram) ([]api.Probe, error) {
	st.loading.RLock()
	defer st.loading.RUnlock()
	opt := program.LoadOptions{Section: req.Section, At: req.At, Set: req.Set, OnHost: req.OnHost, Strict: req.Strict, Unsafe: req.Unsafe, User: st.atUserCode, Lacks: st.helperLacks}
	if req.SkipMissing {
		opt.Has = func(function string) bool {
			_, err := st.guest.Image().Lookup(function)
			return err == nil
		}
	}
	loaded, err := st.programs.Load(req.Object, opt)
	if err != nil {
		return nil, objectError(err)
	}
	if len(loaded.LeftOut) > 0 {
		st.log.Info("programs are left out: the guest does not have their functions", "functions", loaded.LeftOut)
	}
	obj := &object{Object: loaded, request: &req}
	specs, err := programSpecs(loaded, api.ProbeSpec{Disabled: req.Disabled, Space: req.Space, OnHost: req.OnHost, Stay: true})
	if err != nil {
		loaded.Close()
		return nil, err
	}
	come, _, err := st.apply(specs, nil, obj)
	if err == nil {
		return st.settle(st.came(come)), nil
	}
	loaded.Close()
	// The definition is ours: its columns say nothing to the client.
	e := *toAPI(err)
	if e.Index != nil && *e.Index < len(loaded.Programs) {
		e.Message = fmt.Sprintf("section %q: %s", loaded.Programs[*e.Index].Section, e.Message)
	}
	e.Column, e.Command, e.Index = nil, "", nil
	return nil, &e
}

// programSpecs are the probes of an object's programs, which are like in all else.
func programSpecs(o *program.Object, like api.ProbeSpec) ([]api.ProbeSpec, error) {
	specs := make([]api.ProbeSpec, len(o.Programs))
	for i, p := range o.Programs {
		specs[i] = like
		var err error
		if specs[i].Def, err = programDef(p); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// atUserCode reports whether the place that a program attaches to is code of CPL3.
// Where there is no such place registering says so.
func (st *store) atUserCode(attachTo string) bool {
	def, err := event.Parse("p:x " + attachTo)
	if err != nil {
		return false
	}
	img := st.guest.Image()
	if def.Place.Symbol == "" {
		return img.IsUserText(def.Place.Addr)
	}
	sym, err := img.Lookup(def.Place.Qualified())
	return err == nil && sym.User
}

// settle has the optimizer decide about the sites of probes that were just
// attached, and describes them anew: the answer says where they run.
func (st *store) settle(ps []api.Probe) []api.Probe {
	if err := st.engine.Optimize(); err != nil {
		st.log.Warn("optimize", "err", err)
	}
	for i, p := range ps {
		if now, err := st.get(strconv.FormatUint(p.ID, 10)); err == nil {
			ps[i] = now
		}
	}
	return ps
}

// programDef writes where a program goes as a definition.
func programDef(p *program.Program) (string, error) {
	letter := "p"
	switch {
	case p.Kind == bpf.Watch:
		letter = "w"
	case p.Kind.AtReturn():
		letter = "r"
	}
	def := fmt.Sprintf("%s:%s/%s %s", letter, programGroup, p.Name, p.AttachTo)
	if _, err := event.Parse(def); err != nil || p.AttachTo == "" || strings.ContainsAny(p.AttachTo, " \t#") {
		return "", &api.Error{
			Code: api.CodeBadObject, Errno: "EINVAL", Message: fmt.Sprintf("section %q, function %q: not a place and a name", p.Section, p.Name),
			Detail: adviceNoPlace,
		}
	}
	return def, nil
}

// adviceNoPlace is for a program that says nowhere where it belongs.
const adviceNoPlace = "name the section kprobe/FUNCTION, kprobe/FUNCTION+OFFSET or kretprobe/FUNCTION, or choose the function with --at"

// objectError turns what is wrong with a file into what goes over the wire.
func objectError(err error) error {
	e := &api.Error{Code: api.CodeBadObject, Errno: "EINVAL", Message: err.Error()}
	var strict *bpf.StrictError
	var unsafe *bpf.UnsafeError
	var nowhere *bpf.PlaceError
	switch {
	case errors.As(err, &nowhere):
		e.Detail = adviceNoPlace
	case errors.As(err, &unsafe):
		e.Errno, e.Detail = "EPERM", "--unsafe allows it"
	case errors.As(err, &strict):
		if n := len(strict.Warnings); n > 1 {
			e.Detail = fmt.Sprintf("the program has %d warnings", n)
		}
	case errors.Is(err, bpf.ErrMapLimit), errors.Is(err, bpf.ErrObjectTooLarge), errors.Is(err, bpf.ErrTooLong):
		e.Errno = "E2BIG"
	case errors.Is(err, program.ErrMapMemory):
		e.Code, e.Errno, e.Detail = api.CodeTooMany, "ENOMEM", "detach programs, or start guestprobed with a larger --map-memory"
	case errors.Is(err, bpf.ErrNoSection):
		e.Errno = "ENOENT"
	}
	return e
}

// putProgram puts a record that a program has written into a ring: the number
// of the ring among those of the object, and its bytes.
func (e *eventStream) putProgram(a *attached, ev event.Event) {
	data := ev.Payload()
	if len(data) == 0 || int(data[0]) >= len(a.object.rings) {
		e.drop(ev, errors.New("of no ring"))
		return
	}
	ring := a.object.rings[data[0]]
	name, data := ring.name, data[1:]
	spec := ring.m.Spec()
	value := spec.RecordType(len(data)).JSON(data)
	text := fmt.Sprintf("%s: %x", name, data[:min(len(data), 64)])
	if len(data) > 64 {
		text += fmt.Sprintf("... (%d bytes)", len(data))
	}
	if value != nil {
		text = fmt.Sprintf("%s: %s", name, value)
	}
	e.deliver(api.Hit{
		TimeNS: ev.Time - e.s.probes.epoch, Late: ev.Late, CPU: ev.CPU, Probe: a.kprobe.Name, ID: a.id, Stage: "program",
		Addr: api.Hex(a.kprobe.Addr), Symbol: e.s.symbolize(a.kprobe.Addr), Map: name, Data: data, Value: value, Text: text,
	})
}

// whyOnHost says why the handlers of a probe run on the host; "" when they do not.
func (a *attached) whyOnHost(info probe.Info) string {
	switch {
	case info.InGuest:
		return ""
	case a.onHost != "":
		return a.onHost
	case info.NoStage != "":
		return info.NoStage
	case info.Optimized:
		return "another probe at this place takes an exit"
	}
	why := strings.ReplaceAll(info.Unoptimized.Reason, "_", " ")
	if d := info.Unoptimized.Detail; d != "" {
		why += ": " + d
	}
	return why
}

// wireProgram describes the program of a, or returns nil.
func (a *attached) wireProgram() *api.ProgramInfo {
	p := a.prog
	if p == nil {
		return nil
	}
	s := p.Stats()
	info := &api.ProgramInfo{
		Name: p.Name, Section: p.Section, Runs: s.Runs, InGuest: s.InGuest, Faults: s.Faults, Missed: s.Missed, Maps: []string{},
		Instructions: p.Loaded().Len(), CodeBytes: len(p.Code()), Budget: p.Loaded().Budget(),
	}
	if s.Last != nil {
		info.Fault = s.Last.Error()
	}
	for _, w := range p.Warnings {
		info.Warnings = append(info.Warnings, api.ProgramWarning{Instruction: w.Index, Text: w.Text, What: w.What, Source: w.Source})
	}
	for _, m := range a.object.maps {
		if p.Uses(m.m) {
			info.Maps = append(info.Maps, m.name)
		}
	}
	return info
}

// resetGuestAndPrograms has reset boot the guest anew, or make it what it was, with everything that programs have
// in its memory.
func (s *server) resetGuestAndPrograms(ctx context.Context, reset func(context.Context) error) error {
	// What is attached in between would take memory that programs had before.
	s.probes.loading.Lock()
	defer s.probes.loading.Unlock()
	if err := s.probes.change(); err != nil {
		return err
	}
	defer s.probes.changes.Unlock()
	running := s.guest.State().Phase == machine.PhaseRunning
	if running {
		// What programs have counted is in its memory, which goes. A guest that has
		// just ended needs no pause.
		var late *machine.StopTimeoutError
		if err := s.guest.Pause(); errors.As(err, &late) {
			_ = s.guest.Resume()
			return err
		}
	}
	s.probes.programs.Save()
	s.nameAll()
	if err := reset(ctx); err != nil {
		if running {
			_ = s.guest.Resume() // the error to tell is that of the reset
		}
		return err
	}
	if err := s.probes.programs.Reset(); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	s.probes.locateAgain(func(l *event.Layout) bool { return l.Fixed })
	return nil
}
