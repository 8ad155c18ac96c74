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
	maxWindow  = 256 << 10        // bytes that wait for a reader, at most
	minWindow  = 16 << 10         // the same for a client of very many daemons
	maxSend    = 256 << 10        // bytes that a writer may be ahead of the reader's acknowledgements
	maxData    = 32 << 10         // bytes in one packet
	firstRetry = time.Second      // until an unacknowledged packet is sent again, at first
	maxRetry   = 5 * time.Second  // likewise, after several tries
	quietTime  = 15 * time.Second // without a packet, after which the other end is pinged
	lingerTime = 30 * time.Second // for the other end to receive the bytes that were written before Close
)

// Timeouts of a connection.
const (
	// deadTime is how long the other end may be silent: the network may be down
	// for that long.
	deadTime = 90 * time.Second
	// alone is how long the other end may have no listener: it has that long to
	// connect to another server when its own is gone.
	alone = 10 * time.Second
)

// Conn is a connection over messages that may be lost, repeated, or reordered.
// It implements net.Conn, whose rules say which goroutine may call which method.
type Conn struct {
	send          func(packet []byte) // to the other end; may lose it
	done          func()              // called once, when the connection sends and receives nothing more
	local, remote net.Addr
	window        int
	kick          chan struct{} // capacity 1: there may be something to send

	mu      sync.Mutex
	changed *sync.Cond
	err     error // why the connection has ended
	closed  bool  // by us
	ended   chan struct{}

	// The sending side.
	out    []byte // from acked on
	acked  uint64
	next   uint64 // to be sent
	limit  uint64 // the limit of the other end's window
	fin    bool   // nothing follows out
	finAck bool   // the other end knows that

	// The receiving side.
	in         []byte
	come       uint64 // how many bytes have arrived without a gap
	told       uint64 // the limit that was sent to the other end
	inEnd      bool   // nothing follows in
	answer     bool   // the other end waits for an acknowledgement
	heard      time.Time
	noListener time.Time // since when the other end has no listener; zero: it has one
	sent       time.Time // when next last advanced, or a packet was sent to ask
	retry      time.Duration
	closing    time.Time // when Close was called

	readBy, writeBy deadline
}

// deadline wakes waiting goroutines when it expires.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) expired() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// ends is the initial state of a connection that its two ends share.
type ends struct {
	local, remote net.Addr
	window        int
	told          uint64 // how many bytes the other end may send; 0: the window
	limit         uint64 // how many bytes it accepts
}

// clampWindow limits a window to valid sizes.
func clampWindow(window int) int { return max(minWindow, min(maxWindow, window)) }

// newConn returns a connection. start makes it send.
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

// wake has run check for something to send, and wakes all others because
// something has changed. The caller has mu.
func (c *Conn) wake() {
	c.changed.Broadcast()
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// run sends until the connection has ended.
func (c *Conn) run() {
	defer close(c.ended)
	defer c.done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c.mu.Lock()
		ps, wait, over := c.duePackets(time.Now())
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

// duePackets returns the packets to be sent now, and after how long to call it
// again. With over it must not be called again after these packets. The caller
// has mu.
func (c *Conn) duePackets(now time.Time) (ps [][]byte, wait time.Duration, over bool) {
	if c.err == nil {
		switch {
		case now.Sub(c.heard) >= deadTime:
			c.fail(syscall.ETIMEDOUT)
		case !c.noListener.IsZero() && (c.closed && c.inEnd || now.Sub(c.noListener) >= alone):
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
	if c.unacked() && now.Sub(c.sent) >= c.retry { // the packet, or its acknowledgement, was lost
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
	if c.fin && !c.finAck && c.next == end { // all earlier data was sent
		p := c.packet(nil)
		p.flags |= flagFin
		c.next++
		ps, c.sent = append(ps, p.encode()), now
	}
	blocked := c.next < end && c.next >= c.limit
	ask := (blocked || !c.noListener.IsZero()) && now.Sub(c.sent) >= c.retry || now.Sub(c.heard) >= quietTime && now.Sub(c.sent) >= quietTime/3
	if ask {
		p := c.packet(nil)
		p.flags |= flagAsk
		ps, c.sent = append(ps, p.encode()), now
	}
	if len(ps) == 0 && (c.answer || c.come+uint64(c.window-len(c.in)) >= c.told+uint64(c.window/4)) {
		ps = append(ps, c.packet(nil).encode())
	}
	wait = quietTime / 3
	if c.unacked() || blocked || !c.noListener.IsZero() {
		wait = max(time.Millisecond, c.retry-now.Sub(c.sent))
	}
	return ps, wait, false
}

// unacked reports whether data is unacknowledged.
func (c *Conn) unacked() bool { return c.next > c.acked }

// packet returns a packet with the next data, which also acknowledges the
// received bytes. The caller has mu.
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

// receive handles a message of the other end. It drops invalid messages.
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
	c.heard, c.noListener = time.Now(), time.Time{}
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
			c.out = nil // frees the memory
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
		return // something before it is missing, or it is a duplicate
	}
	old := c.come - p.seq
	if old > uint64(len(p.data)) {
		return // repeated
	}
	data := p.data[old:]
	if len(data) > 0 && c.closed {
		c.fail(net.ErrClosed) // it will not be read
		return
	}
	if c.come+uint64(len(data)) > c.told {
		return // more than was asked for
	}
	c.in = append(c.in, data...)
	c.come += uint64(len(data))
	c.inEnd = p.flags&flagFin != 0
}

// noteMissing records that the last packet had no listener.
func (c *Conn) noteMissing() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noListener.IsZero() {
		c.noListener = time.Now()
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
		case c.readBy.expired():
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

// room waits until fewer than that many bytes wait to be sent or acknowledged.
// The caller has mu.
func (c *Conn) room(less int) error {
	for {
		switch {
		case c.closed:
			return net.ErrClosed
		case c.err != nil:
			return c.err
		case c.writeBy.expired():
			return os.ErrDeadlineExceeded
		case len(c.out) < less:
			return nil
		}
		c.changed.Wait()
	}
}

// AwaitRoom waits until the other end has taken enough that half of the
// connection's buffer is free, or until the time for a write is over. In that
// case nothing was written, and a last record still fits.
func (c *Conn) AwaitRoom() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.room(maxSend / 2)
}

// Close implements net.Conn. Bytes that were written are still sent to the other
// end, for a while.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed, c.fin, c.closing = true, true, time.Now()
	if len(c.in) > 0 {
		c.fail(net.ErrClosed) // the other end learns that it was not read
	}
	c.readBy.stop()
	c.writeBy.stop()
	c.wake()
	return nil
}

// wait waits until the other end has received everything that was written before
// Close, or is gone, or until stop is closed.
func (c *Conn) wait(stop <-chan struct{}) {
	select {
	case <-c.ended:
	case <-stop:
	}
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn. It returns the name that the other end gives
// itself.
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
			c.mu.Lock() // a reader or writer that has not seen the expiry waits by now
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	c.changed.Broadcast()
	return nil
}
