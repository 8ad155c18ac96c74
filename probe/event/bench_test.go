package event

import (
	"context"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe"
)

// readDef is what a user typically writes: a number, a pointer, a string.
const readDef = "p:myread vfs_read fd=%di:s32 buf=%si name=+0(%r8):string"

func compile(t testing.TB, text string, opt Options) *Fetcher {
	t.Helper()
	d, err := ParseIn(text, kernel)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Compile(d, kernel, opt)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// readMachine is a machine whose registers suit readDef.
func readMachine(t testing.TB, cpus int) (*machine, *probe.Regs) {
	m := newMachine(t, cpus)
	m.set(0x5000, []byte("a-file-name.txt\x00"))
	return m, &probe.Regs{RDI: 3, RSI: 0xffff888003a5c000, R8: 0x5000, RSP: 0x6000, RFLAGS: 2}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(readDef); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCapture is the fetch alone.
func BenchmarkCapture(b *testing.B) {
	m, regs := readMachine(b, 1)
	f := compile(b, readDef, Options{})
	buf := make([]byte, f.BufSize())
	m.handle(b, func(c *probe.Context) {
		b.ReportAllocs()
		for b.Loop() {
			f.Capture(c, buf)
		}
	})
	m.hit(0, regs)
}

// BenchmarkEmit is fetch, clock, ring and wake-up, as a handler pays it, with
// one subscriber that reads all.
func BenchmarkEmit(b *testing.B) {
	for _, bm := range []struct {
		name     string
		gap      time.Duration // between two events
		coalesce time.Duration // negative: nearly every event wakes the hub
	}{
		{"flood", 0, 0},
		{"every-20us", 20 * time.Microsecond, 0},
		{"every-200us", 200 * time.Microsecond, 0},
		{"every-200us-waking", 200 * time.Microsecond, -1},
	} {
		b.Run(bm.name, func(b *testing.B) {
			m, regs := readMachine(b, 1)
			hub := NewHub(1, HubOptions{Coalesce: bm.coalesce})
			src := hub.Source(compile(b, readDef, Options{}), nil)
			sub := hub.Subscribe(nil, Queue{})
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					if _, err := sub.Next(context.Background()); err != nil {
						return
					}
				}
			}()
			m.handle(b, func(c *probe.Context) {
				b.ReportAllocs()
				spent, n := time.Duration(0), 0
				for b.Loop() {
					if bm.gap == 0 {
						src.Emit(c)
						continue
					}
					start := time.Now()
					src.Emit(c)
					spent += time.Since(start)
					n++
					for time.Since(start) < bm.gap {
					}
				}
				if n > 0 {
					b.ReportMetric(float64(spent.Nanoseconds())/float64(n), "emit-ns")
				}
			})
			m.hit(0, regs)
			counts := hub.Close()
			<-done
			b.ReportMetric(100*float64(counts.Total().Lost)/float64(counts.Total().Lost+counts.Total().Stored), "%lost")
		})
	}
}
