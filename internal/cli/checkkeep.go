package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// folder makes the folder of what is kept of the test.
func (t *check) folder() (string, error) {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, t.Name)
	if strings.Trim(name, ".") == "" {
		name = "_" + name
	}
	dir := filepath.Join(t.keep, name)
	return dir, os.MkdirAll(dir, 0o777)
}

// keepGuest keeps the guest as it is. What goes wrong is said beside what has.
func (t *check) keepGuest(ctx context.Context) {
	dir, err := t.folder()
	if err == nil {
		_, _ = t.c.Pause(ctx) // one that has ended is as it is
		_, err = saveTo(ctx, t.c, filepath.Join(dir, "guest.gps"), false)
	}
	if err != nil {
		t.output.say("The guest could not be kept: %v\n", err)
	}
}

// keepTexts keeps the test's texts.
func (t *check) keepTexts() {
	dir, err := t.folder()
	if err != nil {
		t.output.say("Nothing could be kept: %v\n", err)
		return
	}
	t.Kept = dir
	for _, x := range []struct {
		name string
		text func() []byte
	}{
		{"output.txt", t.output.bytes}, {"console.txt", t.console.bytes}, {"daemon.log", t.own.log.bytes}, {"trace.ndjson", t.traceBytes},
	} {
		if b := x.text(); b != nil {
			if err := os.WriteFile(filepath.Join(dir, x.name), b, 0o666); err != nil {
				t.output.say("Not kept: %v\n", err)
			}
		}
	}
}

// traceBytes are the lines of the trace: its first, and the last ones that there is room for.
func (t *check) traceBytes() []byte {
	if t.first == nil {
		return nil
	}
	b := t.trace.bytes()
	if t.trace.cut {
		_, after, _ := strings.Cut(string(b), "\n") // a part of a line
		return []byte(string(t.first) + fmt.Sprintf(`{"type":%q,"data":{"text":"lines before this are left out"}}`+"\n", api.RecordWarning) + after)
	}
	return append(t.first, b...)
}
