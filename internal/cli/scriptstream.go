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

// settleTime is how long output of one daemon is held back for earlier output of other daemons.
const settleTime = 250 * time.Millisecond

// scriptStream prints the output of a script that runs in one or several daemons. A single daemon's output is printed as it
// comes. Lines of several daemons are printed with the daemons' names, in the order of time, and their maps are added up.
type scriptStream struct {
	*command.Run
	flags *scriptFlags
	alone bool // a single daemon, not named in the output
	raw   io.Writer
	out   *lockedWriter // writes to raw
	lines *fleet.Order[string]
	open  func(context.Context, *remote.Client) (*remote.Stream, error)

	attached bool // print in how many daemons the script was attached
	fixed    bool // ignore daemons that join later

	mu    sync.Mutex
	all   []*sender
	total script.Total // of the current interval, or of the whole run
}

// sender is a daemon that runs the script.
type sender struct {
	name  string
	epoch time.Time
	begun bool
	ended bool // its stream has ended
	end   api.End
	err   error
	lost  uint64
	parts []script.MapState // an incomplete set of maps
	// elements is the number of elements in parts.
	elements int
	whole    []script.MapState   // the last complete set of maps
	at       time.Time           // time of whole
	rounds   [][]script.MapState // maps of intervals that are not printed yet

	lineMu sync.Mutex
	line   []byte      // an incomplete line
	since  int64       // time of its start
	timer  *time.Timer // prints it after partialTime
}

const (
	// partialTime is how long an incomplete line is held back.
	partialTime = time.Second
	// maxPartial is the maximum length of an incomplete line, in bytes. JSON objects have maxJSONLine instead.
	maxPartial  = 64 << 10
	maxJSONLine = 16 << 20
	// maxParts is the maximum number of maps in a set that arrives in several records.
	maxParts = 10_000
)

// lockedWriter is a writer for use by several goroutines.
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

// maxRounds is how many intervals are held back for the same intervals of other daemons.
const maxRounds = 16

// newScriptStream returns a scriptStream that prints the records of the streams returned by open to out.
func newScriptStream(r *command.Run, s *scriptFlags, alone bool, out io.Writer, open func(context.Context, *remote.Client) (*remote.Stream, error)) *scriptStream {
	fs := &scriptStream{Run: r, flags: s, alone: alone, raw: out, out: &lockedWriter{w: guestText(r, out)}, open: open}
	fs.lines = fleet.NewOrder(settleTime, func(line string, _ bool) error {
		_, err := io.WriteString(fs.out, line)
		return err
	}).LimitBytes(func(line string) int { return len(line) })
	return fs
}

