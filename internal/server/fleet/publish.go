package fleet

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Head is the first line of what a daemon's run of a definition publishes; records follow, a line each.
type Head struct {
	Version int       `json:"version"` // headVersion
	Name    string    `json:"name"`    // of the definition
	ID      string    `json:"id"`      // of it
	Since   time.Time `json:"since"`   // of it
	Daemon  string    `json:"daemon"`
	Run     string    `json:"run"`   // of the daemon: its ID
	Seq     uint64    `json:"seq"`   // 1 is the run's first message, events and maps counted apart
	Epoch   time.Time `json:"epoch"` // what times of records are from
	Time    time.Time `json:"time"`  // when this was written
	// From and To say which of the run's events these are: From of them are before. Those that are in no message were lost on
	// their way. Of maps both are how many there were.
	From  uint64 `json:"from"`
	To    uint64 `json:"to"`
	Lost  uint64 `json:"lost"`            // events that the daemon has lost itself by then
	Final bool   `json:"final,omitempty"` // nothing of the run comes after it
	// Every is after how many seconds the run publishes its maps again, also if they have not changed; 0: an older daemon, which
	// publishes changes alone.
	Every int `json:"every,omitempty"`

	Kept time.Time `json:"-"`             // when the server got it, by its clock; of those that are read
	End  string    `json:"end,omitempty"` // why it has ended
	// Of maps: elements that are missing, hits of the run's probes, and those of them that no program ran on.
	Left   int    `json:"left,omitempty"`
	Hits   uint64 `json:"hits,omitempty"`
	Missed uint64 `json:"missed,omitempty"`
}

// staleTimes is how often Every may be over until a run that is said to run has published nothing for too long.
const staleTimes = 3

// Stale reports whether a run must have published something since, if the servers keep what it publishes.
func (h *Head) Stale(now time.Time) bool {
	return !h.Final && h.Every > 0 && now.Sub(h.Kept) > staleTimes*time.Duration(h.Every)*time.Second
}

// headVersion is that of Head; another one is something else.
const headVersion = 1

// Limits of what is published.
const (
	// maxPending bounds what waits to be published of one run, in bytes: more is lost, the oldest first.
	maxPending = 8 << 20
	// maxMessage bounds the events of one message, in bytes.
	maxMessage = 256 << 10
	// pubTime is how long a server may take to say that it has a message.
	pubTime = 5 * time.Second
	// firstPause and maxPause are between two tries.
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
)

// Publisher publishes what a daemon's run of a definition prints and counts, until the server says that it is kept. Its
// methods do not wait for that, and may be called from several goroutines.
type Publisher struct {
	n    *Network
	like Head

	mu      sync.Mutex
	waiting []chunk
	bytes   int
	to      uint64 // of all that was put
	maps    *snapshot
	closed  bool
	wake    chan struct{} // capacity 1
	events  uint64        // messages
	shots   uint64
	turn    bool // the last one was of events

	since   time.Time // when a message failed that no server has yet; zero: none
	failure string    // of the last try
	dropped uint64    // events that found no room
}

// Unkept is what a daemon has published and no server keeps.
type Unkept struct {
	Since   time.Time `json:"since"`   // when it began to fail
	Error   string    `json:"error"`   // of the last try
	Waiting int       `json:"waiting"` // bytes that wait
	Dropped uint64    `json:"dropped"` // events that found no room to wait, since the daemon started
}

// Unkept returns what no server keeps of all that the daemon publishes, or nil.
func (m *Member) Unkept() *Unkept {
	m.mu.Lock()
	ps := slices.Collect(maps.Keys(m.publishers))
	m.mu.Unlock()
	var u *Unkept
	for _, p := range ps {
		p.mu.Lock()
		if !p.since.IsZero() {
			if u == nil {
				u = &Unkept{Since: p.since}
			}
			u.Error, u.Waiting, u.Dropped = p.failure, u.Waiting+p.bytes, u.Dropped+p.dropped
			if p.since.Before(u.Since) {
				u.Since = p.since
			}
		}
		p.mu.Unlock()
	}
	return u
}

