package http

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/script"
)

// fleetMapsEvery is how often the fleet gets the maps of its script, if they
// have changed.
const fleetMapsEvery = 5 * time.Second

// fleetAgainEvery is how often a script's maps are published even if they have
// not changed. Readers conclude from it that the script still publishes.
const fleetAgainEvery = time.Minute

// published is the log of a script that a definition of the fleet has started.
// Its records also go to the fleet. It belongs to the script's goroutine.
type published struct {
	*scriptLog
	rs    *runningScript
	to    *fleet.Publisher
	quiet bool // records go to the log only
	last  []byte
	again time.Time  // when the same maps are published again
	maps  fleet.Maps // the last ones
}

// Write implements io.Writer.
func (p *published) Write(b []byte) (int, error) {
	if !p.quiet {
		p.to.Put(b, p.rs.delivered)
	}
	return p.scriptLog.Write(b)
}

// writeApart calls f, whose output goes to the log only.
func (p *published) writeApart(rs *runningScript, f func()) {
	if rs.gone = rs.send(); rs.gone != nil {
		return
	}
	p.quiet = true
	defer func() { p.quiet = false }()
	f()
	if rs.gone == nil {
		rs.gone = rs.send()
	}
}

// take publishes the present maps if they have changed, or keeps the last ones
// for the end.
func (p *published) take(rs *runningScript, maps []script.MapState, left int, final bool) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	elements := 0
	for _, m := range maps {
		if err := enc.Encode(m); err != nil {
			panic("BUG: a map as JSON: " + err.Error())
		}
		elements += len(m.Elements)
	}
	p.maps = fleet.Maps{Records: b.Bytes(), Elements: elements, Left: left, Lost: rs.countLost(), Every: int(fleetAgainEvery / time.Second)}
	if final {
		return
	}
	ps := wireInfos(rs.host.probes.DescribePresent(slices.Collect(rs.owner().Probes())))
	for _, x := range append(ps, wireInfos(rs.owner().Finals())...) {
		p.maps.Hits, p.maps.Missed = p.maps.Hits+x.Stats.Hits, p.maps.Missed+x.Stats.Missed
	}
	if key, _ := json.Marshal(p.maps); !bytes.Equal(key, p.last) || !time.Now().Before(p.again) {
		p.last, p.again = key, time.Now().Add(fleetAgainEvery)
		p.to.Snapshot(p.maps)
	}
}

// finish publishes the last maps after everything that the script has printed. A
// nil p does nothing.
func (p *published) finish() {
	if p == nil {
		return
	}
	p.maps.End, p.maps.Lost, p.maps.Hits, p.maps.Missed = p.rs.ended.Reason, p.rs.lost, 0, 0
	for _, x := range p.rs.ended.Probes {
		p.maps.Hits, p.maps.Missed = p.maps.Hits+x.Stats.Hits, p.maps.Missed+x.Stats.Missed
	}
	p.to.Snapshot(p.maps)
}
