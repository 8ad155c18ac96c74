package timeline

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// tracks arranges the records of a trace along time. Every hit is one event on
// its task's track: a return whose entry is known is a slice, any other hit an
// instant. It is also an instant on its vCPU's track. If tasks are not known,
// everything is on the vCPU's track.
type tracks struct {
	form   form
	base   int64 // of times: the guest's boot
	pairs  *Pairs
	tracks map[trackKey]*track
	ids    uint64
}

// form writes tracks and their events in one format.
type form interface {
	start(s *api.Start, at int64) error // at is the time of s
	track(t *track) error               // a new one, before its first event, or one with a new name
	event(e *item) error
}

// Kinds of tracks.
type trackKind uint8

const (
	trackGuest trackKind = iota // about the whole guest
	trackTask
	trackCPU
	trackCounter
)

// trackKey says which track it is.
type trackKey struct {
	kind trackKind
	pid  int32
	cpu  int    // of a vCPU, and of its idle task
	lane int    // 0: slices nest there; others are for slices that do not
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

// item is an event on a track.
type item struct {
	on     *track
	kind   itemKind
	name   string
	group  string
	at     int64 // nanoseconds since the guest's boot
	length int64 // of a slice
	value  int64 // of a counter
	task   *api.Task
	hit    *api.Hit // nil: not a hit; else its captured values are shown
	entry  []api.Arg
}

// maxTracks bounds the tracks of a trace. Events that would need another one are
// on the guest's track.
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
		if err := t.form.start(r.Start, t.trackTime(r.Start.TimeNS)); err != nil {
			return err
		}
		_, err := t.trackFor(trackKey{}, "guest")
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
		return t.form.event(&item{on: on, name: "stopped by " + r.Stop.Probe, group: "guestprobe", at: t.trackTime(r.Stop.TimeNS)})
	case r.Lost != nil:
		return t.guest(t.pairs.latest, fmt.Sprintf("LOST %d EVENTS", r.Lost.Lost))
	case r.Map != nil:
		return t.counters(r.Map)
	case r.End != nil:
		return t.guest(t.pairs.latest, fmt.Sprintf("end (%s): %d delivered, %d lost", r.End.Reason, r.End.Delivered, r.End.Lost))
	}
	return nil
}

// trackTime converts a time of the stream to the tracks' time.
func (t *tracks) trackTime(ns int64) int64 { return max(0, ns-t.base) }

// guest adds an instant to the guest's track.
func (t *tracks) guest(ns int64, text string) error {
	on, err := t.trackFor(trackKey{}, "guest")
	if err != nil {
		return err
	}
	return t.form.event(&item{on: on, name: text, group: "guestprobe", at: t.trackTime(ns)})
}

// trackFor returns a track, and creates it if it is new.
func (t *tracks) trackFor(k trackKey, title string) (*track, error) {
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
	return t.trackFor(k, fmt.Sprintf("vCPU %d", cpu))
}

// task returns the track for the hits of a task.
func (t *tracks) task(h *api.Hit, lane int) (*track, error) {
	if h.Task == nil {
		return t.lanedTrack(trackKey{kind: trackCPU, cpu: h.CPU}, lane, fmt.Sprintf("vCPU %d", h.CPU))
	}
	comm := cmp.Or(shorten(h.Task.Comm, 64), "task")
	if h.Task.PID == 0 { // each vCPU has an idle task with this number
		return t.lanedTrack(trackKey{kind: trackTask, cpu: h.CPU}, lane, fmt.Sprintf("%s (vCPU %d)", comm, h.CPU))
	}
	return t.lanedTrack(trackKey{kind: trackTask, pid: h.Task.PID}, lane, comm)
}

func (t *tracks) lanedTrack(k trackKey, lane int, title string) (*track, error) {
	if k.lane = lane; lane > 0 {
		title += fmt.Sprintf(", overlapping %d", lane)
	}
	return t.trackFor(k, title)
}

// hit adds a hit to the tracks of its task and of its vCPU.
func (t *tracks) hit(h *api.Hit) error {
	group, name, ok := strings.Cut(h.Probe, "/")
	if !ok {
		group, name = "", h.Probe
	}
	if h.Stage == "post" {
		name += ".post"
	}
	e := &item{name: name, group: group, at: t.trackTime(h.TimeNS), hit: h}
	if began, entry, ok := t.pairs.Hit(h); ok {
		e.kind, e.entry = itemSlice, entry
		e.at = t.trackTime(began)
		e.length = max(0, t.trackTime(h.TimeNS)-e.at)
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
		if lane == maxLanes { // it is still there as an instant
			e.kind, e.at = itemInstant, t.trackTime(h.TimeNS)
		}
	}
	if err := t.form.event(e); err != nil || h.Task == nil {
		return err
	}
	on, err := t.cpu(h.CPU)
	if err != nil {
		return err
	}
	return t.form.event(&item{on: on, name: name, group: group, at: t.trackTime(h.TimeNS), task: h.Task})
}

// maxLanes is how many tracks a task may have in addition to its own.
const maxLanes = 7

// counters puts the values of a map on tracks, one for each of its keys.
func (t *tracks) counters(m *api.MapSample) error {
	for _, v := range m.Values {
		name := fmt.Sprintf("%s[%s]", shorten(m.Map, 64), shorten(v.Key, 64))
		on, err := t.trackFor(trackKey{kind: trackCounter, name: name}, name)
		if err != nil {
			return err
		}
		if on.kind != trackCounter {
			continue // there are too many
		}
		if err := t.form.event(&item{on: on, kind: itemCounter, name: name, at: t.trackTime(m.TimeNS), value: v.Value}); err != nil {
			return err
		}
	}
	return nil
}

// shorten returns the beginning of a text, as valid UTF-8.
func shorten(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
