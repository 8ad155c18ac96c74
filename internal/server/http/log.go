package http

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// logWriter passes log lines on and survives a destination that fails: a full
// disk, a closed pipe. It reports the failure once on the fallback and counts
// the lines that are lost. When writing works again, it logs the count.
type logWriter struct {
	mu       sync.Mutex
	name     string
	w        io.Writer
	fallback io.Writer // nil when w is the last resort itself
	lost     uint64    // since the last line that was written
	total    uint64

	level slog.LevelVar
	file  string // "": we have not opened w
	kinds *kinds
}

// Write never fails: logging must not affect the daemon.
func (l *logWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost > 0 {
		if _, err := fmt.Fprintf(l.w, "guestprobed: %d log lines were lost here\n", l.lost); err != nil {
			l.lost++
			l.total++
			return len(p), nil
		}
		l.lost = 0
	}
	if _, err := l.w.Write(p); err != nil {
		if l.total == 0 && l.fallback != nil {
			fmt.Fprintf(l.fallback, "guestprobed: log %s: %v; the daemon continues, and log lines are lost until the file can be written\n", l.name, err)
		}
		l.lost++
		l.total++
	}
	return len(p), nil
}

// LostLines returns how many lines were lost so far.
func (l *logWriter) LostLines() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// reopen opens the log's file by its name again, after log rotation has moved
// the old file away. If that fails it keeps the old file.
func (l *logWriter) reopen() error {
	if l.file == "" {
		return nil
	}
	f, err := openLog(l.file)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.w
	l.w = f
	if c, ok := old.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Close writes the pending lines of the log, and closes its file.
func (l *logWriter) Close() error {
	l.kinds.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.w.(io.Closer); ok && l.file != "" {
		return c.Close()
	}
	return nil
}

// openLog opens the file of a log.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, 0o640) // ENXIO: a named pipe without a reader
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	return f, nil
}

// newLog creates the daemon's log from its options. Closing the writer closes
// its file.
func newLog(o *options, stderr io.Writer) (*slog.Logger, *logWriter, error) {
	w := &logWriter{name: "to standard error", w: stderr}
	if o.logFile != "" {
		f, err := openLog(o.logFile)
		if err != nil {
			return nil, nil, err
		}
		w = &logWriter{name: "file " + o.logFile, w: f, file: o.logFile, fallback: stderr}
	}
	var h slog.Handler
	w.level.Set(o.logLevel)
	ho := &slog.HandlerOptions{Level: &w.level}
	if o.logFormat == "json" {
		h = slog.NewJSONHandler(w, ho)
	} else {
		h = slog.NewTextHandler(w, ho)
	}
	l := newLimited(h, kindWindow)
	w.kinds = l.kinds
	return slog.New(l), w, nil
}
