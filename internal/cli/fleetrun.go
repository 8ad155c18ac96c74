package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/files"
	"github.com/guestprobe/guestprobe/internal/fleet"
	"github.com/guestprobe/guestprobe/internal/timeline"
	"github.com/guestprobe/guestprobe/probe/script"
)

// settleTime is how long what one daemon has sent waits for others that may have sent something earlier.
const settleTime = 250 * time.Millisecond

// fleetScript is a script that runs in all guests of a fleet.
type fleetScript struct {
	*command.Run
	flags *scriptFlags
	out   io.Writer
	lines *fleet.Order[string]
	open  func(context.Context, *client.Client) (*client.Stream, error)

	attached string // what is said of the daemons in which it has begun; "": nothing
	alone    bool   // without those that come later

	mu    sync.Mutex
	all   []*sender
	total script.Total // of an interval: since it was printed
}

// sender is a daemon that runs the script.
type sender struct {
	name   string
	epoch  time.Time
	begun  bool
	ended  bool // it sends nothing any more
	end    api.End
	err    error
	lost   uint64
	parts  []script.MapState   // of a moment that is not whole yet
	whole  []script.MapState   // as they were the last time
	at     time.Time           // of whole
	rounds [][]script.MapState // of intervals that are not printed yet
	line   string              // that has no end yet
	since  int64               // when it began
}

// lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// maxRounds bounds the intervals that wait for the same ones of other daemons.
const maxRounds = 16

// runMany runs the script in the guests of all daemons.
func (s *scriptFlags) runMany(ctx context.Context, r *command.Run, m *members) (err error) {
	out, begin := r.Stdout, func() error { return nil }
	if s.output != "" {
		f, err := files.Later(ctx, s.output)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out, begin = f, f.Begin
	}
	if err := s.check(r); err != nil {
		return err
	}
	s.req.Data = true
	fs := newFleetScript(r, s, out, func(ctx context.Context, c *client.Client) (*client.Stream, error) { return c.RunScript(ctx, s.req) })
	fs.attached = "Attached"
	return fs.everywhere(ctx, m, begin)
}

// newFleetScript returns a script whose stream is what open opens.
func newFleetScript(r *command.Run, s *scriptFlags, out io.Writer, open func(context.Context, *client.Client) (*client.Stream, error)) *fleetScript {
	fs := &fleetScript{Run: r, flags: s, out: &lockedWriter{w: guestText(r, out)}, open: open}
	fs.lines = fleet.NewOrder(settleTime, func(line string, _ bool) error {
		_, err := io.WriteString(fs.out, line)
		return err
	})
	return fs
}

