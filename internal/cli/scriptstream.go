package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// settleTime is how long what one daemon has sent waits for others that may have sent something earlier.
const settleTime = 250 * time.Millisecond

// scriptStream prints the output of a script in the guests of daemons: that of one alone as it comes, that of several as lines with
// their names, in the order of time, and the sums of their maps.
type scriptStream struct {
	*command.Run
	flags *scriptFlags
	alone bool // one daemon, which is not named in the output
	raw   io.Writer
	out   *lockedWriter // to raw
	lines *fleet.Order[string]
	open  func(context.Context, *remote.Client) (*remote.Stream, error)

	attached bool // say where it has begun
	fixed    bool // without daemons that come later

	mu    sync.Mutex
	all   []*sender
	total script.Total // of an interval: since it was printed
}

// sender is a daemon that runs the script.
type sender struct {
	name  string
	epoch time.Time
	begun bool
	ended bool // it sends nothing any more
	end   api.End
	err   error
	lost  uint64
	parts []script.MapState // of a moment that is not whole yet
	// elements is how many are in parts.
	elements int
	whole    []script.MapState   // as they were the last time
	at       time.Time           // of whole
	rounds   [][]script.MapState // of intervals that are not printed yet

	lineMu sync.Mutex
	line   []byte      // that has no end yet
	since  int64       // when it began
	timer  *time.Timer // prints it when it has waited for its end
}

const (
	// partialTime is how long text waits for the end of its line.
	partialTime = time.Second
	// maxPartial bounds it, in bytes; of JSON, where an object is a line, maxJSONLine does.
	maxPartial  = 64 << 10
	maxJSONLine = 16 << 20
	// maxParts bounds the maps of a moment that come in several records.
	maxParts = 10_000
)

// lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// flush writes the bytes of an incomplete character.
func (l *lockedWriter) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t, ok := l.w.(*textWriter); ok {
		return t.flush()
	}
	return nil
}

// Write implements io.Writer.
func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// maxRounds bounds the intervals that wait for the same ones of other daemons.
const maxRounds = 16

// newScriptStream returns a scriptStream that prints to out the records of the streams that open opens.
func newScriptStream(r *command.Run, s *scriptFlags, alone bool, out io.Writer, open func(context.Context, *remote.Client) (*remote.Stream, error)) *scriptStream {
	fs := &scriptStream{Run: r, flags: s, alone: alone, raw: out, out: &lockedWriter{w: guestText(r, out)}, open: open}
	fs.lines = fleet.NewOrder(settleTime, func(line string, _ bool) error {
		_, err := io.WriteString(fs.out, line)
		return err
	}).Sized(func(line string) int { return len(line) })
	return fs
}

// everywhere takes what all daemons send, also those that come later, until their ends; begin is called behind the first
// beginning.
func (fs *scriptStream) everywhere(ctx context.Context, m *members, begin func() error) error {
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	first := true
	err := m.everyone(over, !fs.fixed, func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		n := 0
		for _, one := range fs.all {
			if one.begun {
				n++
			}
		}
		if first = false; n > 0 && fs.attached && !fs.alone {
			fs.Note("Attached in %s", command.Plural(n, "daemon"))
		}
	}, func(c member) func(func()) {
		one := &sender{name: c.Name}
		fs.mu.Lock()
		defer fs.mu.Unlock()
		fs.all = append(fs.all, one)
		fs.lines.Begin(one.name)
		late := !first
		return func(started func()) {
			fs.follow(ctx, over, c.Client, one, func(start api.Start) error {
				defer started()
				fs.mu.Lock()
				defer fs.mu.Unlock()
				if late {
					fs.Note("%s: has come, and runs it", command.Line(one.name))
				}
				return fs.start(one, start, begin, cancel)
			})
		}
	})
	fs.mu.Lock()
	slices.SortFunc(fs.all, func(a, b *sender) int { return fleet.CompareNames(a.name, b.name) })
	fs.mu.Unlock()
	return cmp.Or(fs.finish(), err)
}

// start notes that a daemon runs the script. The caller has mu.
func (fs *scriptStream) start(one *sender, start api.Start, begin func() error, cancel func()) error {
	first := true
	for _, o := range fs.all {
		first = first && !o.begun
	}
	one.begun, one.epoch = true, start.Epoch
	if err := fs.lines.Heard(one.name, start.Epoch.UnixNano()+start.TimeNS); err != nil {
		return err
	}
	if fs.flags.verbose && !fs.alone {
		fs.Note("%s: attached %s", command.Line(one.name), command.Plural(start.Attached, "probe"))
	}
	if !first {
		return nil
	}
	if fs.flags.duration > 0 {
		time.AfterFunc(fs.flags.duration, cancel)
	}
	if err := begin(); err != nil || !fs.alone || !fs.attached { // before, the script may be one that does not compile
		return err
	}
	fs.Note("Attached %s", command.Plural(start.Attached, "probe"))
	if fs.flags.verbose {
		return notePlaces(fs.Run, fs.raw, start)
	}
	return nil
}

