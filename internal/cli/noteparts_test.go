package cli

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestNoteParts: attaching names the functions that run in place of the probed one. Cold parts alone give no note.
func TestNoteParts(t *testing.T) {
	var out strings.Builder
	noteParts(&command.Run{Env: command.Env{Stderr: &out}}, []api.Probe{
		{Name: "kprobes/a", Symbol: "foo", Parts: []string{"foo.part.0", "foo.cold"}},
		{Name: "kprobes/b", Symbol: "bar", Parts: []string{"bar.cold"}},
		{Name: "kprobes/c", Symbol: "baz"},
	})
	if want := "kprobes/a: part of foo runs as foo.part.0, foo.cold: calls that begin there do not hit this probe. Probe these functions too.\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
