package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Profiling is by how much sampling slows down a guest, measured by the calls of
// a function that a vCPU makes in a second of its thread's processor time, and
// the processor time of the daemon and its client.
type Profiling struct {
	Unavailable string        `json:"unavailable,omitempty"`
	VCPUs       int           `json:"vcpus"`
	Plain       *Spread       `json:"plain,omitempty"` // calls a second of vCPU 0 of a guest that is not profiled
	Rates       []ProfilingAt `json:"rates"`
	SampleUs    *Spread       `json:"sampleUs,omitempty"` // a vCPU's time for a sample in microseconds, at the highest rate
}

// ProfilingAt is one rate of sampling. The rate 0 samples nothing, and shows the
// machine's own variation.
type ProfilingAt struct {
	Hz      int     `json:"hz"`
	Slower  *Spread `json:"slower"` // percent, of medians of windows, each against the one before it without samples
	Others  *Spread `json:"others"` // of the same, percent of one processor that all other threads of daemon and client use more
	Samples uint64  `json:"samples"`
	Lost    uint64  `json:"lost"`
}

// profilingRates are the measured rates: none, the usual one, and one with ten
// times the cost.
var profilingRates = []int{0, 99, 990}

// profilingWindow is how long calls are counted for one figure, and
// profilingWindows how many windows of each rate a run has. A machine's other
// load varies, and it affects the median of many short windows less than the
// median of a few long ones. The beginning of a profile is not a sample's cost,
// so it falls into a time before the window.
const (
	profilingWindow  = 240 * time.Millisecond
	profilingWindows = 12
)

// measureProfiling measures the cost of guestprobe profile for the guest,
// through the daemon's socket. vCPU 0 has a processor of its own, and its work
// there is counted. So it measures the cost of samples, and not the contention
// for processors, which a host with more processors does not have. Windows with
// and without samples alternate, so that both see the same conditions.
func measureProfiling(ctx context.Context, runs, windows int) (out Profiling, err error) {
	out.VCPUs = 2
	c, end, err := startGuest(ctx, out.VCPUs, "bench")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := callForEver(ctx, c); err != nil {
		return out, err
	}
	free, err := separateThreads()
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, free()) }()
	var plain []float64
	slower, others := make([][]float64, len(profilingRates)), make([][]float64, len(profilingRates))
	out.Rates = make([]ProfilingAt, len(profilingRates))
	for range runs {
		for i, hz := range profilingRates {
			out.Rates[i].Hz = hz
			var lost, more []float64
			for range windows {
				before, err := window(ctx, c, calls, profilingWindow, nil)
				if err != nil {
					return out, err
				}
				with, end, err := sampledWindow(ctx, c, hz)
				if err != nil {
					return out, err
				}
				out.Rates[i].Samples += end.Delivered
				out.Rates[i].Lost += end.Lost
				plain = append(plain, before.first)
				lost = append(lost, 100*(1-with.first/before.first))
				more = append(more, 100*(with.others-before.others))
			}
			slower[i], others[i] = append(slower[i], spread(lost).Median), append(others[i], spread(more).Median)
		}
	}
	sp := spread(plain)
	out.Plain = &sp
	for i := range slower {
		sp, op := spread(slower[i]), spread(others[i])
		out.Rates[i].Slower, out.Rates[i].Others = &sp, &op
		if n := out.Rates[i]; n.Hz > 0 {
			taken := float64(n.Hz) * float64(n.Samples) / float64(n.Samples+n.Lost)
			out.SampleUs = &Spread{Min: sp.Min * 1e4 / taken, Median: sp.Median * 1e4 / taken, Max: sp.Max * 1e4 / taken}
		}
	}
	return out, nil
}

// sampledWindow is window while the vCPUs are sampled, or for 0 Hz are not, with the end of that profile.
func sampledWindow(ctx context.Context, c *remote.Client, hz int) (with usage, end api.End, err error) {
	if hz > 0 {
		s, failed := c.Profile(ctx, api.StreamProfile{Hz: hz})
		if failed != nil {
			return with, end, failed
		}
		defer func() {
			var err2 error
			end, err2 = endProfile(ctx, c, s)
			err = errors.Join(err, err2, s.Close())
		}()
	}
	if _, err := window(ctx, c, calls, profilingWindow/4, nil); err != nil {
		return with, end, err
	}
	with, err = window(ctx, c, calls, profilingWindow, nil)
	return with, end, err
}

// endProfile asks for the end of a profile, and reads it.
func endProfile(ctx context.Context, c *remote.Client, s *remote.Stream) (end api.End, err error) {
	for {
		r, err := s.Next()
		if err != nil {
			return end, err
		}
		switch r.Type {
		case api.RecordStart:
			var start api.Start
			if err := json.Unmarshal(r.Data, &start); err != nil {
				return end, err
			}
			if err := c.EndStream(ctx, start.Stream); err != nil {
				return end, err
			}
		case api.RecordEnd:
			return end, json.Unmarshal(r.Data, &end)
		}
	}
}

// String describes the measurements.
func (p *Profiling) String() string {
	if p.Plain == nil {
		return fmt.Sprintf("What profiles cost was not measured: %s.", p.Unavailable)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Profiles of a guest at work in user code on %d vCPUs, by the calls of a function that vCPU 0 makes in a second, on a processor that nothing else uses:", p.VCPUs)
	for i, r := range p.Rates {
		if i > 0 {
			b.WriteByte(';')
		}
		if r.Hz == 0 {
			fmt.Fprintf(&b, " with no client %.2f %% slower (%.2f to %.2f), %.2f %% of a processor more for other threads (%.2f to %.2f)",
				r.Slower.Median, r.Slower.Min, r.Slower.Max, r.Others.Median, r.Others.Min, r.Others.Max)
			continue
		}
		fmt.Fprintf(&b, " at %d Hz %.2f %% slower (%.2f to %.2f), %.2f %% of a processor more (%.2f to %.2f), %d samples, %d lost",
			r.Hz, r.Slower.Median, r.Slower.Min, r.Slower.Max, r.Others.Median, r.Others.Min, r.Others.Max, r.Samples, r.Lost)
	}
	fmt.Fprintf(&b, ". By the last, a sample takes %.1f us of its vCPU's time (%.1f to %.1f)", p.SampleUs.Median, p.SampleUs.Min, p.SampleUs.Max)
	return b.String() + "."
}