// chunk is what was put at a time.
type chunk struct {
	records  []byte
	from, to uint64
}

// snapshot are maps that wait.
type snapshot struct {
	head     Head
	records  []byte
	elements int
}

// Publish returns a publisher for a run of d in this daemon, whose times are from epoch on. Close ends it.
func (m *Member) Publish(d Definition, daemon string, epoch time.Time) *Publisher {
	p := &Publisher{
		n:    m.n,
		like: Head{Version: headVersion, Name: d.Name, ID: d.ID, Since: d.Since, Daemon: daemon, Run: m.id, Epoch: epoch},
		wake: make(chan struct{}, 1),
	}
	m.mu.Lock()
	m.publishers[p] = struct{}{}
	m.mu.Unlock()
	m.publishing.Go(func() {
		p.run()
		m.mu.Lock()
		delete(m.publishers, p)
		m.mu.Unlock()
	})
	return p
}

// publish publishes a message, and returns nil when a server keeps it.
func (n *Network) publish(ctx context.Context, subject, id string, data []byte) error {
	_, err := n.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: data}, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
	return err
}

// kick has the goroutine look. The caller has mu.
func (p *Publisher) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Put publishes records, behind which the run has had so many events.
func (p *Publisher) Put(records []byte, to uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(records) == 0 {
		return
	}
	p.waiting = append(p.waiting, chunk{bytes.Clone(records), p.to, max(to, p.to)})
	p.to, p.bytes = max(to, p.to), p.bytes+len(records)
	for p.bytes > maxPending && len(p.waiting) > 1 {
		p.bytes -= len(p.waiting[0].records)
		p.dropped += p.waiting[0].to - p.waiting[0].from
		p.waiting = p.waiting[1:] // the numbers of the next ones say so
	}
	p.kick()
}

// Maps are maps at a moment.
type Maps struct {
	Records  []byte
	Elements int    // so many are in it
	Left     int    // and so many are not, because they are too many
	Lost     uint64 // events that the daemon has lost by then
	Hits     uint64 // of the run's probes
	Missed   uint64 // of these: no program ran
	End      string // why the run has ended; "": it has not
	Every    int    // seconds until the next ones at the latest
}

// Snapshot publishes maps in the place of older ones. Those with an End are the last thing that a run publishes.
func (p *Publisher) Snapshot(m Maps) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	h := p.like
	h.Time, h.From, h.To, h.Lost, h.Left, h.Final, h.End = time.Now(), p.to, p.to, m.Lost, m.Left, m.End != "", m.End
	h.Hits, h.Missed, h.Every = m.Hits, m.Missed, m.Every
	p.maps, p.closed = &snapshot{h, bytes.Clone(m.Records), m.Elements}, m.End != ""
	p.kick()
}

// errMessage is for what no server takes at all.
var errMessage = errors.New("the message is too long for the fleet's server")

// run publishes one message after the other: those of one run stay in order.
func (p *Publisher) run() {
	for p.n.life.Err() == nil {
		p.mu.Lock()
		subject, id, data := p.next(p.n.room())
		closed := p.closed
		p.mu.Unlock()
		switch {
		case data != nil:
			p.deliver(subject, id, data)
		case closed:
			return
		default:
			select {
			case <-p.wake:
			case <-p.n.life.Done():
			}
		}
	}
}

// room is how long a message may be, in bytes.
func (n *Network) room() int {
	if limit := n.nc.MaxPayload(); limit > 0 {
		return int(limit) - 4<<10 // headers
	}
	return 1 << 20 // there was no server yet
}

