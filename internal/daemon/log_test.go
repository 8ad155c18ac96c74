package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fullDisk fails while full.
type fullDisk struct {
	bytes.Buffer
	full bool
}

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.full {
		return 0, errors.New("no space left on device")
	}
	return f.Buffer.Write(p)
}

func TestLogSurvivesAFullDisk(t *testing.T) {
	disk, stderr := &fullDisk{}, &bytes.Buffer{}
	l := &logWriter{name: "file x", w: disk, fallback: stderr}
	say := func(s string) {
		if n, err := l.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("write %q: %d, %v", s, n, err)
		}
	}
	say("one\n")
	disk.full = true
	say("two\n")
	say("three\n")
	disk.full = false
	say("four\n")
	if want := "one\nguestprobed: 2 log lines were lost here\nfour\n"; disk.String() != want {
		t.Errorf("log %q, want %q", disk.String(), want)
	}
	if l.Lost() != 2 {
		t.Errorf("lost %d, want 2", l.Lost())
	}
	if n := strings.Count(stderr.String(), "log file x: no space left on device"); n != 1 {
		t.Errorf("said %d times on standard error, want once: %q", n, stderr)
	}
}

func TestNewLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	o := defaultOptions()
	o.logFile, o.logFormat = path, "json"
	log, _, closer, err := newLog(&o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hello", "n", 1)
	log.Debug("not this")
	closer.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		Msg string
		N   int
	}
	if err := json.Unmarshal(b, &line); err != nil || line.Msg != "hello" || line.N != 1 {
		t.Errorf("log %q: %+v, %v", b, line, err)
	}
	o.logFile = filepath.Join(path, "x")
	if _, _, _, err := newLog(&o, io.Discard); err == nil || !strings.HasPrefix(err.Error(), "log file: ") {
		t.Errorf("file in a file: %v", err)
	}
}
