package session

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// A program of a Linux guest can have semaphores (USDT): numbers in its data that count the probes at its places. A place with a semaphore is
// written PATH:OFFSET(SEMAPHORE). The guest updates the numbers. The session sets which instruction counts in which semaphore.

// counter is a Guest that updates semaphores of programs, such as *machine.Machine. SetSemaphores returns an error if the guest does not support them or could not be stopped.
type counter interface {
	SetSemaphores(of map[guest.GVA]guest.GVA) error
}

// semaphores are the semaphores of enabled probes. Session.changes guards it.
type semaphores struct {
	at     *attacher
	probes map[placed]event.Place
}

// change adds probes that were enabled, or removes probes that were disabled or detached. An error has the index of its probe in as.
func (s *semaphores) change(as []*Probe, on bool) error {
	var changed []*Probe
	for _, a := range as {
		if a.def.Place.Semaphore == 0 {
			continue
		}
		if _, counted := s.probes[a.on]; counted == on || on && a.on.disabled(s.at.engine) {
			continue
		}
		if changed = append(changed, a); on {
			s.probes[a.on] = a.def.Place
		} else {
			delete(s.probes, a.on)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	var added []*Probe
	if on {
		added = changed
	}
	wrong, err := s.set(added)
	if err == nil || !on {
		return err
	}
	for _, a := range changed {
		delete(s.probes, a.on)
	}
	_, undo := s.set(nil)
	index := 0
	for i, a := range as {
		if a.on == wrong {
			index = i
		}
	}
	return errors.Join(&probe.Error{Code: probe.CodeSemaphore, Errno: errnoOf(err, syscall.EINVAL), Index: index, Text: err.Error(), Cause: err}, undo)
}

// set passes the map of instructions to semaphores to the guest. If an error is about a probe, wrong is that probe. A place that does
// not exist is an error if its probe is in added. Other probes with such places are skipped.
func (s *semaphores) set(added []*Probe) (wrong placed, err error) {
	g, can := s.at.guest.(counter)
	view, known := s.at.guest.Image().(*linux.View)
	if !can || !known {
		if len(s.probes) == 0 {
			return nil, nil
		}
		return nil, fmt.Errorf("only programs of a Linux guest have semaphores (%w)", syscall.EOPNOTSUPP)
	}
	of := map[guest.GVA]guest.GVA{}
	for p, place := range s.probes {
		b := &batch{}
		p.addTo(b, 0)
		where := probe.Kprobe{Symbol: b.kprobes[0].Symbol, Offset: b.kprobes[0].Offset}
		if where.Symbol == "" {
			where.Addr = b.kprobes[0].Addr // a registered probe has both symbol and address
		}
		site, _, _, err := s.at.engine.Resolve(&where)
		switch {
		case err != nil && slices.ContainsFunc(added, func(a *Probe) bool { return a.on == p }):
			return p, err
		case err != nil: // the file is not known in this boot, so the probe has no breakpoint
			continue
		}
		sem, err := linux.Programs{View: view}.SemaphoreAddr(site, place.Semaphore)
		if err != nil {
			return p, err
		}
		if other, ok := of[site]; ok && other != sem { // the kernel's uprobes reject this too
			return p, fmt.Errorf("%s: another probe of the same instruction has another semaphore", place)
		}
		of[site] = sem
	}
	return nil, g.SetSemaphores(of)
}

// renew passes the whole map to the guest again after a reset.
func (s *semaphores) renew() error {
	if len(s.probes) == 0 {
		return nil
	}
	_, err := s.set(nil)
	return err
}
