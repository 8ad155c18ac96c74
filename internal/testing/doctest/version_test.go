package doctest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVersionRecorded: a program that was built with VERSION says so, and from which commit.
func TestVersionRecorded(t *testing.T) {
	const version = "7.8.9+1.gabcdef"
	dir := t.TempDir()
	plan := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-n", "build", "VERSION="+version, "BIN="+dir, "PROGRAMS=./cmd/guestprobe")
	plan.Dir = root
	plan.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") }) // of the make that runs this
	command, err := plan.Output()
	if err != nil {
		t.Fatalf("%v: %v", plan, err)
	}
	// Without -trimpath the packages that this test run has compiled are used again.
	build := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(string(command), "-trimpath", "", 1))
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	head := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD")
	head.Dir = root
	commit, err := head.Output()
	if err != nil { // a tree without git: make records no commit
		commit = nil
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "guestprobe"), "version", "--format", "json", "--socket", filepath.Join(dir, "none")).Output()
	var said struct {
		Client struct{ Version, Git string }
	}
	if jsonErr := json.Unmarshal(out, &said); jsonErr != nil {
		t.Fatalf("%q, %v: %v", out, err, jsonErr)
	}
	if said.Client.Version != version || said.Client.Git != strings.TrimSpace(string(commit)) {
		t.Errorf("version --json says %+v, want %s of commit %s", said.Client, version, commit)
	}
}
