package timeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// flood is a trace of n hits as a busy guest makes them: reads by some tasks on two vCPUs, each with its return.
func flood(tb testing.TB, n int) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := NewNDJSON(&b)
	write := func(r *Record) {
		if err := w.Write(r); err != nil {
			tb.Fatal(err)
		}
	}
	write(NewRecord(api.Start{TimeNS: 1e9, BootNS: 1e6}))
	for i := range n / 2 {
		cpu, at := i%2, int64(1e9+20_000*i)
		task := &api.Task{PID: int32(100 + i%7), Comm: fmt.Sprintf("task%d", i%7)}
		write(NewRecord(api.Hit{TimeNS: at, CPU: cpu, Probe: "kprobes/read", ID: 1, Stage: "pre", Addr: 0xffffffff802013b4, Symbol: "vfs_read+0x4", Task: task,
			Args: []api.Arg{{Name: "fd", Type: "s32", Value: i % 9, Text: itoa(i % 9)}, {Name: "count", Type: "u64", Value: i % 4096, Text: itoa(i % 4096)}}, Text: fmt.Sprintf("(vfs_read+0x4/0xa9) fd=%d count=%d", i%9, i%4096)}))
		write(NewRecord(api.Hit{TimeNS: at + 9_000, CPU: cpu, Probe: "kprobes/readret", ID: 2, Stage: "return", Addr: 0xffffffff802013b0, Symbol: "vfs_read", Ret: 0xffffffff80202677, RetSymbol: "do_syscall+0x57",
			DurationNS: 9_000, Task: task, Args: []api.Arg{{Name: "ret", Type: "s64", Value: i % 100, Text: itoa(i % 100)}}, Text: fmt.Sprintf("(do_syscall+0x57/0x62 <- vfs_read) ret=%d", i%100)}))
	}
	write(NewRecord(api.End{Reason: "count", Delivered: uint64(n / 2 * 2)}))
	return b.Bytes()
}

// BenchmarkForms is what 50,000 events cost in each form, with reading them as records of JSON, as trace and convert
// do ("read" is that alone). Numbers are of CPU time, so that they can be compared on a busy machine.
func BenchmarkForms(b *testing.B) {
	const events = 50_000
	trace := flood(b, events)
	for _, form := range append([]string{"read", "table", "json"}, Formats...) {
		b.Run(form, func(b *testing.B) {
			b.ReportAllocs()
			size := &counter{}
			before := cpuTime(b)
			for b.Loop() {
				size.n = 0
				var w Writer
				if form != "read" {
					w = writerOf(b, form, size)
				}
				for in := NewReader(bytes.NewReader(trace)); ; {
					r, err := in.Next()
					if err == io.EOF {
						break
					} else if err != nil {
						b.Fatal(err)
					}
					if w != nil {
						if err := w.Write(r); err != nil {
							b.Fatal(err)
						}
					}
				}
				if w != nil {
					if err := w.Close(); err != nil {
						b.Fatal(err)
					}
				}
			}
			took := cpuTime(b) - before
			b.ReportMetric(events*float64(b.N)/took.Seconds(), "events/cpu-s")
			b.ReportMetric(float64(took.Microseconds())/events/float64(b.N), "cpu-us/event")
			b.ReportMetric(float64(size.n)/events, "B/event")
		})
	}
}

// cpuTime is what this process has used of the processors.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// counter counts what is written.
type counter struct{ n int }

// Write counts.
func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}

// TestFlood: a trace of 50,000 events has all of them in each form.
func TestFlood(t *testing.T) {
	const events = 50_000
	trace := flood(t, events)
	var drawn []struct{ Ph string }
	if err := json.Unmarshal(convertTrace(t, Chrome, trace), &drawn); err != nil {
		t.Fatal(err)
	}
	phases := map[string]int{}
	for _, e := range drawn {
		phases[e.Ph]++
	}
	if phases["X"] != events/2 || phases["i"] != events/2+events+1 {
		t.Errorf("%v", phases)
	}
	if n := bytes.Count([]byte(readPerfetto(t, convertTrace(t, Perfetto, trace))), []byte(" for 9000\n")); n != events/2 {
		t.Errorf("%d slices", n)
	}
	if n := bytes.Count(convertTrace(t, "table", trace), []byte("\n")); n != events+11 {
		t.Errorf("%d lines", n)
	}
}
