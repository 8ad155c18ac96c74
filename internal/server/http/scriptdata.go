package http

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

const (
	// mapsEvery is how often the maps are sent during the run, so that they are
	// not lost with the daemon.
	mapsEvery = time.Second
	// mapsShare is the part of the time that sending them may take at most.
	mapsShare = 20
)

// putOutput sends the text that was printed at one time.
func (rs *runningScript) putOutput(text string) {
	o := api.Output{Text: text, TimeNS: rs.time}
	if !utf8.ValidString(text) {
		o.Text, o.Bytes = "", []byte(text)
	}
	if rs.put(api.RecordOutput, o); rs.buf.Len() >= maxGather {
		rs.gone = rs.send()
	}
}

// takeMaps sends the contents of the maps and clears them.
func (rs *runningScript) takeMaps() {
	maps, left, err := rs.printer.TakeStates()
	if err != nil {
		rs.warn([]string{"clear maps: " + err.Error()})
	}
	rs.putStates(api.ScriptMaps{Part: true, Left: left}, maps)
}

// lookAtMaps sends the present maps, unless that would take too much of the
// time.
func (rs *runningScript) lookAtMaps() {
	now := time.Now()
	if now.Sub(rs.mapsAt) < mapsShare*rs.taking {
		return
	}
	rs.host.probes.Poll()
	rs.putMaps(api.ScriptMaps{})
	rs.mapsAt, rs.taking = now, time.Since(now)
}

// putMaps sends the present maps.
func (rs *runningScript) putMaps(m api.ScriptMaps) {
	maps, left := rs.printer.States()
	if m.Left = left; rs.fleet == nil {
		rs.putStates(m, maps)
	} else if rs.fleet.take(rs, maps, left, m.Final); m.Final {
		rs.fleet.writeApart(rs, func() { rs.putStates(m, maps) })
	}
}

// putStates sends maps in records that are not too long for readers.
func (rs *runningScript) putStates(m api.ScriptMaps, maps []script.MapState) {
	m.TimeNS = rs.host.probes.Now()
	send := func(part []script.MapState, more bool) {
		if rs.gone != nil {
			return
		}
		m.Maps, m.More = encodeStates(part), more
		if rs.put(api.RecordMaps, m); rs.buf.Len() >= maxGather {
			rs.gone = rs.send()
		}
	}
	var part []script.MapState
	size := 0
	for _, all := range maps {
		some := all
		some.Elements = []script.ElementState{}
		for _, e := range all.Elements {
			b, err := json.Marshal(e)
			if err != nil {
				panic("BUG: an element as data: " + err.Error())
			}
			if size += len(b); size > maxGather {
				send(append(part, some), true)
				part, size, some.Elements = nil, len(b), []script.ElementState{}
			}
			some.Elements = append(some.Elements, e)
		}
		part = append(part, some)
	}
	send(part, false)
}

// encodeStates returns maps as JSON.
func encodeStates(maps []script.MapState) json.RawMessage {
	b, err := json.Marshal(maps)
	if err != nil {
		panic("BUG: maps as data: " + err.Error())
	}
	return b
}
