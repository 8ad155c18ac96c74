package http

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// getDaemon reports the resources that this process uses. It collects garbage
// first: otherwise the heap's size depends more on when the last collection ran
// than on the live data.
func (s *server) getDaemon(w http.ResponseWriter, r *http.Request) error {
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	d := api.Daemon{
		PID: s.pid, Started: s.probes.Epoch(), UptimeMS: time.Since(s.probes.Epoch()).Milliseconds(),
		Goroutines: runtime.NumGoroutine(), HeapBytes: mem.HeapAlloc, LogLost: s.logLost(), NotRestored: s.state.PendingNames(),
	}
	var err error
	if d.Descriptors, err = countDescriptors(); err != nil {
		return err
	}
	if d.RSSBytes, d.Threads, err = processStatus(); err != nil {
		return err
	}
	d.Streams = s.streams.count()
	for _, a := range s.probes.Probes() {
		d.Probes++
		if !a.Stays() {
			d.Session++
		}
	}
	d.Events = s.eventCounts()
	writeJSON(w, http.StatusOK, d)
	return nil
}

// countDescriptors returns how many descriptors the process has open, without
// the one that reads the directory (proc(5), /proc/pid/fd).
func countDescriptors() (int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, fmt.Errorf("count descriptors: %w", err)
	}
	return len(entries) - 1, nil
}

// statusFile is the kernel's report of the resources that this process uses
// (proc(5), /proc/pid/status).
const statusFile = "/proc/self/status"

// processStatus reads the resident size in bytes and the number of threads.
func processStatus() (rss uint64, threads int, err error) {
	kb, err := statusField("VmRSS")
	if err != nil {
		return 0, 0, err
	}
	n, err := statusField("Threads")
	return kb << 10, int(n), err
}

// statusField reads a number from the process's status; sizes of memory are in
// kB.
func statusField(name string) (uint64, error) {
	b, err := os.ReadFile(statusFile)
	if err != nil {
		return 0, fmt.Errorf("process status: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if is, value, _ := strings.Cut(line, ":"); is == name {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 54)
			if err != nil {
				return 0, fmt.Errorf("process status: %s: %w", name, err)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("process status: it has no %s", name)
}
