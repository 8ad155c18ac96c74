package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// folder creates the folder for the test's kept files.
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

// keepGuest saves a snapshot of the guest. An error is added to the test's output.
func (t *check) keepGuest(ctx context.Context) {
	dir, err := t.folder()
	if err == nil {
		_, _ = t.c.Pause(ctx) // fails if the guest has ended, which does no harm
		_, err = saveTo(ctx, t.c, filepath.Join(dir, "guest.gps"), false)
	}
	if err != nil {
		t.output.say("The guest could not be kept: %v\n", err)
	}
}

// keepTexts saves the test's texts.
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

// traceBytes returns the trace's first line and as many of its last lines as were kept.
func (t *check) traceBytes() []byte {
	if t.first == nil {
		return nil
	}
	b := t.trace.bytes()
	if t.trace.cut {
		_, after, _ := strings.Cut(string(b), "\n") // drop the incomplete first line
		return []byte(string(t.first) + fmt.Sprintf(`{"type":%q,"data":{"text":"lines before this are left out"}}`+"\n", api.RecordWarning) + after)
	}
	return append(t.first, b...)
}
