package fleet

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Limits of connections.
const (
	maxWindow  = 256 << 10        // bytes that wait for a reader at most
	minWindow  = 16 << 10         // likewise, where one reads from very many
	maxSend    = 256 << 10        // bytes that a writer may be ahead of the reader's acknowledgements
	maxData    = 32 << 10         // bytes in one packet
	firstRetry = time.Second      // until a packet that nobody has acknowledged is sent again, at first
	maxRetry   = 5 * time.Second  // likewise, after several times
	quietTime  = 15 * time.Second // after which the other end is asked whether it is there
	lingerTime = 30 * time.Second // for the other end to take what was written before Close
)

// Times after which a connection is given up.
const (
	// deadTime is how long the other end may say nothing: a network may be cut so long.
	deadTime = 90 * time.Second
	// alone is how long nobody may listen at the other end: whoever is to connect again, because his
	// server has gone, has so long.
	alone = 10 * time.Second
)

// Conn is a connection over messages that may be lost, repeated, or come in another order. It implements
// net.Conn, whose rules say which goroutine may call what.
type Conn struct {
	send          func(packet []byte) // to the other end; may lose it
	done          func()              // called once, when nothing is to be sent or received any more
	local, remote net.Addr
	window        int
	kick          chan struct{} // capacity 1: there may be something to send

	mu      sync.Mutex
	changed *sync.Cond
	err     error // why the connection is none any more
	closed  bool  // by us
	ended   chan struct{}

	// What is written.
	out    []byte // from acked on
	acked  uint64
	next   uint64 // to be sent
	limit  uint64 // what the other end takes
	fin    bool   // nothing comes behind out
	finAck bool   // the other end knows that

	// What is read.
	in      []byte
	come    uint64 // all before it has come
	told    uint64 // the limit that the other end knows of
	inEnd   bool   // nothing comes behind in
	answer  bool   // the other end waits for an acknowledgement
	heard   time.Time
	nobody  time.Time // when nobody was there for the first time; zero: somebody is
	sent    time.Time // the last time that next was, or something was asked
	retry   time.Duration
	closing time.Time // when Close was called

	readBy, writeBy deadline
}

// deadline wakes those who wait when it is over.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// ends is what the two ends of a connection know of each other when it begins.
type ends struct {
	local, remote net.Addr
	window        int
	told          uint64 // the other end may send so much; 0: the window
	limit         uint64 // and takes so much
}

// bounded is a window that may be.
func bounded(window int) int { return max(minWindow, min(maxWindow, window)) }

// newConn returns a connection that begins to send by start.
func newConn(e ends, send func([]byte), done func()) *Conn {
	c := &Conn{
		send: send, done: done, local: e.local, remote: e.remote, window: e.window, told: cmp.Or(e.told, uint64(e.window)), limit: e.limit,
		kick: make(chan struct{}, 1), ended: make(chan struct{}), heard: time.Now(), retry: firstRetry, answer: true,
	}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// start begins to send.
func (c *Conn) start() { go c.run() }

// wake has run look at what there is to do, and all others at what has changed. The caller has mu.
func (c *Conn) wake() {
	c.changed.Broadcast()
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// run sends until the connection is none any more.
func (c *Conn) run() {
	defer close(c.ended)
	defer c.done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c.mu.Lock()
		ps, wait, over := c.due(time.Now())
		c.mu.Unlock()
		for _, p := range ps {
			c.send(p)
		}
		if over {
			return
		}
		timer.Reset(wait)
		select {
		case <-c.kick:
		case <-timer.C:
		}
	}
}

// due returns the packets to be sent now, and after which time it is to be called again; over says that it is
// not, after these packets. The caller has mu.
func (c *Conn) due(now time.Time) (ps [][]byte, wait time.Duration, over bool) {
	if c.err == nil {
		switch {
		case now.Sub(c.heard) >= deadTime:
			c.fail(syscall.ETIMEDOUT)
		case !c.nobody.IsZero() && (c.closed && c.inEnd || now.Sub(c.nobody) >= alone):
			c.fail(syscall.ECONNRESET)
		case c.closed && now.Sub(c.closing) >= lingerTime:
			c.fail(net.ErrClosed)
		}
	}
	if c.err != nil {
		return [][]byte{(&packet{flags: flagReset}).encode()}, 0, true
	}
	if c.finAck && c.closed {
		if c.answer {
			ps = append(ps, c.packet(nil).encode())
		}
		return ps, 0, true
	}
	if c.unacked() && now.Sub(c.sent) >= c.retry { // it, or its acknowledgement, was lost
		c.next, c.retry = c.acked, min(2*c.retry, maxRetry)
	}
	end := c.acked + uint64(len(c.out))
	for c.next < end && c.next < c.limit && len(ps) < maxSend/maxData+1 {
		from := c.next - c.acked
		n := min(uint64(len(c.out))-from, c.limit-c.next, maxData)
		p := c.packet(c.out[from : from+n])
		if c.next += n; c.fin && c.next == end {
			p.flags |= flagFin
			c.next++ // its place
		}
		ps, c.sent = append(ps, p.encode()), now
	}
	if c.fin && !c.finAck && c.next == end { // nothing before it is left
		p := c.packet(nil)
		p.flags |= flagFin
		c.next++
		ps, c.sent = append(ps, p.encode()), now
	}
	blocked := c.next < end && c.next >= c.limit
	ask := (blocked || !c.nobody.IsZero()) && now.Sub(c.sent) >= c.retry || now.Sub(c.heard) >= quietTime && now.Sub(c.sent) >= quietTime/3
	if ask {
		p := c.packet(nil)
		p.flags |= flagAsk
		ps, c.sent = append(ps, p.encode()), now
	}
	if len(ps) == 0 && (c.answer || c.come+uint64(c.window-len(c.in)) >= c.told+uint64(c.window/4)) {
		ps = append(ps, c.packet(nil).encode())
	}
	wait = quietTime / 3
	if c.unacked() || blocked || !c.nobody.IsZero() {
		wait = max(time.Millisecond, c.retry-now.Sub(c.sent))
	}
	return ps, wait, false
}

// unacked reports whether there is something on its way to the other end.
func (c *Conn) unacked() bool { return c.next > c.acked }

// packet returns a packet with the next data, which acknowledges what has come. The caller has mu.
func (c *Conn) packet(data []byte) *packet {
	c.told, c.answer = max(c.told, c.come+uint64(c.window-min(c.window, len(c.in)))), false
	p := &packet{seq: c.next, ack: c.come, limit: c.told, data: data}
	if c.inEnd {
		p.ack++
	}
	return p
}

// fail ends the connection. The caller has mu.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		c.wake()
	}
}

