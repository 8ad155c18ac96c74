package event

import (
	"context"
	"testing"
	"time"
)

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(readDef); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEmit is clock, ring and wake-up, as a handler pays them, with one
// subscriber that reads all.
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
			b.ReportAllocs()
			spent, n := time.Duration(0), 0
			for b.Loop() {
				if bm.gap == 0 {
					emit(src, 0, 40)
					continue
				}
				start := time.Now()
				emit(src, 0, 40)
				spent += time.Since(start)
				n++
				for time.Since(start) < bm.gap {
				}
			}
			if n > 0 {
				b.ReportMetric(float64(spent.Nanoseconds())/float64(n), "emit-ns")
			}
			counts := hub.Close()
			<-done
			b.ReportMetric(100*float64(counts.Total().Lost)/float64(counts.Total().Lost+counts.Total().Stored), "%lost")
		})
	}
}
