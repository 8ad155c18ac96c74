package http

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// createPrograms attaches the programs of an object file.
func (ph *probeHost) createPrograms(w http.ResponseWriter, r *http.Request) error {
	if err := ph.effort.room(); err != nil {
		return err
	}
	var req api.AttachProgram
	if err := readLarge(w, r, &req); err != nil {
		return err
	}
	if len(req.Object) == 0 {
		return badValue("object is missing: the bytes of an object file")
	}
	a, err := ph.probes.AttachObject(objectSpec(&req))
	if err != nil {
		return err
	}
	ps := wireInfos(ph.probes.Describe(a.Probes))
	if err := ph.state.Keep(); err != nil {
		_, gone := ph.probes.DetachIf(func(p *session.Probe) bool { return slices.Contains(a.Probes, p) })
		return errors.Join(err, gone)
	}
	ph.logAttached(slices.Values(ps), "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
	writeProbes(w, http.StatusCreated, slices.Values(ps), api.ProbeList{Notes: a.Notes})
	return nil
}

// putProgram sends a record that a program has written into a ring: the number
// of the ring among the object's rings, and the record's bytes.
func (e *eventStream) putProgram(ev event.Event) {
	r, ok := session.RingRecordOf(ev)
	if !ok {
		e.drop(ev, errors.New("of no ring"))
		return
	}
	name, data, at := r.Map, r.Data, session.ProbeOf(ev).Addr()
	value := r.Spec.RecordType(len(data)).JSON(data)
	text := fmt.Sprintf("%s: %x", name, data[:min(len(data), 64)])
	if len(data) > 64 {
		text += fmt.Sprintf("... (%d bytes)", len(data))
	}
	if value != nil {
		text = fmt.Sprintf("%s: %s", name, value)
	}
	e.deliver(ev, &api.Hit{
		TimeNS: e.host.probes.TimeOf(ev), Late: ev.Late, CPU: ev.CPU, Probe: session.ProbeOf(ev).Name(), ID: session.ProbeOf(ev).ID(), Stage: "program",
		Addr: api.Hex(at), Symbol: e.host.symbolize(at), Map: name, Data: data, Value: value, Text: text,
	})
}

// resetGuestAndPrograms resets the guest by calling reset, which boots it again
// or restores a snapshot, and lets the programs set up their memory in the guest
// again.
func (s *server) resetGuestAndPrograms(ctx context.Context, reset func(context.Context) error) error {
	running := s.guest.State().Phase == machine.PhaseRunning
	resume := func() {
		if running {
			_ = s.guest.Resume() // the other error is reported
		}
	}
	return s.probes.Reset(func() error {
		if !running {
			return nil // one that has just ended needs no pause
		}
		var late *machine.StopTimeoutError
		if err := s.guest.Pause(); errors.As(err, &late) {
			resume()
			return err
		}
		return nil
	}, func() error {
		s.nameAll()
		err := reset(ctx)
		if err != nil {
			resume()
		}
		return err
	})
}
