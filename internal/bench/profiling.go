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

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/daemon"
)

// Profiling is how much slower a busy guest is whose vCPUs are sampled, by the rounds of work that
// it does.
type Profiling struct {
	Unavailable string        `json:"unavailable,omitempty"`
	VCPUs       int           `json:"vcpus"`
	Plain       *Spread       `json:"plain,omitempty"` // rounds a second of processor time of a guest that nobody looks at
	Rates       []ProfilingAt `json:"rates"`
}

// ProfilingAt is one rate of sampling; 0: nobody looks, which says what differences are the machine's own.
type ProfilingAt struct {
	Hz      int     `json:"hz"`
	Slower  *Spread `json:"slower"` // percent, each against the window before it without samples
	Samples uint64  `json:"samples"`
	Lost    uint64  `json:"lost"`
}

// profilingRates are those that are measured: none, the usual one, and one with ten times the cost.
var profilingRates = []int{0, 99, 990}

// profilingWindow is how long rounds are counted for one figure. A profile's beginning, which is no sample's cost, has
// a part of it before.
const profilingWindow = 600 * time.Millisecond

// profiling measures what guestprobe profile costs the guest, through the daemon's socket. Windows
// with and without samples take turns, so that they see the same weather.
func profiling(ctx context.Context, runs int) (out Profiling, err error) {
	out.VCPUs = 2
	c, end, err := busyGuest(ctx, out.VCPUs)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if _, _, err := rounds(ctx, c); err != nil { // the first reads debug information
		return out, err
	}
	var plain []float64
	slower := make([][]float64, len(profilingRates))
	out.Rates = make([]ProfilingAt, len(profilingRates))
	for range runs {
		for i, hz := range profilingRates {
			before, err := rate(ctx, c, profilingWindow)
			if err != nil {
				return out, err
			}
			plain = append(plain, before)
			with, end, err := sampledRate(ctx, c, hz)
			if err != nil {
				return out, err
			}
			r := &out.Rates[i]
			r.Hz, r.Samples, r.Lost = hz, r.Samples+end.Delivered, r.Lost+end.Lost
			slower[i] = append(slower[i], 100*(1-with/before))
		}
	}
	sp := spread(plain)
	out.Plain = &sp
	for i := range slower {
		sp := spread(slower[i])
		out.Rates[i].Slower = &sp
	}
	return out, nil
}

// sampledRate is rate while the vCPUs are sampled, or for 0 Hz are not, with the end of that profile.
func sampledRate(ctx context.Context, c *client.Client, hz int) (with float64, end api.End, err error) {
	if hz > 0 {
		s, failed := c.Profile(ctx, api.StreamProfile{Hz: hz})
		if failed != nil {
			return 0, end, failed
		}
		defer func() {
			var err2 error
			end, err2 = endProfile(ctx, c, s)
			err = errors.Join(err, err2, s.Close())
		}()
	}
	if _, err := rate(ctx, c, profilingWindow/4); err != nil {
		return 0, end, err
	}
	with, err = rate(ctx, c, profilingWindow)
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

// rate is how many rounds the guest does in a second of processor time, that of the daemon
// included, which does not depend on what else the machine does.
func rate(ctx context.Context, c *client.Client, window time.Duration) (float64, error) {
	n, at, err := rounds(ctx, c)
	if err != nil {
		return 0, err
	}
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	m, end, err := rounds(ctx, c)
	if err == nil && m <= n {
		err = errors.New("the guest does nothing")
	}
	return float64(m-n) / (end - at).Seconds(), err
}

// rounds is how many rounds the vCPUs have done, in kernel and user code, and how much processor
// time this process, of which they are threads, has had until then.
func rounds(ctx context.Context, c *client.Client) (n uint64, at time.Duration, err error) {
	for _, symbol := range []string{"workload_rounds", "user_rounds"} {
		m, err := c.Memory(ctx, client.Where{At: symbol}, client.MemoryQuery{Length: 16})
		if err != nil {
			return 0, at, err
		}
		b, err := hex.DecodeString(strings.TrimSpace(m.Data))
		if err != nil || len(b) != 16 {
			return 0, at, fmt.Errorf("%s is %q", symbol, m.Data)
		}
		n += binary.LittleEndian.Uint64(b) + binary.LittleEndian.Uint64(b[8:])
	}
	var u unix.Rusage
	err = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return n, time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
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
	fmt.Fprintf(&b, "Profiles of a busy guest on %d vCPUs, by the rounds of work that it does in a second of processor time:", p.VCPUs)
	for i, r := range p.Rates {
		if i > 0 {
			b.WriteByte(';')
		}
		if r.Hz == 0 {
			fmt.Fprintf(&b, " with nobody looking %.2f %% (%.2f to %.2f)", r.Slower.Median, r.Slower.Min, r.Slower.Max)
			continue
		}
		fmt.Fprintf(&b, " at %d Hz %.2f %% slower (%.2f to %.2f), %d samples, %d lost", r.Hz, r.Slower.Median, r.Slower.Min, r.Slower.Max, r.Samples, r.Lost)
	}
	return b.String() + "."
}
