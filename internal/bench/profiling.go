package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/daemon"
)

// Profiling is how much slower a busy guest is whose vCPUs are sampled, by the rounds of work that it does in a second
// of its vCPUs' processor time, and what else the daemon and its client use then.
type Profiling struct {
	Unavailable string        `json:"unavailable,omitempty"`
	VCPUs       int           `json:"vcpus"`
	Plain       *Spread       `json:"plain,omitempty"` // rounds a second of the vCPUs' threads of a guest that nobody looks at
	Rates       []ProfilingAt `json:"rates"`
}

// ProfilingAt is one rate of sampling; 0: nobody looks, which says what differences are the machine's own.
type ProfilingAt struct {
	Hz      int     `json:"hz"`
	Slower  *Spread `json:"slower"` // percent, each against the window before it without samples
	Others  *Spread `json:"others"` // percent of one processor that all other threads of daemon and client use more
	Samples uint64  `json:"samples"`
	Lost    uint64  `json:"lost"`
}

// profilingRates are those that are measured: none, the usual one, and one with ten times the cost.
var profilingRates = []int{0, 99, 990}

// profilingWindow is how long rounds are counted for one figure. A profile's beginning, which is no sample's cost, has
// a part of it before.
const profilingWindow = 600 * time.Millisecond

// profiling measures what guestprobe profile costs the guest, through the daemon's socket. The vCPUs have a processor,
// and everything else another one, so that what they lose is theirs, and no contest for processors that a host with
// more of them does not have. Windows with and without samples take turns, so that they see the same weather.
func profiling(ctx context.Context, runs int) (out Profiling, err error) {
	out.VCPUs = 2
	c, end, err := busyGuest(ctx, out.VCPUs)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if _, err := rounds(ctx, c); err != nil { // the first reads debug information
		return out, err
	}
	free, err := apart(out.VCPUs)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, free()) }()
	var plain []float64
	slower, others := make([][]float64, len(profilingRates)), make([][]float64, len(profilingRates))
	out.Rates = make([]ProfilingAt, len(profilingRates))
	for range runs {
		for i, hz := range profilingRates {
			before, err := window(ctx, c, profilingWindow)
			if err != nil {
				return out, err
			}
			plain = append(plain, before.rate)
			with, end, err := sampledWindow(ctx, c, hz)
			if err != nil {
				return out, err
			}
			r := &out.Rates[i]
			r.Hz, r.Samples, r.Lost = hz, r.Samples+end.Delivered, r.Lost+end.Lost
			slower[i] = append(slower[i], 100*(1-with.rate/before.rate))
			others[i] = append(others[i], 100*(with.others-before.others))
		}
	}
	sp := spread(plain)
	out.Plain = &sp
	for i := range slower {
		sp, op := spread(slower[i]), spread(others[i])
		out.Rates[i].Slower, out.Rates[i].Others = &sp, &op
	}
	return out, nil
}

// sampledWindow is window while the vCPUs are sampled, or for 0 Hz are not, with the end of that profile.
func sampledWindow(ctx context.Context, c *client.Client, hz int) (with usage, end api.End, err error) {
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
	if _, err := window(ctx, c, profilingWindow/4); err != nil {
		return with, end, err
	}
	with, err = window(ctx, c, profilingWindow)
	return with, end, err
}

// busyGuest starts a daemon with the built-in guest at work, and returns a client of it. End ends both.
func busyGuest(ctx context.Context, vcpus int) (c *client.Client, end func() error, err error) {
	dir, err := os.MkdirTemp("", "guestprobe-bench")
	if err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(dir, "s")
	var log bytes.Buffer
	stop, err := daemon.Start(ctx, []string{"--socket", socket, "--log-level", "warn", "--vcpus", fmt.Sprint(vcpus), "--cmdline", "busy quiet"}, &log, os.Getenv, nil)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("guestprobed did not start: %w: %s", err, log.String()), os.RemoveAll(dir))
	}
	c = client.New(socket)
	return c, func() error {
		c.Close()
		return errors.Join(stop(), os.RemoveAll(dir))
	}, nil
}

// usage is what a window of time has seen.
type usage struct {
	rate   float64 // rounds in a second of the vCPUs' processor time
	all    float64 // and in one of the process's, of which they are threads, which does not depend on what else the machine does
	others float64 // processor time of the other threads of this process, by the time that went by
}

// window watches the guest for d.
func window(ctx context.Context, c *client.Client, d time.Duration) (u usage, err error) {
	n, err := rounds(ctx, c)
	if err != nil {
		return u, err
	}
	began := time.Now()
	vcpus, others, err := threadTimes()
	if err != nil {
		return u, err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return u, context.Cause(ctx)
	}
	m, err := rounds(ctx, c)
	if err != nil {
		return u, err
	}
	vcpus2, others2, err := threadTimes()
	if err == nil && (m <= n || vcpus2 <= vcpus) {
		err = errors.New("the guest does nothing")
	}
	v, o := (vcpus2 - vcpus).Seconds(), (others2 - others).Seconds()
	return usage{rate: float64(m-n) / v, all: float64(m-n) / (v + o), others: o / time.Since(began).Seconds()}, err
}

// rounds is how many rounds the vCPUs have done, in kernel and user code.
func rounds(ctx context.Context, c *client.Client) (n uint64, err error) {
	for _, symbol := range []string{"workload_rounds", "user_rounds"} {
		m, err := c.Memory(ctx, client.Where{At: symbol}, client.MemoryQuery{Length: 16})
		if err != nil {
			return 0, err
		}
		b, err := hex.DecodeString(strings.TrimSpace(m.Data))
		if err != nil || len(b) != 16 {
			return 0, fmt.Errorf("%s is %q", symbol, m.Data)
		}
		n += binary.LittleEndian.Uint64(b) + binary.LittleEndian.Uint64(b[8:])
	}
	return n, nil
}

// endProfile asks for the end of a profile, and reads it.
func endProfile(ctx context.Context, c *client.Client, s *client.Stream) (end api.End, err error) {
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

// String says what was measured.
func (p *Profiling) String() string {
	if p.Plain == nil {
		return fmt.Sprintf("What profiles cost was not measured: %s.", p.Unavailable)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Profiles of a busy guest on %d vCPUs, which have a processor that nothing else uses, by the rounds of work that it does in a second of their time:", p.VCPUs)
	for i, r := range p.Rates {
		if i > 0 {
			b.WriteByte(';')
		}
		if r.Hz == 0 {
			fmt.Fprintf(&b, " with nobody looking %.2f %% slower (%.2f to %.2f), %.2f %% of a processor more for other threads (%.2f to %.2f)",
				r.Slower.Median, r.Slower.Min, r.Slower.Max, r.Others.Median, r.Others.Min, r.Others.Max)
			continue
		}
		fmt.Fprintf(&b, " at %d Hz %.2f %% slower (%.2f to %.2f), %.2f %% of a processor more (%.2f to %.2f), %d samples, %d lost",
			r.Hz, r.Slower.Median, r.Slower.Min, r.Slower.Max, r.Others.Median, r.Others.Min, r.Others.Max, r.Samples, r.Lost)
	}
	return b.String() + "."
}