// note prints a remark of a daemon.
func (fs *scriptStream) note(one *sender, text string) {
	if fs.alone {
		fs.Note("%s", command.Clean(text))
		return
	}
	noteOf(fs.Run, one.name, text)
}

// follow takes what one daemon sends until its end.
func (fs *scriptStream) follow(ctx, over context.Context, c *remote.Client, one *sender, started func(api.Start) error) {
	end, err := follow(ctx, over, c, func(life context.Context) (*remote.Stream, error) { return fs.open(life, c) },
		func(_ api.Record, s api.Start) error { return started(s) }, func(rec api.Record) error { return fs.record(one, rec) })
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if one.end, one.err, one.ended = end, err, true; err == nil && end.Reason == endCutOff {
		one.err = remote.ErrCutOff
	}
	one.lineMu.Lock()
	_ = fs.flush(one)
	one.lineMu.Unlock()
	_ = fs.lines.End(one.name) // an error of the writer's is finish's
	fs.printRounds()
}

// record takes a record of a daemon.
func (fs *scriptStream) record(one *sender, rec api.Record) error {
	switch rec.Type {
	case api.RecordOutput:
		o, err := data[api.Output](rec)
		if err != nil {
			return err
		}
		if o.Bytes != nil {
			o.Text = string(o.Bytes)
		}
		if fs.alone {
			_, err = io.WriteString(fs.out, o.Text)
			return err
		}
		return fs.print(one, one.epoch.UnixNano()+o.TimeNS, o.Text)
	case api.RecordMaps:
		m, err := data[api.ScriptMaps](rec)
		if err != nil {
			return err
		}
		return fs.maps(one, m)
	case api.RecordWarning:
		w, err := data[api.Warning](rec)
		fs.note(one, w.Text)
		return err
	case api.RecordInterval:
		if c, ok := fs.raw.(*charter); ok {
			x, err := data[api.Interval](rec)
			if err == nil {
				c.interval(x)
			}
			return err
		}
	case api.RecordStop:
		x, err := data[api.Stop](rec)
		if err == nil && fs.alone && fs.WantsJSON() {
			return json.NewEncoder(fs.out).Encode(rec)
		}
		if err == nil {
			fs.note(one, timeline.StopText(x))
		}
		return err
	case api.RecordLost:
		l, err := data[api.Lost](rec)
		if fs.alone {
			fs.Note("Lost %d events", l.Lost)
		}
		one.lost = max(one.lost, l.Total)
		return err
	}
	return nil
}

// print prints lines of a daemon, each with its name, when they are whole. What has no end yet is printed as a line of its own when
// it has waited for that, or is too long; of JSON it is no object then.
func (fs *scriptStream) print(one *sender, at int64, text string) error {
	one.lineMu.Lock()
	defer one.lineMu.Unlock()
	for text != "" {
		if len(one.line) == 0 {
			one.since = at
		}
		line, rest, whole := strings.Cut(text, "\n")
		most := maxPartial
		if fs.WantsJSON() {
			most = maxJSONLine
		}
		if !whole && len(one.line)+len(line) > most {
			if fs.WantsJSON() {
				return fmt.Errorf("%w: a line of more than %d bytes", remote.ErrProtocol, most)
			}
			whole = true
		}
		one.line, text = append(one.line, line...), rest
		if !whole {
			if one.timer == nil && !fs.WantsJSON() {
				one.timer = time.AfterFunc(partialTime, func() {
					one.lineMu.Lock()
					defer one.lineMu.Unlock()
					_ = fs.flush(one) // an error of the writer's is finish's
				})
			}
			return nil
		}
		if err := fs.end(one); err != nil {
			return err
		}
	}
	return nil
}

// end prints the line that has come to its end. The caller has lineMu.
func (fs *scriptStream) end(one *sender) error {
	if one.timer != nil {
		one.timer.Stop()
		one.timer = nil
	}
	line := string(one.line)
	if one.line = one.line[:0]; cap(one.line) > maxPartial {
		one.line = nil
	}
	return fs.lines.Put(one.name, one.since, fs.named(one, line+"\n"))
}

// flush prints a line without its end. The caller has lineMu.
func (fs *scriptStream) flush(one *sender) error {
	if len(one.line) == 0 {
		return nil
	}
	return fs.end(one)
}

// named is a line with its sender: before it, or as a field of the object that it is.
func (fs *scriptStream) named(one *sender, line string) string {
	if !fs.WantsJSON() {
		return one.name + ": " + line
	}
	name, err := json.Marshal(one.name)
	if object, ok := strings.CutSuffix(line, "}\n"); ok && err == nil {
		return object + `, "daemon": ` + string(name) + "}\n"
	}
	return line
}