// next takes what is to be published now: events and maps in turn, but the last maps behind all events. The caller has mu.
func (p *Publisher) next(room int) (subject, id string, data []byte) {
	if len(p.waiting) > 0 && (p.maps == nil || p.maps.head.Final || !p.turn) {
		h := p.like
		h.From, h.Time = p.waiting[0].from, time.Now()
		at := h.From
		var records []byte
		for len(p.waiting) > 0 && p.waiting[0].from == at && (len(records) == 0 || len(records)+len(p.waiting[0].records) <= maxMessage) {
			records, at = append(records, p.waiting[0].records...), p.waiting[0].to
			p.bytes -= len(p.waiting[0].records)
			p.waiting = p.waiting[1:]
		}
		h.To = at
		p.events++
		h.Seq, p.turn = p.events, true
		return eventsSubject(h.ID, h.Run), fmt.Sprintf("%s.%s.%d", h.Run, h.ID, h.Seq), message(h, records, len(records) > room/2)
	}
	if s := p.maps; s != nil {
		p.shots++
		s.head.Seq, p.maps, p.turn = p.shots, nil, false
		b := message(s.head, s.records, true)
		if len(b) > room {
			s.head.Left += s.elements
			b = message(s.head, nil, true)
		}
		return mapsSubject(s.head.ID, s.head.Run), fmt.Sprintf("%s.%s.maps.%d", s.head.Run, s.head.ID, s.head.Seq), b
	}
	return "", "", nil
}

// message is a head and records as bytes.
func message(h Head, records []byte, pack bool) []byte {
	b, err := json.Marshal(h)
	if err != nil {
		panic("BUG: a head as JSON: " + err.Error())
	}
	b = append(append(b, '\n'), records...)
	if !pack {
		return b
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b) // a buffer takes all
	_ = z.Close()
	return out.Bytes()
}

const (
	// maxMaps bounds a message of a daemon, unpacked, in bytes.
	maxMaps = 64 << 20
	// maxHead bounds its first line.
	maxHead = 16 << 10
	// maxCount bounds the events of a run: what is above it is no number of events.
	maxCount = 1 << 62
	// maxEvery bounds Head.Every, a day in seconds.
	maxEvery = 24 * 3600
)

// unpack reads a message.
func unpack(b []byte) (h Head, records []byte, err error) {
	if len(b) > 2 && b[0] == 0x1f && b[1] == 0x8b {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err == nil {
			b, err = io.ReadAll(io.LimitReader(z, maxMaps+1))
		}
		if err == nil && len(b) > maxMaps {
			err = errMessage
		}
		if err != nil {
			return h, nil, err
		}
	}
	line, records, _ := bytes.Cut(b, []byte("\n"))
	if len(line) > maxHead {
		return h, nil, errMessage
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, nil, err
	}
	if h.Version != headVersion || h.To < h.From || h.To > maxCount || !serviceID.MatchString(h.Run) || !serviceID.MatchString(h.ID) || h.Daemon == "" || h.Left < 0 || h.Every < 0 || h.Every > maxEvery {
		return h, nil, errors.New("not what a daemon of the fleet publishes")
	}
	// What a peer says is a part of lines.
	h.Daemon, h.Name, h.End = tidied(h.Daemon), tidied(h.Name), Plain(h.End)
	return h, records, nil
}

// deliver publishes a message as often as it takes.
func (p *Publisher) deliver(subject, id string, data []byte) {
	began := time.Now()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		if room := p.n.room(); len(data) > room && p.n.Connected() {
			p.n.log.Error("fleet: a message is not published", "err", errMessage, "id", id, "bytes", len(data), "most", room)
			return // the numbers of what follows say that it is missing
		}
		ctx, cancel := context.WithTimeout(p.n.life, pubTime)
		err := p.n.publish(ctx, subject, id, data)
		cancel()
		if p.outcome(began, err) {
			return
		}
		if sleep(p.n.life, pause) != nil {
			return
		}
	}
}

// outcome notes how a try to publish has ended, and reports whether a server has the message. The first failure and the end of
// failures are in the log.
func (p *Publisher) outcome(began time.Time, err error) (kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil && p.since.IsZero():
	case err == nil:
		p.n.log.Info("fleet: records are kept again", "name", p.like.Name, "after", time.Since(p.since).Round(time.Millisecond), "dropped", p.dropped)
		p.since, p.failure = time.Time{}, ""
	case p.n.life.Err() != nil:
	default:
		p.failure = Plain(err.Error())
		if p.since.IsZero() {
			p.since = began
			p.n.log.Warn("fleet: records are not kept: no server has taken them; they are tried again, and wait in up to 8 MiB", "name", p.like.Name, "err", err)
		}
	}
	return err == nil
}
