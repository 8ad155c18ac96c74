package timeline

import (
	"bufio"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// chrome writes Trace Event Format: an array of JSON objects. Readers also
// accept it without its end.
type chrome struct {
	tracks *tracks
	w      *bufio.Writer
	b      []byte // the object in progress
	values []value
	any    bool // there was one
}

func newChrome(w io.Writer) *chrome {
	c := &chrome{w: bufio.NewWriterSize(w, 64<<10)}
	c.tracks = newTracks(c)
	return c
}

// Write writes the events of a record.
func (c *chrome) Write(r *Record) error { return c.tracks.write(r) }

// Close ends the array.
func (c *chrome) Close() error {
	if !c.any {
		if _, err := c.w.WriteString("["); err != nil {
			return err
		}
	}
	if _, err := c.w.WriteString("\n]\n"); err != nil {
		return err
	}
	return c.w.Flush()
}

// Processes that represent groups of tracks. The processes of overlapping slices
// follow.
const (
	chromeTasks = 1 + iota
	chromeCPUs
	chromeIdle
	chromeLanes
)

// place returns the process and the thread of a track.
func (t *track) place() (pid, tid int64) {
	switch {
	case t.kind == trackCPU:
		pid, tid = chromeCPUs, int64(t.cpu)+1
	case t.kind == trackTask && t.pid == 0:
		pid, tid = chromeIdle, int64(t.cpu)+1
	default:
		pid, tid = chromeTasks, int64(t.pid)
	}
	if t.lane > 0 {
		pid += int64(chromeLanes * t.lane)
	}
	return pid, tid
}

func (c *chrome) start(*api.Start, int64) error { return nil }

func (c *chrome) track(t *track) error {
	pid, tid := t.place()
	switch t.kind {
	case trackCounter:
		return nil // its events have its name
	case trackGuest:
		for _, p := range []struct {
			pid  int64
			name string
		}{{chromeTasks, "guest"}, {chromeCPUs, "vCPUs"}, {chromeIdle, "idle tasks"}} {
			if err := c.meta("process_name", p.pid, 0, p.name); err != nil {
				return err
			}
		}
		return nil
	}
	if t.lane > 0 {
		if err := c.meta("process_name", pid, 0, "overlapping "+strconv.Itoa(t.lane)); err != nil {
			return err
		}
	}
	return c.meta("thread_name", pid, tid, t.title)
}

// meta names a process or a thread.
func (c *chrome) meta(what string, pid, tid int64, name string) error {
	c.begin(what, "M", pid, tid)
	c.b = append(c.b, `,"args":{"name":`...)
	c.b = appendJSON(c.b, name)
	c.b = append(c.b, '}')
	return c.end()
}

func (c *chrome) begin(name, phase string, pid, tid int64) {
	c.b = append(c.b[:0], `{"name":`...)
	c.b = appendJSON(c.b, name)
	c.b = append(c.b, `,"ph":"`...)
	c.b = append(c.b, phase...)
	c.b = append(c.b, `","pid":`...)
	c.b = strconv.AppendInt(c.b, pid, 10)
	c.b = append(c.b, `,"tid":`...)
	c.b = strconv.AppendInt(c.b, tid, 10)
}

func (c *chrome) end() error {
	before := ",\n"
	if !c.any {
		before, c.any = "[\n", true
	}
	c.b = append(c.b, '}')
	if _, err := c.w.WriteString(before); err != nil {
		return err
	}
	_, err := c.w.Write(c.b)
	return err
}

func (c *chrome) event(e *item) error {
	pid, tid := e.on.place()
	c.begin(e.name, [...]string{itemInstant: "i", itemSlice: "X", itemCounter: "C"}[e.kind], pid, tid)
	c.b = append(c.b, `,"ts":`...)
	c.b = appendMicros(c.b, e.at)
	if e.group != "" {
		c.b = append(c.b, `,"cat":`...)
		c.b = appendJSON(c.b, e.group)
	}
	switch e.kind {
	case itemCounter:
		c.b = append(c.b, `,"args":{"value":`...)
		c.b = strconv.AppendInt(c.b, e.value, 10)
		c.b = append(c.b, '}')
		return c.end()
	case itemSlice:
		c.b = append(c.b, `,"dur":`...)
		c.b = appendMicros(c.b, e.length)
	case itemInstant:
		scope := `,"s":"t"`
		if e.on.kind == trackGuest {
			scope = `,"s":"g"`
		}
		c.b = append(c.b, scope...)
	}
	c.args(e)
	return c.end()
}

// args adds an event's values.
func (c *chrome) args(e *item) {
	c.values = values(c.values[:0], e)
	vs := c.values
	if len(vs) == 0 && (e.hit == nil || len(e.hit.Stack) == 0) {
		return
	}
	c.b = append(c.b, `,"args":{`...)
	for i, v := range vs {
		if i > 0 {
			c.b = append(c.b, ',')
		}
		c.b = appendJSON(c.b, v.name)
		c.b = append(c.b, ':')
		switch {
		case v.kind == valueSigned && int64(v.number) >= -maxExact && int64(v.number) <= maxExact:
			c.b = strconv.AppendInt(c.b, int64(v.number), 10)
		case v.kind == valueUnsigned && v.number <= maxExact:
			c.b = strconv.AppendUint(c.b, v.number, 10)
		case v.kind == valueSigned:
			c.b = appendJSON(c.b, strconv.FormatInt(int64(v.number), 10))
		case v.kind == valueUnsigned:
			c.b = appendJSON(c.b, strconv.FormatUint(v.number, 10))
		case v.kind == valueHex:
			c.b = appendJSON(c.b, "0x"+strconv.FormatUint(v.number, 16))
		default:
			c.b = appendJSON(c.b, v.text)
		}
	}
	if e.hit != nil && len(e.hit.Stack) > 0 {
		if len(vs) > 0 {
			c.b = append(c.b, ',')
		}
		c.b = append(c.b, `"stack":[`...)
		for i, f := range e.hit.Stack {
			if i > 0 {
				c.b = append(c.b, ',')
			}
			c.b = appendJSON(c.b, FrameText(f))
		}
		c.b = append(c.b, ']')
	}
	c.b = append(c.b, '}')
}

// maxExact is the largest number that every reader of JSON represents exactly.
const maxExact = 1 << 53

// appendMicros adds nanoseconds as microseconds, with all of their digits.
func appendMicros(b []byte, ns int64) []byte {
	b = strconv.AppendInt(b, ns/1000, 10)
	if r := ns % 1000; r != 0 {
		b = append(b, '.', byte('0'+r/100), byte('0'+r/10%10), byte('0'+r%10))
	}
	return b
}

// appendJSON adds a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendJSON(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			b = append(b, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
		i += n
	}
	return append(b, '"')
}