// receive takes a message of the other end. What makes no sense is dropped.
func (c *Conn) receive(b []byte) {
	p, err := decodePacket(b)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	defer c.wake()
	c.heard, c.nobody = time.Now(), time.Time{}
	if p.flags&flagReset != 0 {
		c.fail(syscall.ECONNRESET)
		return
	}
	c.limit = max(c.limit, min(p.limit, p.ack+maxWindow))
	if p.ack > c.acked && p.ack <= c.acked+uint64(len(c.out))+1 {
		n := min(p.ack-c.acked, uint64(len(c.out)))
		if p.ack-c.acked > n {
			c.finAck = c.fin
		}
		if c.out = c.out[n:]; len(c.out) == 0 {
			c.out = nil // what it was in may be given back
		}
		c.acked += n
		c.next, c.retry = max(c.next, c.acked), firstRetry
		c.sent = time.Now()
		if c.finAck {
			c.next = c.acked
		}
	}
	if p.flags&(flagAsk|flagFin) != 0 || len(p.data) > 0 {
		c.answer = true
	}
	if p.seq > c.come || c.inEnd {
		return // something before it is missing, or it is repeated
	}
	old := c.come - p.seq
	if old > uint64(len(p.data)) {
		return // repeated
	}
	data := p.data[old:]
	if len(data) > 0 && c.closed {
		c.fail(net.ErrClosed) // nobody will read it
		return
	}
	if c.come+uint64(len(data)) > c.told {
		return // more than was asked for
	}
	c.in = append(c.in, data...)
	c.come += uint64(len(data))
	c.inEnd = p.flags&flagFin != 0
}

// missing notes that nobody was there for the last packet.
func (c *Conn) missing() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nobody.IsZero() {
		c.nobody = time.Now()
		c.wake()
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.readBy.over():
			return 0, os.ErrDeadlineExceeded
		case len(c.in) > 0:
			n = copy(p, c.in)
			if c.in = c.in[n:]; len(c.in) == 0 {
				c.in = nil
			}
			c.wake()
			return n, nil
		case c.inEnd:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.err
		case len(p) == 0:
			return 0, nil
		}
		c.changed.Wait()
	}
}

// Write implements net.Conn. It returns when p is on its way.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(p) > 0 {
		if err := c.room(maxSend); err != nil {
			return n, err
		}
		part := p[:min(len(p), maxSend-len(c.out))]
		c.out = append(c.out, part...)
		c.wake()
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

// room waits until fewer bytes than that wait to be sent or acknowledged. The caller has mu.
func (c *Conn) room(less int) error {
	for {
		switch {
		case c.closed:
			return net.ErrClosed
		case c.err != nil:
			return c.err
		case c.writeBy.over():
			return os.ErrDeadlineExceeded
		case len(c.out) < less:
			return nil
		}
		c.changed.Wait()
	}
}

// AwaitRoom waits until the other end has taken so much that there is room for half of what a connection
// holds, or until the time for a write is over: then nothing was written, and a last record has its room.
func (c *Conn) AwaitRoom() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.room(maxSend / 2)
}

// Close implements net.Conn. What was written goes to the other end yet, for a while.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed, c.fin, c.closing = true, true, time.Now()
	if len(c.in) > 0 {
		c.fail(net.ErrClosed) // the other end learns that nobody has read it
	}
	c.readBy.stop()
	c.writeBy.stop()
	c.wake()
	return nil
}

// wait waits until the other end has all that was written before Close, or is gone, or until stop is closed.
func (c *Conn) wait(stop <-chan struct{}) {
	select {
	case <-c.ended:
	case <-stop:
	}
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn: who the other end says that it is.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.set(&c.readBy, t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.set(&c.writeBy, t) }

func (c *Conn) set(d *deadline, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	d.stop()
	if d.at = t; !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			c.mu.Lock() // whoever has not seen that it is over waits by now
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	c.changed.Broadcast()
	return nil
}
