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
func (at *attacher) newPrograms() *program.Runtime {
	g, o, hub := at.guest, &at.opt, at.hub
	cfg := program.Config{
		CPUs: g.Target().NumCPU(), Memory: o.MapMemory, Now: hub.Now, Wake: hub.Wake, Engine: at.engine, Kernel: o.Kernel, Tasks: o.Tasks,
		BuildID: func(addr guest.GVA) string { return buildID(g.Image(), addr) },
		Read:    func(at guest.GVA, p []byte) error { return g.Target().ReadMemory(0, at, p) },
		Stop:    func(f func() error) error { return g.Target().Stop(func(probe.World) error { return f() }) },
		Trace: func(prog string, cpu int, msg []byte) {
			at.log.Info("trace_printk", "program", prog, "cpu", cpu, "text", strings.TrimRight(string(msg), "\n"))
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
		cfg.Clock = func() (program.Clock, error) {
			c, err := o.Clock(hub.Now)
			if err != nil {
				return program.Clock{}, err
			}
			return program.Clock{Clock: bpf.Clock{TSC: c.TSC, Mult: 1e6 << 32 / c.KHz, Time: uint64(c.At)}, Counter: c.Counter}, nil
		}
	}
	return program.New(cfg)
}

// noStageReason returns why no program runs in the guest at code of that privilege, or "".
func (at *attacher) noStageReason(user bool) string {
	if _, ok := at.guest.(program.Shared); !ok {
		return ""
	}
	return at.guest.Target().Capabilities(user).NoStage
}

// dropPrograms releases the resources of the probes' programs; the probes are not
// registered, or no longer. Callers hold changes.
func (at *attacher) dropPrograms(as []*Probe) {
	var ds []*program.Definition
	for _, a := range as {
		ds = a.runs.appendDefinition(ds)
	}
	at.programs.Drop(ds...)
	at.objects.leave(as)
}

// ObjectSpec requests the programs of an object file.
type ObjectSpec struct {
	File        []byte            // an object file of clang's bpf target, or a program of the host that contains one
	Section     string            // only the programs in this section, or in these: names and patterns separated by commas; "" means all
	At          string            // the place of the only program, or NAME=PLACE,... for the names in sections; "" means the sections' names
	SkipMissing bool              // leave out programs at functions that the guest does not have
	Set         map[string]string // constants (.rodata) by name
	MapEntries  map[string]uint32 // sizes of maps by name, in place of those in the file
	OnHost      bool              // run at an exit, even if they could run in the guest
	Disabled    bool              // register without arming
	Space       guest.GPA         // as in Spec
	Strict      bool              // reject programs with warnings
	Unsafe      bool              // programs may change the guest
}

// AttachObject loads an object file and attaches its programs: all of them, or none. Where they run is decided at once.
func (st *Session) AttachObject(req ObjectSpec) (Attached, error) {
	st.loading.RLock()
	defer st.loading.RUnlock()
	opt := program.LoadOptions{Section: req.Section, At: req.At, Set: req.Set, Entries: req.MapEntries, OnHost: req.OnHost, Strict: req.Strict, Unsafe: req.Unsafe, User: st.atUserCode, Lacks: st.helperLacks, Static: st.staticProbes, Match: st.matchFunctions}
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
	orders, err := st.recorders.programOrders(loaded, Spec{Disabled: req.Disabled, Space: req.Space, OnHost: req.OnHost, Stay: true})
	if err != nil {
		loaded.Close()
		return Attached{}, err
	}
	list, err := st.apply(orders, nil, obj)
	if err == nil {
		if err := st.engine.Optimize(); err != nil {
			st.log.Warn("optimize", "err", err)
		}
		list.Notes = loaded.Notes
		return list, nil
	}
	loaded.Close()
	// The definition is ours: its columns mean nothing to the caller.
	e := *ErrorOf(err)
	if e.Index != nil && *e.Index < len(loaded.Programs) {
		e.Text = fmt.Sprintf("section %q: %s", loaded.Programs[*e.Index].Section, e.Text)
	}
	e.Column, e.Command, e.Index = nil, "", nil
	return Attached{}, &e
}

// matchFunctions returns the functions that a pattern matches, for bpf.Selection.
func (st *Session) matchFunctions(pattern string, returns bool, most int) (functions []string, left int) {
	if guest.CheckGlob(pattern) != nil {
		return nil, 0
	}
	for sym, place := range st.Functions(pattern, false, returns, func(error) { left++ }) {
		if sym.User {
			continue
		}
		if functions = append(functions, place); len(functions) == most {
			break
		}
	}
	return functions, left
}

// programOrders returns the orders for the probes of an object's programs; all other
// options are taken from like.
func (rs *recorders) programOrders(o *program.Object, like Spec) ([]order, error) {
	orders := make([]order, len(o.Programs))
	for i, p := range o.Programs {
		cmd, err := rs.programCommand(p)
		if err != nil {
			return nil, err
		}
		orders[i] = order{cmd, like}
		orders[i].spec.Def = cmd.String()
	}
	return orders, nil
}

// atUserCode reports whether the place that a program attaches to is code of CPL3. If
// the place does not exist, registration reports it.
func (at *attacher) atUserCode(attachTo string) bool {
	def, err := event.NewCommand(event.KindProbe, programGroup, "x", attachTo).Define(event.Scope{})
	if err != nil {
		return false
	}
	img := at.guest.Image()
	if def.Place.Symbol == "" {
		return img.IsUserText(def.Place.Addr)
	}
	sym, err := img.Lookup(def.Place.FullName())
	return err == nil && sym.User
}

// programCommand returns the definition of a program's place.
func (rs *recorders) programCommand(p *program.Program) (*event.Command, error) {
	kind := event.KindProbe
	switch {
	case p.Kind == bpf.Watch:
		kind = event.KindWatch
	case p.Kind.AtReturn():
		kind = event.KindReturn
	}
	place := p.AttachTo
	if name, ok := strings.CutPrefix(place, bpf.AtTracepoint); ok {
		kind, place = event.KindTracepoint, name
		if of, ok := p.Event(); ok {
			e, _, err := rs.event(of)
			if err != nil {
				return nil, &Error{Code: CodeBadObject, Errno: syscall.ENOENT, Text: fmt.Sprintf("section %q: %v", p.Section, err)}
			}
			place = e.Tracepoint
		}
	}
	cmd := event.NewCommand(kind, programGroup, p.Name, place)
	if _, err := cmd.Define(event.Scope{}); err != nil || p.AttachTo == "" || strings.ContainsAny(p.AttachTo, " \t#") {
		return nil, &Error{
			Code: CodeBadObject, Errno: syscall.EINVAL, Text: fmt.Sprintf("section %q, function %q: not a place and a name", p.Section, p.Name),
			Detail: adviceNoPlace,
		}
	}
	return cmd, nil
}

// adviceNoPlace is the advice for a program without a place.
const adviceNoPlace = "name the section kprobe/FUNCTION, kprobe/FUNCTION+OFFSET or kretprobe/FUNCTION, or choose the function with --at"

// objectError turns the rejection of a file into an Error.
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
	case errors.Is(err, bpf.ErrMapLimit):
		e.Errno, e.Detail = syscall.E2BIG, "--map-entries NAME=N sets the size of a map"
	case errors.Is(err, bpf.ErrObjectTooLarge), errors.Is(err, bpf.ErrTooLong):
		e.Errno = syscall.E2BIG
	case errors.Is(err, program.ErrMapMemory):
		e.Code, e.Errno, e.Detail = CodeTooMany, syscall.ENOMEM, "detach programs, or allow more memory for maps"
	case errors.Is(err, bpf.ErrNoSection):
		e.Errno = syscall.ENOENT
	}
	return e
}
