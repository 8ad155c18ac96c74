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

// Head is the first line of each message that a daemon's run of a definition
// publishes; records follow, a line each.
type Head struct {
	Version int       `json:"version"` // headVersion
	Name    string    `json:"name"`    // of the definition
	ID      string    `json:"id"`      // of the definition
	Since   time.Time `json:"since"`   // of the definition
	Daemon  string    `json:"daemon"`
	Run     string    `json:"run"`   // of the daemon: its ID
	Seq     uint64    `json:"seq"`   // 1 is the run's first message; events and maps are counted separately
	Epoch   time.Time `json:"epoch"` // the zero of the records' times
	Time    time.Time `json:"time"`  // when this was written
	// From and To are the numbers of the run's events in this message: From is how
	// many came before. Events that are in no message were lost on their way. In a
	// message of maps, both are the number of events so far.
	From  uint64 `json:"from"`
	To    uint64 `json:"to"`
	Lost  uint64 `json:"lost"`            // events that the daemon itself has lost so far
	Final bool   `json:"final,omitempty"` // the last message of the run
	// Every is after how many seconds the run publishes its maps again, even if
	// they have not changed; 0: an older daemon, which publishes only changes.
	Every int `json:"every,omitempty"`

	Kept time.Time `json:"-"`             // when the server got it, by its clock; set by readers
	End  string    `json:"end,omitempty"` // why it has ended
	// For maps: missing elements, hits of the run's probes, and hits without a
	// program's run.
	Left   int    `json:"left,omitempty"`
	Hits   uint64 `json:"hits,omitempty"`
	Missed uint64 `json:"missed,omitempty"`
}

// staleTimes is how many times Every may pass without a message before a run
// counts as silent for too long.
const staleTimes = 3

// Stale reports whether a run should have published something since, if the
// servers keep its messages.
func (h *Head) Stale(now time.Time) bool {
	return !h.Final && h.Every > 0 && now.Sub(h.Kept) > staleTimes*time.Duration(h.Every)*time.Second
}

// headVersion is the version of Head; other versions are incompatible.
const headVersion = 1

// Limits of publishing.
const (
	// maxPending bounds the unpublished records of one run, in bytes. Beyond that
	// the oldest are lost.
	maxPending = 8 << 20
	// maxMessage bounds the events of one message, in bytes.
	maxMessage = 256 << 10
	// pubTime is how long a server may take to confirm a message.
	pubTime = 5 * time.Second
	// firstPause and maxPause are the pauses between two tries.
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
)

// Publisher publishes the output and the counts of a daemon's run of a
// definition, until the server confirms that it has stored them. Its methods do
// not wait for that, and may be called from several goroutines.
type Publisher struct {
	n    *Network
	like Head

	mu      sync.Mutex
	waiting []chunk
	bytes   int
	to      uint64 // number of all events so far
	maps    *snapshot
	closed  bool
	wake    chan struct{} // capacity 1
	events  uint64        // messages
	shots   uint64
	turn    bool // the last message was of events

	since   time.Time // when a message failed that no server has stored yet; zero: none
	failure string    // of the last try
	dropped uint64    // events without room
}

// Unkept describes published data that no server has stored.
type Unkept struct {
	Since   time.Time `json:"since"`   // when it began to fail
	Error   string    `json:"error"`   // of the last try
	Waiting int       `json:"waiting"` // bytes that wait
	Dropped uint64    `json:"dropped"` // events without room to wait, since the daemon started
}

// Unkept returns the daemon's published data that no server has stored, or nil.
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

// chunk is the data of one Put.
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

// Publish returns a publisher for a run of d in this daemon. Times of its
// records are relative to epoch. Close ends it.
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

// publish publishes a message, and returns nil when a server has stored it.
func (n *Network) publish(ctx context.Context, subject, id string, data []byte) error {
	_, err := n.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: data}, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
	return err
}

// kick wakes the goroutine. The caller has mu.
func (p *Publisher) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Put publishes records. to is the number of the run's events including them.
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
		p.waiting = p.waiting[1:] // the numbers of the next messages show it
	}
	p.kick()
}

// Maps are maps at a moment.
type Maps struct {
	Records  []byte
	Elements int    // how many elements Records has
	Left     int    // how many are left out, because there are too many
	Lost     uint64 // events that the daemon has lost so far
	Hits     uint64 // of the run's probes
	Missed   uint64 // of these: no program ran
	End      string // why the run has ended; "": it still runs
	Every    int    // seconds until the next ones at the latest
}

// Snapshot publishes maps, which replace older ones. Maps with an End are the
// last message of a run.
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

// errMessage: no server accepts such a message.
var errMessage = errors.New("the message is too long for the fleet's server")

// run publishes one message after the other, so the messages of one run stay in
// order.
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

// room returns how long a message may be, in bytes.
func (n *Network) room() int {
	if limit := n.nc.MaxPayload(); limit > 0 {
		return int(limit) - 4<<10 // headers
	}
	return 1 << 20 // not connected to a server yet
}

// next takes the next message to publish: events and maps alternate, but the
// last maps come after all events. The caller has mu.
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

// message encodes a head and records.
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
	_, _ = z.Write(b) // a buffer accepts everything
	_ = z.Close()
	return out.Bytes()
}

const (
	// maxMaps bounds a message of a daemon, unpacked, in bytes.
	maxMaps = 64 << 20
	// maxHead bounds its first line.
	maxHead = 16 << 10
	// maxCount bounds the events of a run: a larger number is invalid.
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
	// A peer's text must be safe to print in one line.
	h.Daemon, h.Name, h.End = cleanLabel(h.Daemon), cleanLabel(h.Name), plainText(h.End)
	return h, records, nil
}

// deliver publishes a message, and retries until it succeeds.
func (p *Publisher) deliver(subject, id string, data []byte) {
	began := time.Now()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		if room := p.n.room(); len(data) > room && p.n.Connected() {
			p.n.log.Error("fleet: a message is not published", "err", errMessage, "id", id, "bytes", len(data), "most", room)
			return // the numbers of later messages show that it is missing
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

// outcome records the result of a try to publish, and reports whether a server
// has stored the message. The first failure and the end of failures are logged.
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
		p.failure = plainText(err.Error())
		if p.since.IsZero() {
			p.since = began
			p.n.log.Warn("fleet: records are not kept: no server has taken them; they are tried again, and wait in up to 8 MiB", "name", p.like.Name, "err", err)
		}
	}
	return err == nil
}
