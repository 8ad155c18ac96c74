package session

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
)

// programGroup is the group of the events of programs from object files.
const programGroup = "bpf"

// newPrograms makes the runtime of the guest's programs.
func (st *Session) newPrograms() *program.Runtime {
	g, o, hub := st.guest, &st.opt, st.hub
	cfg := program.Config{
		CPUs: g.Target().NumCPU(), Memory: o.MapMemory, Now: hub.Now, Wake: hub.Wake, Engine: st.engine, Kernel: o.Kernel, Tasks: o.Tasks,
		Read: func(at guest.GVA, p []byte) error { return g.Target().ReadMemory(0, at, p) },
		Stop: func(f func() error) error { return g.Target().Stop(func(probe.World) error { return f() }) },
		Trace: func(prog string, cpu int, msg []byte) {
			st.log.Info("trace_printk", "program", prog, "cpu", cpu, "text", strings.TrimRight(string(msg), "\n"))
		},
	}
	if r, ok := g.(interface {
		ReadText(addr guest.GVA, p []byte) error
	}); ok {
		cfg.Read = r.ReadText
	}
	if x, ok := g.(stopper); ok {
		cfg.StopAll = x.StopAll
	}
	cfg.Shared, _ = g.(program.Shared)
	if o.Clock != nil && cfg.Shared != nil {
		cfg.Clock = func() (bpf.Clock, error) {
			c, err := o.Clock(hub.Now)
			if err != nil {
				return bpf.Clock{}, err
			}
			return bpf.Clock{TSC: c.TSC, Mult: 1e6 << 32 / c.KHz, Time: uint64(c.At)}, nil
		}
	}
	return program.New(cfg)
}

// attachProgram makes the program of an object the handlers of a, which is not
// registered yet. Callers hold changes.
func (st *Session) attachProgram(a *Probe) {
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
func (st *Session) noStage(user bool) string {
	if _, ok := st.guest.(program.Shared); !ok {
		return ""
	}
	return st.guest.Target().Capabilities(user).NoStage
}

// dropPrograms gives back what the programs of probes take; they are not registered,
// or no more. Callers hold changes.
func (st *Session) dropPrograms(as []*Probe) {
	var ds []*program.Definition
	for _, a := range as {
		if a.program != nil {
			ds = append(ds, a.program)
		}
	}
	st.programs.Drop(ds...)
	st.objects.leave(as)
}

// ObjectSpec asks for the programs of an object file.
type ObjectSpec struct {
	File        []byte            // an object file of clang's bpf target, or a program of the host that contains one
	Section     string            // only the programs in this section, or in these: names and patterns with commas between; "" means all
	At          string            // the place of the only program, or NAME=PLACE,... for the names in sections; "" means the sections' names
	SkipMissing bool              // leave out programs at functions that the guest does not have
	Set         map[string]string // constants (.rodata) by name
	OnHost      bool              // run at an exit, even if they could run in the guest
	Disabled    bool              // register without arming
	Space       guest.GPA         // as in Spec
	Strict      bool              // refuse programs with warnings
	Unsafe      bool              // programs may change what the guest does
}

// AttachObject loads an object file and attaches its programs: all of them, or none. Where they run is decided at once.
func (st *Session) AttachObject(req ObjectSpec) (Attached, error) {
	st.loading.RLock()
	defer st.loading.RUnlock()
	opt := program.LoadOptions{Section: req.Section, At: req.At, Set: req.Set, OnHost: req.OnHost, Strict: req.Strict, Unsafe: req.Unsafe, User: st.atUserCode, Lacks: st.helperLacks}
	if req.SkipMissing {
		opt.Has = func(function string) bool {
			_, err := st.guest.Image().Lookup(function)
			return err == nil
		}
	}
	loaded, err := st.programs.Load(req.File, opt)
	if err != nil {
		return Attached{}, objectError(err)
	}
	if len(loaded.LeftOut) > 0 {
		st.log.Info("programs are left out: the guest does not have their functions", "functions", loaded.LeftOut)
	}
	obj := &Object{loaded: loaded, spec: &req}
	specs, err := programSpecs(loaded, Spec{Disabled: req.Disabled, Space: req.Space, OnHost: req.OnHost, Stay: true})
	if err != nil {
		loaded.Close()
		return Attached{}, err
	}
	list, err := st.apply(specs, nil, obj)
	if err == nil {
		if err := st.engine.Optimize(); err != nil {
			st.log.Warn("optimize", "err", err)
		}
		return list, nil
	}
	loaded.Close()
	// The definition is ours: its columns say nothing to the caller.
	e := *ErrorOf(err)
	if e.Index != nil && *e.Index < len(loaded.Programs) {
		e.Text = fmt.Sprintf("section %q: %s", loaded.Programs[*e.Index].Section, e.Text)
	}
	e.Column, e.Command, e.Index = nil, "", nil
	return Attached{}, &e
}

// programSpecs are the probes of an object's programs, which are like in all else.
func programSpecs(o *program.Object, like Spec) ([]Spec, error) {
	specs := make([]Spec, len(o.Programs))
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
func (st *Session) atUserCode(attachTo string) bool {
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
		return "", &Error{
			Code: CodeBadObject, Errno: syscall.EINVAL, Text: fmt.Sprintf("section %q, function %q: not a place and a name", p.Section, p.Name),
			Detail: adviceNoPlace,
		}
	}
	return def, nil
}

// adviceNoPlace is for a program that says nowhere where it belongs.
const adviceNoPlace = "name the section kprobe/FUNCTION, kprobe/FUNCTION+OFFSET or kretprobe/FUNCTION, or choose the function with --at"

// objectError turns the refusal of a file into an Error.
func objectError(err error) error {
	e := &Error{Code: CodeBadObject, Errno: syscall.EINVAL, Text: err.Error(), Err: err}
	var strict *bpf.StrictError
	var unsafe *bpf.UnsafeError
	var nowhere *bpf.PlaceError
	switch {
	case errors.As(err, &nowhere):
		e.Detail = adviceNoPlace
	case errors.As(err, &unsafe):
		e.Errno, e.Detail = syscall.EPERM, "--unsafe allows it"
	case errors.As(err, &strict):
		if n := len(strict.Warnings); n > 1 {
			e.Detail = fmt.Sprintf("the program has %d warnings", n)
		}
	case errors.Is(err, bpf.ErrMapLimit), errors.Is(err, bpf.ErrObjectTooLarge), errors.Is(err, bpf.ErrTooLong):
		e.Errno = syscall.E2BIG
	case errors.Is(err, program.ErrMapMemory):
		e.Code, e.Errno, e.Detail = CodeTooMany, syscall.ENOMEM, "detach programs, or allow more memory for maps"
	case errors.Is(err, bpf.ErrNoSection):
		e.Errno = syscall.ENOENT
	}
	return e
}