// runEverywhere prints the output of all daemons until their streams end, including daemons that join later. It calls begin
// when the first stream has started.
func (fs *scriptStream) runEverywhere(ctx context.Context, m *members, begin func() error) error {
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	first := true
	err := m.forEachDaemon(over, !fs.fixed, func() {
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

// start records that a daemon runs the script. The caller holds mu.
func (fs *scriptStream) start(one *sender, start api.Start, begin func() error, cancel func()) error {
	first := true
	for _, o := range fs.all {
		first = first && !o.begun
	}
	one.begun, one.epoch = true, start.Epoch
	if err := fs.lines.Advance(one.name, start.Epoch.UnixNano()+start.TimeNS); err != nil {
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
	if err := begin(); err != nil || !fs.alone || !fs.attached { // begin is not called earlier because the script may not compile
		return err
	}
	fs.Note("Attached %s", command.Plural(start.Attached, "probe"))
	if fs.flags.verbose {
		return notePlaces(fs.Run, fs.raw, start)
	}
	return nil
}

// note prints a daemon's message.
func (fs *scriptStream) note(one *sender, text string) {
	if fs.alone {
		fs.Note("%s", command.Clean(text))
		return
	}
	noteOf(fs.Run, one.name, text)
}

// follow reads a daemon's stream until it ends.
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
	_ = fs.lines.End(one.name) // finish returns write errors
	fs.printRounds()
}

// record handles a record of a daemon.
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

// print prints a daemon's complete lines, each with the daemon's name. An incomplete line is printed as a line of its own after
// partialTime, or when it is too long; for JSON a line that is too long is an error.
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
					_ = fs.flush(one) // finish returns write errors
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

// end prints the current line. The caller holds lineMu.
func (fs *scriptStream) end(one *sender) error {
	if one.timer != nil {
		one.timer.Stop()
		one.timer = nil
	}
	line := string(one.line)
	if one.line = one.line[:0]; cap(one.line) > maxPartial {
		one.line = nil
	}
	return fs.lines.Put(one.name, one.since, fs.nameLine(one, line+"\n"))
}

// flush prints an incomplete line. The caller holds lineMu.
func (fs *scriptStream) flush(one *sender) error {
	if len(one.line) == 0 {
		return nil
	}
	return fs.end(one)
}

// nameLine adds the daemon's name to a line: as a prefix, or as a field of a JSON object.
func (fs *scriptStream) nameLine(one *sender, line string) string {
	if !fs.WantsJSON() {
		return one.name + ": " + line
	}
	name, err := json.Marshal(one.name)
	if object, ok := strings.CutSuffix(line, "}\n"); ok && err == nil {
		return object + `, "daemon": ` + string(name) + "}\n"
	}
	return line
}

// maps handles maps of a daemon.
func (fs *scriptStream) maps(one *sender, m api.ScriptMaps) error {
	var states []script.MapState
	if err := json.Unmarshal(m.Maps, &states); err != nil {
		return fmt.Errorf("%w: %w", remote.ErrProtocol, err)
	}
	if m.Left > 0 && !m.More && !fs.alone {
		fs.Note("%s: %s of maps %s left out: there are too many", command.Line(one.name), command.Plural(m.Left, "element"), command.IsOrAre(m.Left))
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

// elementsOf returns the number of elements in maps.
func elementsOf(states []script.MapState) (n int) {
	for _, m := range states {
		n += len(m.Elements)
	}
	return n
}

// printRounds prints the sums of each interval that all daemons still running the script have sent. The
// caller holds mu.
func (fs *scriptStream) printRounds() {
	for fs.flags.every > 0 {
		some := false
		for _, one := range fs.all {
			if some = some || len(one.rounds) > 0; len(one.rounds) > maxRounds {
				break // the other daemons are too slow
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

// write writes output that belongs to no single daemon. The caller holds mu.
func (fs *scriptStream) write(text string) {
	_, _ = io.WriteString(fs.out, text) // a write error recurs on the next line
}

// add adds a daemon's maps to the total. The caller holds mu.
func (fs *scriptStream) add(one *sender, maps []script.MapState) {
	for _, p := range fs.total.Add(one.name, maps) {
		fs.note(one, p)
	}
}

// finish prints the sums of all maps, and how the script ended in each daemon.
func (fs *scriptStream) finish() error {
	if _, err := fs.lines.Close(); err != nil {
		return err
	}
	var failed []failure
	status, maps := command.Status(0), false
	for _, one := range fs.all {
		// A single daemon's script has already printed its maps, except if the script is the fleet's.
		maps = maps || one.begun && (!fs.alone || one.whole != nil)
		fs.add(one, one.whole)
		failed = append(failed, failure{one.name, one.err})
		for _, text := range missTexts(one.end) {
			fs.note(one, text)
		}
		status = cmp.Or(status, fs.reportEnd(one))
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

// reportEnd prints how a script ended in a daemon, and returns the resulting exit status.
func (fs *scriptStream) reportEnd(one *sender) (status command.Status) {
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
		fs.Note("%s: its counts are from its last interval", command.Line(one.name))
	case one.err != nil && one.begun && !one.at.IsZero():
		fs.Note("%s: its counts are from %s", command.Line(one.name), one.at.Local().Format(timeline.WallForm))
	case one.err != nil && one.begun:
		fs.Note("%s: it has sent no counts", command.Line(one.name))
	case end.Reason != "" && end.Reason != api.EndExit && end.Reason != api.EndAsked:
		fs.Note("%s: it ended: %s", command.Line(one.name), strings.ReplaceAll(command.Line(end.Reason), "_", " "))
	}
	return status
}
