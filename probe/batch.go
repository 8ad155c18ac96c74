package probe

import (
	"errors"
	"slices"
)

// Probe is what can be registered: a *Kprobe, a *Kretprobe or a *Jprobe.
type Probe interface {
	// admitTo checks the probe and adds it to b.
	admitTo(e *Engine, b *batch) (*registration, *Error)
}

// RegisterAll puts probes of any kinds on the guest, all of them or none, as
// Register does for kprobes.
func (e *Engine) RegisterAll(ps ...Probe) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if len(ps) == 0 {
		return newError(CodeEmptyBatch, "no probe to register", "")
	}
	b := e.newBatch(len(ps))
	err := e.admitAll(b, ps)
	if err == nil {
		if refused := e.admitMirrors(b); refused != nil {
			err = refused
		}
	}
	if err == nil {
		err = e.install(b)
	}
	var refused *Error
	if errors.As(err, &refused) && refused.Index >= len(ps) {
		// It is about the end of a mirror.
		refused.Index = slices.IndexFunc(ps, func(p Probe) bool {
			_, ok := p.(*Jprobe)
			return ok
		})
	}
	for _, r := range b.regs {
		switch {
		case r.ret == nil:
		case err == nil:
			r.ret.probe.MaxActive = r.ret.max
		case r.ret.pool != nil:
			e.tramps.giveBack(r.ret.pool.inst)
			r.ret.leaveGuest(&e.tramps)
		}
	}
	return err
}

func (e *Engine) admitAll(b *batch, ps []Probe) error {
	for i, p := range ps {
		var r *registration
		err := newError(CodeBothOrNeither, "no probe", "")
		if p != nil {
			r, err = p.admitTo(e, b)
		}
		if err == nil && r.ret != nil {
			err = e.lend(r)
		}
		if err != nil {
			err.Index = i
			return err
		}
	}
	return nil
}

func (p *Kprobe) admitTo(e *Engine, b *batch) (*registration, *Error) {
	if err := e.admit(b, p); err != nil {
		return nil, err
	}
	return b.regs[len(b.regs)-1], nil
}

// asProbes turns a slice of one kind into one of any.
func asProbes[P Probe](ps []P) []Probe {
	out := make([]Probe, len(ps))
	for i, p := range ps {
		out[i] = p
	}
	return out
}
