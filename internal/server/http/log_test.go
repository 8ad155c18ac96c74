package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
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
	if l.LostLines() != 2 {
		t.Errorf("lost %d, want 2", l.LostLines())
	}
	if n := strings.Count(stderr.String(), "log file x: no space left on device"); n != 1 {
		t.Errorf("said %d times on standard error, want once: %q", n, stderr)
	}
}

func TestNewLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	o := defaultOptions()
	o.logFile, o.logFormat = path, "json"
	log, w, err := newLog(&o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hello", "n", 1)
	log.Debug("not this")
	w.Close()
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
	if _, _, err := newLog(&o, io.Discard); err == nil || !strings.HasPrefix(err.Error(), "log file: ") {
		t.Errorf("file in a file: %v", err)
	}
}

// TestLogIsReopened: what rotates logs moves the file away; lines after that are in a new one.
func TestLogIsReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	o := defaultOptions()
	o.logFile = path
	log, w, err := newLog(&o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	log.Info("before")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	log.Info("between")
	if err := w.reopen(); err != nil {
		t.Fatal(err)
	}
	log.Info("after")
	for path, want := range map[string]string{path + ".1": "msg=before msg=between", path: "msg=after"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(regexp.MustCompile(`msg=\w+`).FindAllString(string(b), -1), " "); got != want {
			t.Errorf("%s has %q, want %q", path, got, want)
		}
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := w.reopen(); err == nil || !strings.HasPrefix(err.Error(), "log file: ") {
		t.Errorf("in a folder that is gone: %v", err)
	}
	log.Info("still")
	if w.LostLines() != 0 {
		t.Error("a line was lost")
	}
}

// TestLogIsLimited: of each kind there are some lines and the number of the others; kinds do not take each other's room.
func TestLogIsLimited(t *testing.T) {
	var out bytes.Buffer
	l := newLimited(slog.NewTextHandler(&out, nil), time.Hour)
	log := slog.New(l)
	for i := range 1000 {
		log.Warn("fleet: not connected", "url", i)
		log.Info("fleet: connected again", "server", i)
		log.With("a", 1).Error(fmt.Sprintf("http: TLS handshake error from 1.2.3.4:%d: x", i))
		log.Info("attached", "n", i) // who has changed what is always written
	}
	log.Warn("another one")
	l.kinds.close()
	for want, n := range map[string]int{
		`msg="fleet: not connected"`: fleetLines, `msg="fleet: connected again"`: fleetLines, `handshake error from`: kindLines + 1, `msg=attached`: 1000, `msg="another one"`: 1,
		`level=WARN msg="lines like one before were left out" like="fleet: not connected" lines=995`:                      1,
		`level=INFO msg="lines like one before were left out" like="fleet: connected again" lines=995`:                    1,
		`level=ERROR msg="lines like one before were left out" like="http: TLS handshake error from 0.0.0.0:0" lines=980`: 1,
	} {
		if got := strings.Count(out.String(), want); got != n {
			t.Errorf("%d lines with %s, want %d", got, want, n)
		}
	}
	out.Reset()
	l = newLimited(slog.NewTextHandler(&out, nil), time.Hour)
	for i := range 10 * maxKinds {
		slog.New(l).Warn(strings.Repeat("x", i%100) + strings.Repeat("y", i/100))
	}
	if n := len(l.kinds.all); n > maxKinds+1 {
		t.Errorf("%d kinds are held", n)
	}
	l.kinds.close()
}

// TestLogWindow: a kind that was left out is written again, and how often it was left out, when its time is over.
func TestLogWindow(t *testing.T) {
	out := &syncBuffer{}
	l := newLimited(slog.NewTextHandler(out, nil), 50*time.Millisecond)
	log := slog.New(l)
	defer l.kinds.close()
	for range fleetLines + 3 {
		log.Warn("fleet: not connected")
	}
	for ctx := patience.Context(t); !strings.Contains(out.String(), `like="fleet: not connected" lines=3`); {
		if ctx.Err() != nil {
			t.Fatal(out.String())
		}
		time.Sleep(time.Millisecond)
	}
	log.Warn("fleet: not connected", "x", "again")
	if !strings.Contains(out.String(), "x=again") {
		t.Errorf("after its time: %s", out.String())
	}
}
