package timeline

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Header comes before the lines of a trace, as in Linux's
// /sys/kernel/tracing/trace (kernel/trace/trace.c, print_func_help_header_irq).
const Header = `# tracer: nop
#
#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
`

// The clocks for the times of lines.
const (
	ClockBoot     = "boot"
	ClockRelative = "relative"
	ClockWall     = "wall"
)

// errClock rejects any other clock.
var errClock = errors.New("it is " + ClockBoot + ", " + ClockRelative + " or " + ClockWall)

// TextOptions are the options of a trace as text.
type TextOptions struct {
	Clock  string // "": ClockBoot
	Color  bool
	Header bool // ftrace's, above the lines
	Totals bool // below them

	// Hit prints a hit in another form than as a line. Other records are still
	// printed as lines.
	Hit func(*api.Hit) error

	// Remarks is where everything except hits is written; nil: where hits are.
	Remarks io.Writer
}

// Text writes a trace in ftrace's columns, each line by one call of its writer.
type Text struct {
	w     io.Writer
	o     TextOptions
	lines *Lines
	line  []byte // the last one
	late  uint64 // hits that come after a later one
}

// NewText returns a writer to w. It returns errClock for an unknown clock.
func NewText(w io.Writer, o TextOptions) (*Text, error) {
	lines, err := NewLines(o.Clock, o.Color)
	if o.Remarks == nil {
		o.Remarks = w
	}
	return &Text{w: w, o: o, lines: lines}, err
}

// Write writes the lines of a record.
func (t *Text) Write(r *Record) (err error) {
	switch {
	case r.Start != nil:
		t.lines.Start(*r.Start)
		if t.o.Header {
			_, err = io.WriteString(t.o.Remarks, Header)
		}
	case r.Hit != nil:
		if r.Hit.Late {
			t.late++
		}
		if t.o.Hit != nil {
			return t.o.Hit(r.Hit)
		}
		t.line = t.lines.AppendLine(t.line[:0], r.Hit)
		_, err = t.w.Write(t.line)
	case r.Boot != nil:
		_, err = io.WriteString(t.o.Remarks, t.lines.Boot(*r.Boot))
	case r.Stop != nil:
		_, err = fmt.Fprintf(t.o.Remarks, "# %s\n", command.Line(StopText(*r.Stop)))
	case r.Lost != nil:
		_, err = fmt.Fprintf(t.o.Remarks, "[LOST %d EVENTS]\n", r.Lost.Lost) // as ftrace
	case r.End != nil && t.o.Totals:
		end := *r.End
		end.Late = t.late // the number of marked lines
		_, err = io.WriteString(t.o.Remarks, Totals(end))
	}
	return err
}

// Close does nothing: each line is complete.
func (t *Text) Close() error { return nil }

// Totals returns the last lines of a trace.
func Totals(end api.End) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s: %d shown", command.Plural(command.Sum(end.Delivered, end.Lost), "event"), end.Delivered-min(end.Unshown, end.Delivered))
	for _, n := range []struct {
		n    uint64
		what string
	}{{end.Unshown, "more not shown"}, {end.Lost, "lost"}} {
		if n.n > 0 || n.what == "lost" {
			fmt.Fprintf(&b, ", %d %s", n.n, n.what)
		}
	}
	if end.Late > 0 {
		fmt.Fprintf(&b, "; %d late", end.Late)
	}
	fmt.Fprintf(&b, " (%s)\n", command.Line(end.Reason))
	named := map[string]int{}
	for _, p := range end.Probes {
		named[p.Name]++
	}
	for _, p := range end.Probes {
		s := p.Stats
		at := "" // to tell probes of one name apart
		if named[p.Name] > 1 && p.Symbol != "" {
			at = fmt.Sprintf(" at %s+%#x", command.Line(p.Symbol), p.Offset)
		}
		fmt.Fprintf(&b, "# %s%s: %s, %d handled, %d filtered, %d missed", command.Line(p.Name), at, command.Plural(s.Hits, "hit"), s.Handled, s.Filtered, s.Missed)
		if p.Kind == "r" {
			fmt.Fprintf(&b, "; of those handled %d returned, %d abandoned, %d under way", s.Returns, s.Abandoned, s.UnderWay)
		}
		if s.Rejected > 0 {
			fmt.Fprintf(&b, "; %d filtered at the return", s.Rejected)
		}
		fmt.Fprintf(&b, "; %s\n", command.Plural(s.Events, "event"))
	}
	return b.String()
}

