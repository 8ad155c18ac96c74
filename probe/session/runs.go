package session

import (
	"syscall"

	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
)

// runs is the program of a probe: its definition's, or one of an object file.
type runs interface {
	// attach makes it the handler of a, which is not registered yet. Callers hold
	// Session.changes.
	attach(at *attacher, a *Probe) error
	// locate makes it again, after addresses of names have changed. No vCPU runs.
	locate(at *attacher, a *Probe) error
	// appendDefinition appends its definition, for releasing it.
	appendDefinition(ds []*program.Definition) []*program.Definition

	// hasOwnEvents reports whether it makes events of its own, as an object file's
	// program does.
	hasOwnEvents() bool
	// countRejected is the number of records that its filter has dropped, unwanted
	// the number that no subscription wanted.
	countRejected() uint64
	countUnwanted() uint64
	// checkRefilter rejects a change of the filter, if not possible.
	checkRefilter(def *event.Def) error
	// describe describes a program of an object, otherwise it returns nil.
	describe() *ProgramInfo
}

// definitionProgram is the program of a definition and its filter.
type definitionProgram struct {
	d *program.Definition // nil until attach
}

func (r *definitionProgram) attach(at *attacher, a *Probe) error {
	filter, err := filterOf(a, a.source.Layout)
	if err != nil {
		return err
	}
	d, err := at.programs.Define(a.source.Layout, filter, a.source)
	if err != nil {
		return &Error{Code: CodeUnavailable, Errno: syscall.E2BIG, Text: "the definition and its filter are too long: " + err.Error(), Column: new(int), Command: defText(*a.spec)}
	}
	r.d = d
	return a.on.handle(at, a, d)
}

// filterOf returns the filter for a probe's records with a layout, or nil.
func filterOf(a *Probe, l *event.Layout) (*event.Filter, error) {
	if a.spec.Filter == "" {
		return nil, nil
	}
	return l.Filter(a.spec.Filter)
}

func (r *definitionProgram) locate(at *attacher, a *Probe) error {
	l, err := at.layout(a, true)
	if err != nil {
		return err
	}
	filter, err := filterOf(a, l)
	if err != nil {
		return err
	}
	return r.d.Recompile(l, filter)
}

func (r *definitionProgram) appendDefinition(ds []*program.Definition) []*program.Definition {
	if r.d == nil {
		return ds
	}
	return append(ds, r.d)
}

func (r *definitionProgram) hasOwnEvents() bool             { return false }
func (r *definitionProgram) countRejected() uint64          { return r.d.CountRejected() }
func (r *definitionProgram) countUnwanted() uint64          { return r.d.CountUnwanted() }
func (r *definitionProgram) checkRefilter(*event.Def) error { return nil }
func (r *definitionProgram) describe() *ProgramInfo         { return nil }

// objectProgram is a program of an object file.
type objectProgram struct {
	object *Object
	prog   *program.Program
}

func (r *objectProgram) attach(at *attacher, a *Probe) error {
	if err := a.on.run(at, a, r.prog); err != nil {
		return err
	}
	a.onHost = r.prog.Why
	return nil
}

func (r *objectProgram) locate(*attacher, *Probe) error { return nil }

func (r *objectProgram) appendDefinition(ds []*program.Definition) []*program.Definition { return ds }

func (r *objectProgram) hasOwnEvents() bool    { return true }
func (r *objectProgram) countRejected() uint64 { return 0 }
func (r *objectProgram) countUnwanted() uint64 { return 0 }

func (r *objectProgram) checkRefilter(def *event.Def) error {
	return &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: def.Name() + " is a program of an object, which has no filter"}
}

func (r *objectProgram) describe() *ProgramInfo {
	p := r.prog
	s := p.Stats()
	info := &ProgramInfo{
		Name: p.Name, Section: p.Section, Runs: s.Runs, InGuest: s.InGuest, Faults: s.Faults, Missed: s.Missed, Maps: []string{},
		Instructions: p.BPF().Len(), CodeBytes: len(p.Code()), Budget: p.BPF().Budget(), Steps: p.Steps, Warnings: p.Warnings,
	}
	if s.Last != nil {
		info.Fault = s.Last.Error()
	}
	for _, m := range r.object.maps {
		if p.Uses(m.m) {
			info.Maps = append(info.Maps, m.name)
		}
	}
	return info
}