// maps takes maps of a daemon.
func (fs *scriptStream) maps(one *sender, m api.ScriptMaps) error {
	var states []script.MapState
	if err := json.Unmarshal(m.Maps, &states); err != nil {
		return fmt.Errorf("%w: %w", remote.ErrProtocol, err)
	}
	if m.Left > 0 && !m.More && !fs.alone {
		fs.Note("%s: %s of maps %s left out: there are too many", command.Line(one.name), command.Plural(m.Left, "element"), command.Are(m.Left))
	}
	if one.elements += elementsOf(states); len(one.parts)+len(states) > maxParts || one.elements > 2*script.MaxStateElements {
		return fmt.Errorf("%w: maps of more than %d elements", remote.ErrProtocol, script.MaxStateElements)
	}
	one.parts = append(one.parts, states...)
	if m.More {
		return nil
	}
	one.elements = 0
	fs.mu.Lock()
	defer fs.mu.Unlock()
	states, one.parts = one.parts, nil
	if !m.Part {
		one.whole, one.at = states, one.epoch.Add(time.Duration(m.TimeNS))
		return nil
	}
	if fs.flags.every == 0 {
		return fmt.Errorf("%w: maps of an interval, which were not requested", remote.ErrProtocol)
	}
	one.rounds = append(one.rounds, states)
	fs.printRounds()
	return nil
}

// elementsOf is how many elements there are in maps.
func elementsOf(states []script.MapState) (n int) {
	for _, m := range states {
		n += len(m.Elements)
	}
	return n
}

// printRounds prints the intervals that all daemons have sent which run the script, and adds up what they have counted in
// them. The caller has mu.
func (fs *scriptStream) printRounds() {
	for fs.flags.every > 0 {
		some := false
		for _, one := range fs.all {
			if some = some || len(one.rounds) > 0; len(one.rounds) > maxRounds {
				break // the others are too far behind
			}
			if one.begun && !one.ended && len(one.rounds) == 0 {
				return
			}
		}
		if !some {
			return
		}
		for _, one := range fs.all {
			if len(one.rounds) > 0 {
				fs.add(one, one.rounds[0])
				one.rounds = one.rounds[1:]
			}
		}
		fs.total.Print(fs.WantsJSON(), fs.write)
		fs.total = script.Total{}
		if !fs.WantsJSON() {
			fs.write("\n")
		}
	}
}

// write writes what is of all daemons. The caller has mu.
func (fs *scriptStream) write(text string) {
	_, _ = io.WriteString(fs.out, text) // who does not read is told by the next line
}

// add adds maps of a daemon. The caller has mu.
func (fs *scriptStream) add(one *sender, maps []script.MapState) {
	for _, p := range fs.total.Add(one.name, maps) {
		fs.note(one, p)
	}
}

// finish prints the sums of all maps, and says what has become of each daemon.
func (fs *scriptStream) finish() error {
	if _, err := fs.lines.Close(); err != nil {
		return err
	}
	var failed []failure
	status, maps := command.Status(0), false
	for _, one := range fs.all {
		// One alone has printed its maps, but of a script of the fleet.
		maps = maps || one.begun && (!fs.alone || one.whole != nil)
		fs.add(one, one.whole)
		failed = append(failed, failure{one.name, one.err})
		for _, text := range missedHits(one.end) {
			fs.note(one, text)
		}
		status = cmp.Or(status, fs.ended(one))
	}
	if maps {
		if !fs.WantsJSON() {
			fs.write("\n\n")
		}
		fs.total.Print(fs.WantsJSON(), fs.write)
	}
	err := fs.out.flush()
	switch {
	case fs.alone:
		err = cmp.Or(fs.all[0].err, err)
	case err == nil:
		err = failures(fs.Run, failed)
	}
	if err == nil && status != 0 {
		return status
	}
	return err
}

// ended says how a script has ended in a daemon, and returns the exit status that it has by that.
func (fs *scriptStream) ended(one *sender) (status command.Status) {
	end := one.end
	if end.Strict != "" {
		fs.note(one, "strict: "+command.Line(end.Strict))
		status = command.ExitFailed
	}
	if end.Reason == api.EndExit && end.Code != nil {
		status = cmp.Or(command.Status(*end.Code&0xff), status)
	}
	if fs.alone {
		if one.err == nil && end.Reason != api.EndExit && end.Reason != api.EndAsked && end.Strict == "" {
			noteEnd(fs.Run, end, "")
		}
		return status
	}
	if lost := max(one.lost, end.Lost); lost > 0 {
		fs.Note("%s: lost %s", command.Line(one.name), command.Plural(lost, "event"))
	}
	switch {
	case one.err != nil && one.begun && fs.flags.every > 0:
		fs.Note("%s: its counts are those of its last interval", command.Line(one.name))
	case one.err != nil && one.begun && !one.at.IsZero():
		fs.Note("%s: its counts are those of %s", command.Line(one.name), one.at.Local().Format(timeline.WallForm))
	case one.err != nil && one.begun:
		fs.Note("%s: it has sent no counts", command.Line(one.name))
	case end.Reason != "" && end.Reason != api.EndExit && end.Reason != api.EndAsked:
		fs.Note("%s: it ended: %s", command.Line(one.name), strings.ReplaceAll(command.Line(end.Reason), "_", " "))
	}
	return status
}