// StopText returns the text for a vCPU that a probe has stopped.
func StopText(x api.Stop) string {
	who := fmt.Sprintf("vCPU %d is", x.CPU)
	if x.All {
		who = fmt.Sprintf("All vCPUs are stopped: vCPU %d is", x.CPU)
	}
	at := strings.TrimSuffix(fmt.Sprintf("%#x %s", uint64(x.RIP), x.Symbol), " ")
	return fmt.Sprintf("%s stopped at %s, by %s, since %s", who, at, x.Probe, x.Since.Local().Format(WallForm))
}

// Lines formats hits as lines.
type Lines struct {
	clock string
	color bool

	epoch       time.Time // the zero of the times
	began, boot int64     // of the stream and of the guest, since the epoch

	stacks  map[string]int // numbers of the printed stacks, by their text
	printed int            // number of stacks so far
}

// maxStacks is how many stacks Lines remembers before it starts over.
const maxStacks = 10_000

// maxStackText bounds the text of a stack that is remembered.
const maxStackText = 16 << 10

// NewLines returns lines with the times of a clock, "" for ClockBoot. It returns
// errClock for another name.
func NewLines(clock string, color bool) (*Lines, error) {
	switch clock {
	case "", ClockBoot, ClockRelative, ClockWall:
		return &Lines{clock: clock, color: color}, nil
	}
	return nil, errClock
}

// Start takes over a stream's times.
func (l *Lines) Start(s api.Start) { l.epoch, l.began, l.boot = s.Epoch, s.TimeNS, s.BootNS }

// Boot returns the line about the guest's next boot, with a newline. Its time is
// on the clock of the hits before. With ClockBoot, later times begin at 0.
func (l *Lines) Boot(b api.Boot) string {
	at := strings.TrimSpace(l.time(b.BootNS))
	l.boot = b.BootNS
	if l.clock == "" || l.clock == ClockBoot {
		at += "; times are since then"
	}
	return "# guest booted at " + at + "\n"
}

// WallForm is the format of a wall time with the zone, one word of the same
// length in each line.
const WallForm = "2006-01-02T15:04:05.000000-07:00"

// time returns a time in microseconds, truncated as in ftrace.
func (l *Lines) time(ns int64) string { return string(l.appendTime(nil, ns)) }

// appendTime appends a time.
func (l *Lines) appendTime(b []byte, ns int64) []byte {
	switch l.clock {
	case ClockWall:
		return l.epoch.Add(time.Duration(ns)).Local().AppendFormat(b, WallForm)
	case ClockRelative:
		ns -= l.began
	default:
		ns -= l.boot
	}
	var room [32]byte
	text := room[:0]
	if ns < 0 { // a hit from before the stream began
		text, ns = append(text, '-'), -ns
	}
	us := ns / 1000
	text = append(strconv.AppendInt(text, us/1e6, 10), '.')
	text = appendPadded(text, us%1e6, 6, '0')
	for range 12 - len(text) {
		b = append(b, ' ')
	}
	return append(b, text...)
}

// appendPadded appends a number that is not negative with pad before it, at least width characters.
func appendPadded(b []byte, n int64, width int, pad byte) []byte {
	var room [20]byte
	text := strconv.AppendInt(room[:0], n, 10)
	for range width - len(text) {
		b = append(b, pad)
	}
	return append(b, text...)
}

// Line returns one line, with a newline, in ftrace's columns: task, vCPU, flags,
// time, event, place and arguments.
func (l *Lines) Line(h api.Hit) string { return string(l.AppendLine(nil, &h)) }

