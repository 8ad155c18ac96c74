package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/internal/show/top"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Messages to the screen.
type (
	topHit struct {
		id   uint64
		line string
	}
	topStacks struct {
		id    uint64
		lines []string
	}
	topNote string
	topOver struct{}
)

// topScreen shows a top.Model on a terminal.
type topScreen struct {
	*top.Model
	width, height int
	do            func(top.Do, top.Row) // performs the action of a key
}

// Init implements tea.Model.
func (s *topScreen) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (s *topScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch x := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = x.Width, x.Height
		return s, tea.ClearScreen // a frame of the old size may have been drawn after the change
	case tea.KeyPressMsg:
		do := s.Key(x.String())
		switch do {
		case top.Quit:
			return s, tea.Quit
		case top.Redraw:
			return s, tea.ClearScreen
		case top.Suspend:
			if canSuspend() {
				return s, tea.Exec(&suspension{}, nil)
			}
			return s, nil
		}
		if r, ok := s.AskedRow(); do != top.Nothing && (ok || do == top.Shut) {
			s.do(do, r)
		}
	case api.Counted:
		s.Add(x)
	case topHit:
		s.Hit(x.id, x.line)
	case topStacks:
		s.Stacks(x.id, x.lines)
	case topNote:
		s.Note(string(x))
	case topOver:
		return s, tea.Quit
	}
	return s, nil
}

// View implements tea.Model.
func (s *topScreen) View() tea.View {
	v := tea.NewView(strings.Join(s.Lines(s.width, s.height), "\n"))
	v.AltScreen = true
	return v
}

// watch shows counts on the terminal until the user quits.
func (f *topFlags) watch(ctx context.Context, r *command.Run, c *remote.Client) error {
	over, leave := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { leave(); all.Wait() }()
	m := top.New(chart.GlyphsOf(r.Getenv), r.Colors(r.Stdout))
	for m.SortColumn() != topSorts[f.sort] {
		m.Key("s")
	}
	if f.back {
		m.Key("r")
	}
	s := &topScreen{Model: m, width: 80, height: 24}
	p := tea.NewProgram(s, tea.WithInput(r.Stdin), tea.WithOutput(r.Stdout), tea.WithContext(over), tea.WithEnvironment(os.Environ()), tea.WithoutSignalHandler())
	look := &topLook{c: c, send: p.Send, every: f.interval, over: over, all: &all}
	s.do = look.do
	var end api.End
	var failed error
	all.Go(func() {
		end, failed = follow(over, over, c, func(life context.Context) (*remote.Stream, error) { return c.Counts(life, f.request(r)) }, func(api.Record, api.Start) error { return nil }, func(rec api.Record) error {
			if rec.Type != api.RecordCounts {
				return nil
			}
			n, err := data[api.Counted](rec)
			if err == nil {
				p.Send(n)
			}
			return err
		})
		p.Send(topOver{})
	})
	_, err := p.Run()
	left := over.Err() == nil && end.Reason == "" && failed == nil
	leave()
	all.Wait()
	switch {
	case failed != nil:
		return failed
	case left, errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil:
		return nil
	case err != nil && !errors.Is(err, tea.ErrProgramKilled):
		return err
	}
	return topEnd(ctx, r, end)
}

// topLook fetches the details of the opened probe.
type topLook struct {
	c     *remote.Client
	send  func(tea.Msg)
	every time.Duration
	over  context.Context
	all   *sync.WaitGroup
	into  context.Context    // canceled when the probe is closed; nil: no probe was opened
	shut  context.CancelFunc // cancels into
}

