package http

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Limits of warnings and errors in the log, and of all lines about the
// connection to the fleet. Lines of one kind have the same text, whatever their
// attributes are.
const (
	// kindWindow is the time in which at most kindLines lines of a kind are
	// logged.
	kindWindow = time.Minute
	kindLines  = 20
	// fleetLines is kindLines for the connection to the fleet: its servers may be away for days.
	fleetLines = 5
	// maxKinds bounds the kinds that are distinguished; all others are one kind.
	maxKinds = 256
	// maxKind bounds the text of one, in bytes.
	maxKind = 80
)

// limited is a log handler that drops lines when there are too many of one kind,
// and then logs how many it has dropped.
type limited struct {
	slog.Handler
	kinds *kinds
}

// kinds are the kinds of lines of one log. All handlers derived from it share
// them.
type kinds struct {
	out    slog.Handler // for the lines about dropped lines
	window time.Duration

	mu  sync.Mutex
	all map[string]*kind
}

// kind counts the lines of one kind in its window.
type kind struct {
	lines, left int
	level       slog.Level
	timer       *time.Timer
}

func newLimited(h slog.Handler, window time.Duration) *limited {
	return &limited{h, &kinds{out: h, window: window, all: map[string]*kind{}}}
}

// WithAttrs implements slog.Handler.
func (l *limited) WithAttrs(as []slog.Attr) slog.Handler {
	return &limited{l.Handler.WithAttrs(as), l.kinds}
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{l.Handler.WithGroup(name), l.kinds}
}

// Handle implements slog.Handler. Lines below the level of warnings, such as
// lines about a client's changes, are never dropped, except lines about the
// fleet.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn && !strings.HasPrefix(r.Message, "fleet:") || l.kinds.take(kindOf(r.Message), r.Level) {
		return l.Handler.Handle(ctx, r)
	}
	return nil
}

// kindOf returns a message without the parts that differ between messages of a
// kind: numbers, and the text after a colon in the middle, which is an error's
// text in lines of net/http.
func kindOf(message string) string {
	if at := strings.LastIndex(message, ": "); at > 0 && !strings.HasPrefix(message, "fleet:") {
		message = message[:at]
	}
	digit := false
	message = strings.Map(func(r rune) rune {
		was := digit
		switch digit = r >= '0' && r <= '9'; {
		case digit && was:
			return -1
		case digit:
			return '0'
		}
		return r
	}, message)
	return message[:min(len(message), maxKind)]
}

// take reports whether to write a line of a kind.
func (k *kinds) take(name string, level slog.Level) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	x := k.all[name]
	if x == nil && len(k.all) >= maxKinds {
		name = "others"
		x = k.all[name]
	}
	if x == nil {
		x = &kind{}
		k.all[name] = x
		x.timer = time.AfterFunc(k.window, func() { k.endWindow(name) })
	}
	most := kindLines
	if strings.HasPrefix(name, "fleet:") {
		most = fleetLines
	}
	if x.lines < most {
		x.lines++
		return true
	}
	x.left, x.level = x.left+1, max(x.level, level)
	return false
}

// endWindow ends a kind's window.
func (k *kinds) endWindow(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if x := k.all[name]; x != nil {
		delete(k.all, name)
		k.say(name, x)
	}
}

// say logs how many lines of a kind were dropped. The caller has mu.
func (k *kinds) say(name string, x *kind) {
	if x.left == 0 {
		return
	}
	r := slog.NewRecord(time.Now(), x.level, "lines like one before were left out", 0)
	r.AddAttrs(slog.String("like", name), slog.Int("lines", x.left))
	if k.out.Enabled(context.Background(), x.level) {
		_ = k.out.Handle(context.Background(), r) // no handler of ours fails
	}
}

// close logs the counts that are not written yet.
func (k *kinds) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, x := range k.all {
		x.timer.Stop()
		delete(k.all, name)
		k.say(name, x)
	}
}