// AppendLine appends the line of a hit.
func (l *Lines) AppendLine(b []byte, h *api.Hit) []byte {
	comm, pid, irqs := "<...>", int64(0), byte('.')
	if h.Task != nil {
		comm, pid = command.Line(h.Task.Comm), int64(h.Task.PID)
	}
	if h.IRQsOff {
		irqs = 'd'
	}
	b = l.paint(b, command.Dim)
	for range 16 - utf8.RuneCountInString(comm) {
		b = append(b, ' ')
	}
	b = append(append(b, comm...), '-')
	from := len(b)
	b = strconv.AppendInt(b, pid, 10)
	for len(b)-from < 7 {
		b = append(b, ' ')
	}
	b = append(appendPadded(append(b, " ["...), int64(h.CPU), 3, '0'), "] "...)
	b = append(append(b, irqs), ".... "...)
	b = append(l.appendTime(b, h.TimeNS), ": "...)
	b = l.paint(l.paint(b, ""), command.Name)
	b = append(b, command.Line(h.Probe[strings.IndexByte(h.Probe, '/')+1:])...)
	if h.Stage == "post" {
		b = append(b, ".post"...)
	}
	b = append(l.paint(b, ""), ": "...)
	b = append(b, command.Line(h.Text)...)
	if h.Stage == "return" {
		b = append(strconv.AppendFloat(append(b, " ["...), float64(h.DurationNS)/1000, 'f', 3, 64), "us]"...)
	}
	if h.Stage == "post" || len(h.Args) == 0 {
		b = append(b, regsText(h.Regs)...)
	}
	if h.Late {
		b = append(b, " [LATE]"...)
	}
	return append(b, l.stack(h.Stack)...)
}

// paint begins a color, or with "" ends it.
func (l *Lines) paint(b []byte, sgr string) []byte {
	if !l.color {
		return b
	}
	return append(append(append(b, "\x1b["...), cmp.Or(sgr, "0")...), 'm')
}

// stack returns the end of a line: the number of its stack, and the stack itself
// below if it is new.
func (l *Lines) stack(frames []api.Frame) string {
	if len(frames) == 0 {
		return "\n"
	}
	text := stackText(frames)
	n := l.stacks[text]
	if n > 0 {
		return fmt.Sprintf(" [stack %d]\n", n)
	}
	if l.stacks == nil || len(l.stacks) == maxStacks {
		l.stacks = map[string]int{}
	}
	l.printed++
	if len(text) <= maxStackText {
		l.stacks[text] = l.printed
	}
	return fmt.Sprintf(" [stack %d]\n", l.printed) + text
}

// stackText returns a stack as ftrace prints it with its options stacktrace and
// sym-offset, a line for each frame, with the source of each.
func stackText(frames []api.Frame) string {
	var b strings.Builder
	for _, f := range frames {
		b.WriteString(" => " + FrameText(f) + "\n")
	}
	return b.String()
}

// FrameText returns a frame of a stack as text that is safe for a terminal.
func FrameText(f api.Frame) string {
	s := cmp.Or(f.Text(), fmt.Sprintf("%#x", uint64(f.Addr)))
	if f.Source != "" {
		s += " (" + f.Source + ")"
	}
	if f.Inlined {
		s += " [inlined]"
	}
	return command.Line(s)
}

func regsText(regs map[string]api.Hex) string {
	var b strings.Builder
	for _, n := range x86.RegNames {
		if v, ok := regs[n]; ok {
			fmt.Fprintf(&b, " %s=0x%x", n, uint64(v))
		}
	}
	return b.String()
}

// Cut returns the beginning of a text, no more bytes than most. It does not cut
// within a character, or within an escape for one: \xNN, \n.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	at := 0
	for {
		_, n := utf8.DecodeRuneInString(s[at:])
		if s[at] == '\\' {
			n = 2
			if strings.HasPrefix(s[at:], `\x`) {
				n = 4
			}
		}
		if at+n > most {
			return s[:at]
		}
		at += n
	}
}