// do performs the action of a key. Only the screen's goroutine may call it.
func (l *topLook) do(what top.Do, r top.Row) {
	switch what {
	case top.Open:
		ctx, shut := context.WithCancel(l.over)
		l.into, l.shut = ctx, shut
		l.all.Go(func() { l.streamHits(ctx, r.ID) })
	case top.Shut:
		if l.shut != nil {
			l.shut()
			l.shut = nil
		}
	case top.Stacks:
		into := l.into
		l.all.Go(func() { l.send(topStacks{r.ID, l.stacks(into, r.ID)}) })
	case top.Detach:
		l.all.Go(func() {
			_, err := l.c.Detach(l.over, strconv.FormatUint(r.ID, 10))
			text := fmt.Sprintf("%s was detached.", r.Name)
			if err != nil {
				text = fmt.Sprintf("%s: %v", r.Name, err)
			}
			l.send(topNote(command.Clean(text)))
		})
	}
}

// hitsAtOnce is how many hits of the opened probe are shown in an interval. The probe reports no more events than these.
const hitsAtOnce = 20

// streamHits shows some of a probe's hits in each interval, until ctx ends.
func (l *topLook) streamHits(ctx context.Context, id uint64) {
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		if err := l.showHits(ctx, id); err != nil && ctx.Err() == nil {
			l.send(topNote(command.Clean(err.Error())))
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// showHits shows up to hitsAtOnce hits.
func (l *topLook) showHits(ctx context.Context, id uint64) error {
	s, err := l.c.Events(ctx, api.StreamEvents{Names: []string{strconv.FormatUint(id, 10)}})
	if err != nil {
		return err
	}
	defer s.Close()
	lines, err := timeline.NewLines(timeline.ClockBoot, false)
	if err != nil {
		return err
	}
	for shown := 0; shown < hitsAtOnce; {
		rec, err := s.Next()
		if err != nil {
			return err
		}
		switch rec.Type {
		case api.RecordStart:
			first, err := data[api.Start](rec)
			if err != nil {
				return err
			}
			lines.Start(first)
		case api.RecordBoot:
			b, err := data[api.Boot](rec)
			if err != nil {
				return err
			}
			lines.Boot(b) // times are relative to the boot
		case api.RecordHit:
			h, err := data[api.Hit](rec)
			if err != nil {
				return err
			}
			line, _, _ := strings.Cut(lines.Line(h), "\n")
			l.send(topHit{id, line})
			shown++
		case api.RecordEnd:
			return nil
		}
	}
	return nil
}

// shownStacks is how many stacks of a probe are shown.
const shownStacks = 10

// stacks collects the stacks of a probe's hits and returns them as lines. It returns at the first heartbeat after a hit,
// about a second later, or when ctx ends.
func (l *topLook) stacks(ctx context.Context, id uint64) []string {
	var stacks []api.Stack
	over, enough := context.WithCancel(ctx)
	defer enough()
	_, err := follow(ctx, over, l.c, func(life context.Context) (*remote.Stream, error) {
		return l.c.Profile(life, api.StreamProfile{Names: []string{strconv.FormatUint(id, 10)}})
	}, func(api.Record, api.Start) error { return nil }, func(rec api.Record) error {
		switch rec.Type {
		case api.RecordStack:
			s, err := data[api.Stack](rec)
			stacks = append(stacks, s)
			return err
		case api.RecordHeartbeat: // sent every second
			h, err := data[api.Heartbeat](rec)
			if h.Delivered > 0 {
				enough()
			}
			return err
		}
		return nil
	})
	switch {
	case err != nil:
		return []string{err.Error()}
	case len(stacks) == 0:
		return []string{"there was no hit during this time"}
	}
	slices.SortStableFunc(stacks, func(a, b api.Stack) int { return cmp.Compare(b.Count, a.Count) })
	var out []string
	for _, s := range stacks[:min(len(stacks), shownStacks)] {
		who := ""
		if s.Task != nil {
			who = fmt.Sprintf(" in %s-%d", s.Task.Comm, s.Task.PID)
		}
		out = append(out, fmt.Sprintf("%s%s, vCPU %d", command.Plural(s.Count, "hit"), who, s.CPU))
		for _, f := range s.Frames {
			out = append(out, "  "+timeline.FrameText(f))
		}
	}
	return out
}
