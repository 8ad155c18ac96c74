package timeline

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestNesting: calls that do and do not lie within each other, in whatever order they come, are drawn with their own
// begins and lengths, as a reader with a stack for each track finds them; the few that overlap too much are instants.
func TestNesting(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var trace bytes.Buffer
		w := NewNDJSON(&trace)
		write := func(r *Record) {
			if err := w.Write(r); err != nil {
				t.Fatal(err)
			}
		}
		write(NewRecord(api.Start{}))
		type call struct{ from, took int64 }
		want := map[int]call{}
		at := int64(1000)
		// Every other trace is of calls as a task makes them: each within the one before.
		proper := seed%2 == 0
		var open []int64
		for len(want) < 500 {
			at += rng.Int64N(20)
			c := call{took: 1 + rng.Int64N(60)}
			switch {
			case proper && (len(open) == 0 || len(open) < 20 && rng.IntN(2) == 0):
				at++ // two calls do not begin at once
				open = append(open, at)
				continue
			case proper:
				c.took = at - open[len(open)-1]
				open = open[:len(open)-1]
				if c.took == 0 {
					at++
					c.took++
				}
			}
			c.from = at - c.took
			i := len(want)
			want[i] = c
			late := int64(0)
			if !proper && rng.IntN(20) == 0 { // it came behind its time
				late = 30
			}
			want[i] = call{c.from - late, c.took}
			write(NewRecord(api.Hit{TimeNS: at - late, Probe: "g/p", Stage: "return", Symbol: "f", DurationNS: c.took, Task: &api.Task{PID: 7, Comm: "c"},
				Args: []api.Arg{{Name: "i", Type: "u32", Value: i, Text: itoa(i)}}}))
		}
		got, instants := map[int]call{}, 0
		for line := range strings.Lines(readPerfetto(t, convertTrace(t, Perfetto, trace.Bytes()))) {
			_, rest, ok := strings.Cut(line, " i=")
			if !ok {
				continue
			}
			var c call
			i, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			if _, took, ok := strings.Cut(rest, " for "); !ok {
				instants++
				continue
			} else if _, err := fmt.Sscan(line, &c.from); err != nil {
				t.Fatal(err)
			} else if _, err := fmt.Sscan(took, &c.took); err != nil {
				t.Fatal(err)
			}
			got[i] = c
		}
		for i, c := range got {
			if c != want[i] {
				t.Fatalf("seed %d: call %d is drawn from %d for %d, and was %+v", seed, i, c.from, c.took, want[i])
			}
		}
		if len(got)+instants != len(want) || proper && instants > 0 || len(got) < len(want)/2 {
			t.Errorf("seed %d: %d slices and %d instants of %d calls", seed, len(got), instants, len(want))
		}
	}
}
