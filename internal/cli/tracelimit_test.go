package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
)

// TestTraceTimeBegins: the time of a trace begins when its probes are attached, even if
// a busy host needs longer than that to attach them.
func TestTraceTimeBegins(t *testing.T) {
	url, _ := keepingServer(t)
	dir := t.TempDir()
	startFake(t, dir, url, "vm1", 1, false)
	for _, format := range []string{"table", "json"} {
		path := filepath.Join(dir, format)
		var out, errs bytes.Buffer
		args := []string{"--socket", filepath.Join(dir, "vm1.sock"), "trace", "--timeout", "100ms", "--format", format, "-o", path, "p:late_more"}
		status := Program().Run(t.Context(), command.Env{Args: args, Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }})
		text, err := os.ReadFile(path)
		if status != 0 || err != nil || !strings.Contains(errs.String(), "Tracing 1 probe.") || !strings.Contains(string(text), "fd=0") || !strings.Contains(string(text), "timeout") {
			t.Errorf("%s: status %d, %v: %q\n%s", format, status, err, &errs, text)
		}
	}
}