// everywhere takes what all daemons send, also those that come later, until their ends; begin is called behind the first
// beginning.
func (fs *fleetScript) everywhere(ctx context.Context, m *members, begin func() error) error {
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	first := true
	err := m.everyone(over, !fs.alone, func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		n := 0
		for _, one := range fs.all {
			if one.begun {
				n++
			}
		}
		if first = false; n > 0 && fs.attached != "" {
			fs.Note("%s in %s", fs.attached, command.Plural(n, "daemon"))
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
					fs.Note("%s: has come, and runs it", command.Clean(one.name))
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
func (fs *fleetScript) start(one *sender, start api.Start, begin func() error, cancel func()) error {
	first := true
	for _, o := range fs.all {
		first = first && !o.begun
	}
	one.begun, one.epoch = true, start.Epoch
	if err := fs.lines.Heard(one.name, start.Epoch.UnixNano()+start.TimeNS); err != nil {
		return err
	}
	if fs.flags.verbose {
		fs.Note("%s: attached %s", command.Clean(one.name), command.Plural(start.Attached, "probe"))
	}
	if !first {
		return nil
	}
	if fs.flags.duration > 0 {
		time.AfterFunc(fs.flags.duration, cancel)
	}
	return begin() // before, the script may be one that does not compile
}

// follow takes what one daemon sends until its end.
func (fs *fleetScript) follow(ctx, over context.Context, c *client.Client, one *sender, started func(api.Start) error) {
	end, err := follow(ctx, over, c, func(life context.Context) (*client.Stream, error) { return fs.open(life, c) },
		func(_ api.Record, s api.Start) error { return started(s) }, func(rec api.Record) error { return fs.record(one, rec) })
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if one.end, one.err, one.ended = end, err, true; err == nil && end.Reason == endCutOff {
		one.err = client.ErrCutOff
	}
	if one.line != "" {
		_ = fs.lines.Put(one.name, one.since, fs.named(one, one.line+"\n"))
	}
	_ = fs.lines.End(one.name) // an error of the writer's is finish's
	fs.printRounds()
}

// record takes a record of a daemon.
func (fs *fleetScript) record(one *sender, rec api.Record) error {
	switch rec.Type {
	case api.RecordOutput:
		o, err := data[api.Output](rec)
		if err != nil {
			return err
		}
		if o.Bytes != nil {
			o.Text = string(o.Bytes)
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
		fs.Note("%s: %s", command.Clean(one.name), command.Clean(w.Text))
		return err
	case api.RecordStop:
		x, err := data[api.Stop](rec)
		if err == nil {
			fs.Note("%s: %s", command.Clean(one.name), command.Clean(timeline.StopText(x)))
		}
		return err
	case api.RecordLost:
		l, err := data[api.Lost](rec)
		one.lost = l.Total
		return err
	}
	return nil
}

// print prints lines of a daemon, each with its name, when they are whole.
func (fs *fleetScript) print(one *sender, at int64, text string) error {
	for text != "" {
		if one.line == "" {
			one.since = at
		}
		line, rest, whole := strings.Cut(text, "\n")
		if one.line += line; !whole {
			return nil
		}
		if err := fs.lines.Put(one.name, one.since, fs.named(one, one.line+"\n")); err != nil {
			return err
		}
		one.line, text = "", rest
	}
	return nil
}

// named is a line with its sender: before it, or as a field of the object that it is.
func (fs *fleetScript) named(one *sender, line string) string {
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
func (fs *fleetScript) maps(one *sender, m api.ScriptMaps) error {
	var states []script.MapState
	if err := json.Unmarshal(m.Maps, &states); err != nil {
		return fmt.Errorf("%w: %w", client.ErrProtocol, err)
	}
	if m.Left > 0 && !m.More {
		fs.Note("%s: %s of maps %s left out: there are too many", command.Clean(one.name), command.Plural(m.Left, "element"), command.Are(m.Left))
	}
	one.parts = append(one.parts, states...)
	if m.More {
		return nil
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	states, one.parts = one.parts, nil
	if !m.Part {
		one.whole, one.at = states, one.epoch.Add(time.Duration(m.TimeNS))
		return nil
	}
	one.rounds = append(one.rounds, states)
	fs.printRounds()
	return nil
}

// printRounds prints the intervals that all daemons have sent which run the script, and adds up what they have counted in
// them. The caller has mu.
func (fs *fleetScript) printRounds() {
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
func (fs *fleetScript) write(text string) {
	_, _ = io.WriteString(fs.out, text) // who does not read is told by the next line
}

// add adds maps of a daemon. The caller has mu.
func (fs *fleetScript) add(one *sender, maps []script.MapState) {
	for _, p := range fs.total.Add(one.name, maps) {
		fs.Note("%s: %s", command.Clean(one.name), command.Clean(p))
	}
}

// finish prints the sums of all maps, and says what has become of each daemon.
func (fs *fleetScript) finish() error {
	if _, err := fs.lines.Close(); err != nil {
		return err
	}
	var failed []failure
	status, begun := command.Status(0), false
	for _, one := range fs.all {
		begun = begun || one.begun
		fs.add(one, one.whole)
		failed = append(failed, failure{one.name, one.err})
		for _, text := range missedHits(one.end) {
			fs.Note("%s: %s", command.Clean(one.name), command.Clean(text))
		}
		if lost := max(one.lost, one.end.Lost); lost > 0 {
			fs.Note("%s: lost %s", command.Clean(one.name), command.Plural(lost, "event"))
		}
		if one.end.Strict != "" {
			fs.Note("%s: strict: %s", command.Clean(one.name), command.Clean(one.end.Strict))
			status = cmp.Or(status, command.ExitFailed)
		}
		switch reason := one.end.Reason; {
		case one.err != nil && one.begun && fs.flags.every > 0:
			fs.Note("%s: its counts are those of its last interval", command.Clean(one.name))
		case one.err != nil && one.begun && !one.at.IsZero():
			fs.Note("%s: its counts are those of %s", command.Clean(one.name), one.at.Local().Format(timeline.WallForm))
		case one.err != nil && one.begun:
			fs.Note("%s: it has sent no counts", command.Clean(one.name))
		case reason == api.EndExit && one.end.Code != nil:
			status = cmp.Or(status, command.Status(*one.end.Code&0xff))
		case reason != "" && reason != api.EndExit && reason != api.EndAsked:
			fs.Note("%s: it ended: %s", command.Clean(one.name), strings.ReplaceAll(command.Clean(reason), "_", " "))
		}
	}
	if begun {
		if !fs.WantsJSON() {
			fs.write("\n\n")
		}
		fs.total.Print(fs.WantsJSON(), fs.write)
	}
	if err := failures(fs.Run, failed); err != nil {
		return err
	}
	if status != 0 {
		return status
	}
	return nil
}
