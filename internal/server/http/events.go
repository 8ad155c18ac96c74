package http

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// eventStream is one client's view of the events.
type eventStream struct {
	*stream
	host *eventHost
	sub  *session.Subscription
	only map[*session.Probe]bool // nil: all probes, present and future

	// base is how many records the rings had lost before the stream began, and
	// last how many when it ended. Before that, last is nil.
	base uint64
	last *uint64

	began int64 // when it was requested, since the store's epoch
	boot  int64 // the boot that its client knows of

	stops uint64 // the last stop of a vCPU that the client knows of

	// damaged counts invalid records, which count as lost. A hostile guest can
	// write them.
	damaged uint64
	own     *session.Owner

	profile *profile // gathers the stacks of a profile; nil: hits are sent
	gone    uint64   // lost by the profile

	brought *api.ProbeList // the stream's own probes as they were attached; nil once its client has them
}

func (eh *eventHost) streamEvents(w http.ResponseWriter, r *http.Request, q values) error {
	req, err := eventsRequest(w, r, q)
	if err != nil {
		return err
	}
	return eh.serveEvents(w, r, req, nil)
}

// serveEvents streams hits, or with p a profile of hits or samples.
func (eh *eventHost) serveEvents(w http.ResponseWriter, r *http.Request, req api.StreamEvents, p *profile) (err error) {
	own := &session.Owner{}
	e := &eventStream{host: eh, own: own, profile: p, began: eh.probes.Now(), boot: eh.control.boot.Load()}
	if p != nil {
		e.only = map[*session.Probe]bool{} // the probes of req.Probes, if any
	}
	if len(req.Names) > 0 {
		chosen, err := eh.probes.Choose(req.Names...)
		if err != nil {
			return err
		}
		e.only = make(map[*session.Probe]bool, len(chosen))
		for _, a := range chosen {
			e.only[a] = true
		}
	}
	// Subscribe first, so that the probes' first hit is included.
	wanted := session.AllEvents
	if p != nil && p.hz > 0 { // samples are not events
		wanted = session.NoEvents
	}
	filter := e.wants
	if len(req.Probes) > 0 {
		filter = func(ev event.Event) bool { return session.ProbeOf(ev).Owner() == own }
	}
	e.sub = eh.probes.Subscribe(filter, event.Queue{}, wanted)
	defer e.sub.Close()
	e.base = e.ringLost()

	if len(req.Probes) > 0 {
		list, come, err := eh.attach(req.Probes, own)
		if err != nil {
			return err
		}
		defer eh.endSession(own)
		eh.logAttached(slices.Values(list.Probes), "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
		e.only, e.base, e.brought = setOf(come), 0, &list
	}
	if e.stream, err = eh.streams.openStream(w, r); err != nil {
		return err
	}
	defer eh.streams.closeStream(e.stream)
	if p != nil {
		p.begin()
		defer p.end()
	} else {
		eh.lines.join()
		defer eh.lines.leave()
	}
	if err = e.putStart(); err == nil {
		err = e.run(r)
	}
	if errors.Is(err, errSlow) {
		eh.log.Warn("a stream is ended: its client does not read", "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
		eh.endSession(own)
		eh.probes.Sync()
		e.sub.Close() // the records left in the queue count as lost
		e.endSlow(e.countLost(), e.finals())
	}
	return nil // the client is gone
}

// putStart sends the first record, an api.Start, in parts: it contains every
// probe of the stream.
func (e *eventStream) putStart() error {
	epoch, err := json.Marshal(e.host.probes.Epoch())
	if err != nil {
		panic("BUG: marshal time: " + err.Error())
	}
	probes := wireProbes(e.host.probes.Infos(e.host.selectAttached(e.only)))
	var skipped []api.Skipped
	if e.brought != nil {
		// Other clients, or the daemon's end, may have detached them already.
		probes, skipped, e.brought = slices.Values(e.brought.Probes), e.brought.Skipped, nil
	}
	b := bufio.NewWriterSize(partWriter{e.stream}, maxGather)
	fmt.Fprintf(b, `{"type":%q,"data":{"stream":%d,"epoch":%s,"timeNs":%d,"bootNs":%d,"probes":`, api.RecordStart, e.id, epoch, e.began, e.boot)
	writeList(b, probes)
	if len(skipped) > 0 {
		b.WriteString(`,"skipped":`)
		writeList(b, slices.Values(skipped))
	}
	b.WriteString("}}\n")
	return b.Flush()
}

// endStream has a stream send its end.
func (eh *eventHost) endStream(w http.ResponseWriter, r *http.Request) error {
	if id := r.PathValue("stream"); !eh.streams.ask(id) {
		return &api.Error{Code: api.CodeNoStream, Errno: "ENOENT", Message: fmt.Sprintf("no stream %q is open", id)}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// eventsRequest reads the request from the query of a GET or from the body of a
// POST.
func eventsRequest(w http.ResponseWriter, r *http.Request, q values) (req api.StreamEvents, err error) {
	if r.Method == http.MethodPost {
		if err := readBody(w, r, &req, true); err != nil {
			return req, err
		}
		if len(req.Probes) > 0 && len(req.Names) > 0 {
			return req, badValue("either probes to attach, or names of attached ones")
		}
		return req, nil
	}
	req.Names = q.texts("probe")
	return req, nil
}

// run sends events until there is a reason to stop. An error means that the
// client is gone. A client that does not read blocks only this goroutine: its
// queue fills up, and further events are dropped and counted as lost.
func (e *eventStream) run(r *http.Request) error {
	most := e.host.opt.heartbeat
	beat := most
	if e.profile != nil {
		// A profile of few hits is complete early: its client stops at a heartbeat.
		most = min(most, profileHeart)
		beat = min(most, profileHeart/8)
	}
	heart := time.NewTicker(beat)
	defer heart.Stop()
	gather := time.NewTimer(0)
	defer gather.Stop()
	ready := e.sub.Ready()
	busy := make(chan struct{}) // always has a value
	close(busy)
	for {
		changed, gone := e.host.guest.Changed(), e.host.probes.Changed()
		if reason, code, ended := guestEnd(e.host.guest.State()); ended {
			return e.finish(reason, code)
		}
		if e.orphaned() {
			return e.finish(api.EndDetached, nil)
		}
		closed, more, err := e.drain(false)
		if err != nil {
			return err
		}
		if closed {
			if err := e.putAll(); err != nil {
				return err
			}
			e.putLost(e.countLost())
			e.end(api.EndShutdown, nil, e.finals())
			return nil
		}
		again := busy
		if !more {
			again = nil
			if err := e.putStops(); err != nil {
				return err
			}
		}
		select {
		case <-again:
		case <-ready:
			// The first hit is sent at once; under load the following ones are gathered for
			// a moment.
			ready = nil
			gather.Reset(gatherTime)
		case <-gather.C:
			ready = e.sub.Ready()
		case <-heart.C:
			e.progress()
			e.putHeartbeat()
			if beat < most {
				beat = min(2*beat, most)
				heart.Reset(beat)
			}
		case named := <-e.profile.nameRequests():
			if _, _, err := e.drain(true); err != nil {
				return err
			}
			e.progress()
			close(named)
		case <-e.asked:
			return e.finish(api.EndAsked, nil)
		case <-changed:
		case <-gone:
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

// putStops reports the vCPUs that were stopped by probes of this stream or
// others. The hits that stopped them come first, because a stopped vCPU has no
// more hits.
func (e *eventStream) putStops() error {
	for _, x := range e.host.stopsAfter(&e.stops, func(by any) bool { return by != nil }) {
		e.put(api.RecordStop, x)
	}
	return e.flush()
}

// orphaned reports whether the stream was about certain probes and all of them
// are gone.
func (e *eventStream) orphaned() bool {
	return len(e.only) > 0 && e.host.allDetached(maps.Keys(e.only))
}

// finish sends the remaining events and the end. The stream's own probes are
// detached first: from then on, every hit that they handled is either delivered
// or lost. Events of other clients' probes are left to other subscribers.
func (e *eventStream) finish(reason string, code *int64) error {
	e.host.endSession(e.own)
	e.sub.Release()
	e.host.probes.Sync()
	e.sub.Stop() // other clients' probes stay armed
	last := e.ringLost()
	e.last = &last
	_, _, err := e.drain(true)
	if err == nil {
		err = e.putAll()
	}
	if err == nil {
		e.end(reason, code, e.finals())
	}
	return err
}

// drain sends the queued events; without all, only as many as fit into one
// write. closed means that no more will come.
func (e *eventStream) drain(all bool) (closed, more bool, err error) {
	for {
		if e.late() {
			e.sub.Close() // the records left in the queue count as lost
		}
		ev, ok, ended := e.sub.TryNext()
		if ok {
			e.putHit(ev)
			if e.buf.Len() < maxGather {
				continue
			}
		}
		e.putLost(e.countLost())
		if err := e.flush(); err != nil || !ok || !all {
			return ended, ok, err
		}
	}
}

// countLost returns everything that this stream has lost: in the rings, in its
// own queue, and after the queue.
func (e *eventStream) countLost() uint64 {
	ring := e.last
	if ring == nil {
		now := e.ringLost()
		ring = &now
	}
	return e.sub.Counts().Lost + *ring - e.base + e.damaged + e.gone
}

func (e *eventStream) ringLost() uint64 {
	if e.only == nil {
		return e.host.probes.EventCounts().Total().Lost
	}
	n := uint64(0)
	for a := range e.only {
		n += a.LostEvents()
	}
	return n
}

func (e *eventStream) wants(ev event.Event) bool {
	return e.only == nil || e.only[session.ProbeOf(ev)]
}

func (e *eventStream) putHit(ev event.Event) {
	if e.profile == nil {
		if l := e.host.lines.find(ev); l != nil {
			e.countHit(l.time, l.late)
			e.buf.Write(l.text)
			return
		}
	}
	a := session.ProbeOf(ev)
	if a.Object() != nil {
		e.putProgram(ev)
		return
	}
	rec, err := ev.Decode()
	if err != nil {
		e.drop(ev, err)
		return
	}
	if e.profile != nil {
		e.profile.hit(a, ev, rec)
		return
	}
	h := api.Hit{
		TimeNS: e.host.probes.TimeOf(ev), Late: ev.Late, CPU: ev.CPU, Probe: a.Name(), ID: a.ID(), Stage: rec.Moment.String(),
		Addr: api.Hex(rec.Addr), Symbol: e.host.symbolize(rec.Addr), CPL: rec.CPL, IRQsOff: rec.IRQsOff,
		Text: string(ev.Source.Layout.AppendArgs(nil, rec)),
	}
	if rec.Moment == event.AtReturn {
		h.Ret, h.RetSymbol, h.DurationNS = api.Hex(rec.Ret), e.host.symbolize(rec.Ret), rec.Duration
	}
	if rec.HasTask {
		h.Task = &api.Task{PID: rec.PID, Comm: rec.Comm}
	}
	for _, v := range rec.Values {
		h.Args = append(h.Args, wireArg(v))
	}
	if rec.Regs != nil {
		h.Regs = wireRegs(rec.Regs)
	}
	if rec.Stack != nil {
		h.Stack = newNamer(e.host.guest).frames(rec.Stack, rec.Moment != event.AtReturn)
	}
	e.deliver(ev, &h)
}

// deliver puts the hit of an event.
func (e *eventStream) deliver(ev event.Event, h *api.Hit) {
	e.countHit(h.TimeNS, h.Late)
	start := e.buf.Len()
	e.putHitRecord(h)
	e.host.lines.keep(ev, h.TimeNS, e.buf.Bytes()[start:])
}

// countHit counts a hit that is put next, after the records of the boots since the hit before it.
func (e *eventStream) countHit(ns int64, late bool) {
	if e.host.control.boot.Load() != e.boot {
		for _, boot := range e.host.control.bootsBetween(e.boot, ns) {
			e.boot = boot
			e.put(api.RecordBoot, api.Boot{BootNS: boot})
		}
	}
	e.delivered++
	if late {
		e.lateOnes++
	}
}

// drop counts and logs an invalid record.
func (e *eventStream) drop(ev event.Event, err error) {
	if e.damaged++; e.damaged == 1 {
		e.host.log.Warn("damaged record, counted as lost like those that follow in this stream", "source", ev.Source, "err", err)
	}
}

func wireArg(v event.Value) api.Arg {
	a := api.Arg{Name: v.Name, Type: v.Type.String(), Value: v.JSON(), Text: string(v.AppendText(nil))}
	valid := true
	for _, d := range v.Data {
		a.Cut = a.Cut || d.Cut
		valid = valid && utf8.ValidString(d.Text)
	}
	if !valid {
		for _, d := range v.Data {
			a.Raw = append(a.Raw, []byte(d.Text))
		}
	}
	return a
}

func wireRegs(r *probe.Regs) map[string]api.Hex {
	all := r.Values()
	m := make(map[string]api.Hex, len(all))
	for i, v := range all {
		m[x86.RegNames[i]] = api.Hex(v)
	}
	return m
}
