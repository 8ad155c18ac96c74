package machine

import (
	"sync"
	"time"
)

// Limits of the console.
const (
	consoleMaxLine  = 4096      // bytes; a longer line is split
	consoleMaxLines = 4096      // history
	consoleMaxBytes = 256 << 10 // history, text only
)

// ConsoleLine is one line of guest output.
type ConsoleLine struct {
	Seq  uint64    // from 0, without gaps, over the life of the machine
	Time time.Time // when its last byte was written
	Text string    // without the newline; bytes as the guest wrote them
	// Partial: the guest has not (yet) ended the line. Such a line is seen
	// only at the end of History and when the guest has stopped for good.
	Partial bool
}

// Console keeps the newest lines that the guest wrote to port 0xe9, and passes
// each line to its subscribers as the line ends. All methods may be called from
// any goroutine. A slow subscriber loses lines, which are counted; it never
// blocks the guest.
type Console struct {
	mu      sync.Mutex
	lines   []ConsoleLine // ring
	head    int           // index of the oldest line
	n       int           // lines in the ring
	bytes   int           // text bytes in the ring
	seq     uint64        // of the next line
	dropped uint64        // lines that fell out of the history
	part    []byte        // the unfinished line, of the terminal that has written last
	other   []byte        // the other terminal's
	second  bool          // the second terminal has written last
	subs    map[*ConsoleSub]struct{}
	taps    map[*ConsoleTap]struct{}
	closed  bool
}

// ConsoleSub receives console lines. Close it when done.
type ConsoleSub struct {
	console *Console
	ch      chan ConsoleLine
	lost    uint64 // guarded by console.mu
}

func newConsole() *Console {
	return &Console{
		lines: make([]ConsoleLine, consoleMaxLines),
		part:  make([]byte, 0, consoleMaxLine),
		subs:  make(map[*ConsoleSub]struct{}),
		taps:  make(map[*ConsoleTap]struct{}),
	}
}

// write adds guest output.
func (c *Console) write(p []byte) { c.put(p, false, false) }

// writeTTY adds output of a terminal, whose lines end in carriage return and
// newline.
func (c *Console) writeTTY(p []byte) { c.put(p, true, false) }

// writeSecondTTY adds output of a guest's second terminal. Its lines are
// separate from the first one's.
func (c *Console) writeSecondTTY(p []byte) { c.put(p, true, true) }

func (c *Console) put(p []byte, tty, second bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if second != c.second {
		c.second, c.part, c.other = second, c.other, c.part
	}
	for t := range c.taps {
		t.put(p)
	}
	for _, b := range p {
		if tty && b == '\r' {
			continue
		}
		if b == '\n' {
			c.endLine(false)
			continue
		}
		if len(c.part) == consoleMaxLine {
			c.endLine(false)
		}
		c.part = append(c.part, b)
	}
}

// flush ends the unfinished lines when the guest has stopped for good.
func (c *Console) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 2 {
		if len(c.part) > 0 {
			c.endLine(true)
		}
		c.second, c.part, c.other = !c.second, c.other, c.part
	}
}

// endLine moves the unfinished line to the history and to the subscribers.
// Precondition: c.mu held.
func (c *Console) endLine(partial bool) {
	l := ConsoleLine{Seq: c.seq, Time: time.Now(), Text: string(c.part), Partial: partial}
	c.part = c.part[:0]
	c.seq++
	for c.n == len(c.lines) || c.n > 0 && c.bytes+len(l.Text) > consoleMaxBytes {
		c.bytes -= len(c.lines[c.head].Text)
		c.lines[c.head] = ConsoleLine{}
		c.head = (c.head + 1) % len(c.lines)
		c.n--
		c.dropped++
	}
	c.lines[(c.head+c.n)%len(c.lines)] = l
	c.n++
	c.bytes += len(l.Text)
	for s := range c.subs {
		s.send(l)
	}
}

// send queues a line or counts it as lost. Precondition: console.mu held.
func (s *ConsoleSub) send(l ConsoleLine) {
	select {
	case s.ch <- l:
	default:
		s.lost++
	}
}

// History returns the kept lines, oldest first, the unfinished one last, and how
// many older lines are gone.
func (c *Console) History() (lines []ConsoleLine, dropped uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newestLines(c.n), c.dropped
}

// nextLine returns the number of the unfinished line.
func (c *Console) nextLine() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq
}

// tail returns the newest max lines, oldest first.
func (c *Console) tail(max int) []ConsoleLine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newestLines(max)
}

// tailText returns the texts of the newest max lines.
func (c *Console) tailText(max int) []string {
	var out []string
	for _, l := range c.tail(max) {
		out = append(out, l.Text)
	}
	return out
}

// newestLines copies the newest max lines. Precondition: c.mu held.
func (c *Console) newestLines(max int) []ConsoleLine {
	max = min(max, c.n)
	out := make([]ConsoleLine, 0, max+1)
	for i := c.n - max; i < c.n; i++ {
		out = append(out, c.lines[(c.head+i)%len(c.lines)])
	}
	if len(c.part) > 0 {
		out = append(out, ConsoleLine{Seq: c.seq, Time: time.Now(), Text: string(c.part), Partial: true})
	}
	return out
}

// Subscribe returns a subscription with room for queue unread lines (at least
// 1), and the complete lines that are kept now. No line is missing between the
// two, and none is in both.
func (c *Console) Subscribe(queue int) (*ConsoleSub, []ConsoleLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &ConsoleSub{console: c, ch: make(chan ConsoleLine, max(queue, 1))}
	if c.closed {
		close(s.ch)
	} else {
		c.subs[s] = struct{}{}
	}
	history := c.newestLines(c.n)
	if k := len(history); k > 0 && len(c.part) > 0 {
		history = history[:k-1] // the unfinished line comes when it ends
	}
	return s, history
}

// C returns the channel of lines. It is closed when the subscription or the
// machine is closed.
func (s *ConsoleSub) C() <-chan ConsoleLine { return s.ch }

// LostLines returns how many lines did not fit into the queue so far.
func (s *ConsoleSub) LostLines() uint64 {
	s.console.mu.Lock()
	defer s.console.mu.Unlock()
	return s.lost
}

// Close ends the subscription and closes its channel. Calls after the first
// do nothing.
func (s *ConsoleSub) Close() {
	s.console.mu.Lock()
	defer s.console.mu.Unlock()
	if _, ok := s.console.subs[s]; ok {
		delete(s.console.subs, s)
		close(s.ch)
	}
}

// close ends all subscriptions. The history stays readable.
func (c *Console) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	for s := range c.subs {
		delete(c.subs, s)
		close(s.ch)
	}
	for t := range c.taps {
		delete(c.taps, t)
		close(t.ready)
	}
}
