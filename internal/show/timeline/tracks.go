package timeline

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// tracks puts the records of a trace where they stand along time. Every hit is one event of its task's
// track: a return that knows its entry a slice, any other an instant. It is an instant of its vCPU's
// track, too. Where tasks are not known all of it is on the vCPU's.
type tracks struct {
	form   form
	base   int64 // of times: the guest's boot
	pairs  *Pairs
	tracks map[trackKey]*track
	ids    uint64
}

// form writes what stands on tracks.
type form interface {
	start(s *api.Start, at int64) error // at is the time of s
	track(t *track) error               // a new one, before its first event, or one with a new name
	event(e *item) error
}

// Kinds of tracks.
type trackKind uint8

const (
	trackGuest trackKind = iota // of what is about the whole guest
	trackTask
	trackCPU
	trackCounter
)

// trackKey says which track it is.
type trackKey struct {
	kind trackKind
	pid  int32
	cpu  int    // of a vCPU, and of its idle task
	lane int    // 0: slices nest there; others are for those that do not
	name string // of a counter
}

// track is a line of events.
type track struct {
	trackKey
	id    uint64 // from 1 on; the guest's is 1
	title string
	nest  *nesting
}

// Kinds of events.
type itemKind uint8

const (
	itemInstant itemKind = iota
	itemSlice
	itemCounter
)

// item is what stands on a track.
type item struct {
	on     *track
	kind   itemKind
	name   string
	group  string
	at     int64 // nanoseconds since the guest's boot
	length int64 // of a slice
	value  int64 // of a counter
	task   *api.Task
	hit    *api.Hit // nil: no hit; what it has captured is shown
	entry  []api.Arg
}

// maxTracks bounds the tracks of a trace. What has none stands on the guest's.
const maxTracks = 1 << 14

func newTracks(f form) *tracks {
	return &tracks{form: f, pairs: NewPairs(), tracks: map[trackKey]*track{}}
}

// write puts a record on tracks.
func (t *tracks) write(r *Record) error {
	switch {
	case r.Start != nil:
		t.base = r.Start.BootNS
		t.pairs.Start(r.Start)
		if err := t.form.start(r.Start, t.at(r.Start.TimeNS)); err != nil {
			return err
		}
		_, err := t.of(trackKey{}, "guest")
		return err
	case r.Hit != nil:
		return t.hit(r.Hit)
	case r.Boot != nil:
		t.pairs.Clear()
		return t.guest(r.Boot.BootNS, "guest booted")
	case r.Stop != nil:
		on, err := t.cpu(r.Stop.CPU)
		if err != nil {
			return err
		}
		return t.form.event(&item{on: on, name: "stopped by " + r.Stop.Probe, group: "guestprobe", at: t.at(r.Stop.TimeNS)})
	case r.Lost != nil:
		return t.guest(t.pairs.latest, fmt.Sprintf("LOST %d EVENTS", r.Lost.Lost))
	case r.Map != nil:
		return t.counters(r.Map)
	case r.End != nil:
		return t.guest(t.pairs.latest, fmt.Sprintf("end (%s): %d delivered, %d lost", r.End.Reason, r.End.Delivered, r.End.Lost))
	}
	return nil
}

// at is a time of the stream as tracks have it.
func (t *tracks) at(ns int64) int64 { return max(0, ns-t.base) }

// guest puts an instant on the guest's track.
func (t *tracks) guest(ns int64, text string) error {
	on, err := t.of(trackKey{}, "guest")
	if err != nil {
		return err
	}
	return t.form.event(&item{on: on, name: text, group: "guestprobe", at: t.at(ns)})
}

// of returns a track, which it makes when it is new.
func (t *tracks) of(k trackKey, title string) (*track, error) {
	on := t.tracks[k]
	switch {
	case on != nil && on.title == title:
		return on, nil
	case on != nil:
		on.title = title
	case len(t.tracks) >= maxTracks:
		return t.tracks[trackKey{}], nil
	default:
		t.ids++
		on = &track{trackKey: k, id: t.ids, title: title, nest: &nesting{}}
		t.tracks[k] = on
	}
	return on, t.form.track(on)
}

func (t *tracks) cpu(cpu int) (*track, error) {
	k := trackKey{kind: trackCPU, cpu: cpu}
	if on := t.tracks[k]; on != nil {
		return on, nil
	}
	return t.of(k, fmt.Sprintf("vCPU %d", cpu))
}

// task returns the track that the hits of a task are on.
func (t *tracks) task(h *api.Hit, lane int) (*track, error) {
	if h.Task == nil {
		return t.laned(trackKey{kind: trackCPU, cpu: h.CPU}, lane, fmt.Sprintf("vCPU %d", h.CPU))
	}
	comm := cmp.Or(short(h.Task.Comm, 64), "task")
	if h.Task.PID == 0 { // each vCPU has one of these
		return t.laned(trackKey{kind: trackTask, cpu: h.CPU}, lane, fmt.Sprintf("%s (vCPU %d)", comm, h.CPU))
	}
	return t.laned(trackKey{kind: trackTask, pid: h.Task.PID}, lane, comm)
}

func (t *tracks) laned(k trackKey, lane int, title string) (*track, error) {
	if k.lane = lane; lane > 0 {
		title += fmt.Sprintf(", overlapping %d", lane)
	}
	return t.of(k, title)
}

// hit puts a hit on the tracks of its task and of its vCPU.
func (t *tracks) hit(h *api.Hit) error {
	group, name, ok := strings.Cut(h.Probe, "/")
	if !ok {
		group, name = "", h.Probe
	}
	if h.Stage == "post" {
		name += ".post"
	}
	e := &item{name: name, group: group, at: t.at(h.TimeNS), hit: h}
	if began, entry, ok := t.pairs.Hit(h); ok {
		e.kind, e.entry = itemSlice, entry
		e.at = t.at(began)
		e.length = max(0, t.at(h.TimeNS)-e.at)
		e.name = functionOf(h)
	}
	var err error
	for lane := 0; ; lane++ {
		if e.on, err = t.task(h, lane); err != nil {
			return err
		}
		if e.kind != itemSlice || e.on.kind == trackGuest || e.on.nest.put(e.at, e.at+e.length, len(t.tracks)) {
			break
		}
		if lane == maxLanes { // as an instant it is still there
			e.kind, e.at = itemInstant, t.at(h.TimeNS)
		}
	}
	if err := t.form.event(e); err != nil || h.Task == nil {
		return err
	}
	on, err := t.cpu(h.CPU)
	if err != nil {
		return err
	}
	return t.form.event(&item{on: on, name: name, group: group, at: t.at(h.TimeNS), task: h.Task})
}

// maxLanes is how many tracks a task has at most beside its own.
const maxLanes = 7

// counters puts what was seen in a map on a track for each of its keys.
func (t *tracks) counters(m *api.MapSample) error {
	for _, v := range m.Values {
		name := fmt.Sprintf("%s[%s]", short(m.Map, 64), short(v.Key, 64))
		on, err := t.of(trackKey{kind: trackCounter, name: name}, name)
		if err != nil {
			return err
		}
		if on.kind != trackCounter {
			continue // there are too many
		}
		if err := t.form.event(&item{on: on, kind: itemCounter, name: name, at: t.at(m.TimeNS), value: v.Value}); err != nil {
			return err
		}
	}
	return nil
}

// short is the begin of a text, valid as UTF-8.
func short(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
