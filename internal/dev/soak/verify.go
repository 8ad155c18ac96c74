package soak

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// rateTime is how long the rate of rounds is measured, to mean something.
const rateTime = 300 * time.Millisecond

// How much more a daemon may use than at its first rest. Slots of places that
// were probed once are kept for good (probe: a stale context in one must stay
// harmless), so the heap grows with them. Everything that clients bring must be
// freed. The last compiled scripts stay in pools for a while: after rounds of 40
// scripts the heap was between 5.9 and 7.6 MB, without growth over 200. On a
// slow host the first load has few scripts, so later heaps are compared with one
// that has empty pools.
const (
	heapSlack   = 4 << 20
	heapPerSite = 2 << 10
	rssSlack    = 48 << 20

	heapPatience = 20 * time.Second // work in progress when the last client leaves is freed later
)

// verifier looks at a daemon at rest: no client is at work.
type verifier struct {
	*arena
	first *api.Daemon // of this daemon, before the first client
	warm  *api.Daemon // of this daemon, after its first phase; nil there
	warmN int         // sites that had been probed then
	rate  float64     // kernel rounds per second and vCPU without probes, as last seen
}

// ask makes one request over a connection of its own, which is closed
// afterwards.
func (v *verifier) ask(f func(ctx context.Context, c *remote.Client) error) error {
	c := remote.New(v.daemon.socket)
	defer c.Close()
	return v.try(func(ctx context.Context) error { return f(ctx, c) })
}

// checkAtRest runs all checks in order. After it, the guest has no probes.
func (v *verifier) checkAtRest() {
	ph := v.phase
	ph.check("sessions", v.sessions(), "")
	if !v.daemon.running() {
		ph.check("daemon", fmt.Sprintf("has ended by itself: %v: %s", v.daemon.Wait(), v.daemon.lastOutput()), "")
		return
	}
	wrong, detail := v.checkPatched()
	ph.check("patched", wrong, detail)
	wrong, detail = v.detachAll()
	ph.check("detach", wrong, detail)
	wrong, detail = v.checkRestored()
	ph.check("text", wrong, detail)
	wrong, detail = v.guest()
	ph.check("guest", wrong, detail)
	wrong, detail = v.progress()
	ph.check("progress", wrong, detail)
	wrong, detail = v.consoleLines()
	ph.check("console", wrong, detail)
	wrong, detail = v.checkUsage()
	ph.check("resources", wrong, detail)
	ph.check("log", v.quietLog(), "")
}

// sessions waits until no stream is open, and none has left a probe. A request
// that its client has broken off may still open one, as long as its connection
// exists.
func (v *verifier) sessions() string {
	return awaitCond(v.opt.Patience, func() string {
		var d api.Daemon
		if err := v.ask(func(ctx context.Context, c *remote.Client) (err error) {
			d, err = c.Daemon(ctx)
			return err
		}); err != nil {
			return err.Error()
		}
		if d.Streams > 0 || d.Session > 0 || d.Descriptors > v.first.Descriptors {
			return fmt.Sprintf("%d streams are open, %d probes belong to streams, and there are %d descriptors, %d before the first client; %v after the last one",
				d.Streams, d.Session, d.Descriptors, v.first.Descriptors, v.opt.Patience)
		}
		return ""
	})
}

// checkPatched checks that exactly the armed sites differ from the image, by an
// int3 or a jump each.
func (v *verifier) checkPatched() (wrong, detail string) {
	var ps []api.Probe
	var text api.Text
	var on bool
	if err := v.ask(func(ctx context.Context, c *remote.Client) (err error) {
		// No probe may become a jump between listing and reading.
		if _, err = c.SetOptimization(ctx, api.SetOptimization{Now: true}); err != nil {
			return err
		}
		if ps, err = c.Probes(ctx); err != nil {
			return err
		}
		if on, err = c.Armed(ctx); err != nil {
			return err
		}
		text, err = c.Text(ctx)
		return err
	}); err != nil {
		return err.Error(), ""
	}
	if !on {
		return "the global knob is off", ""
	}
	want := map[uint64]bool{}
	jumps := map[uint64]bool{} // bytes that jumps may have changed
	var end uint64             // where mirrors end: the engine's own int3
	for _, p := range ps {
		if p.Gone || p.Armed != p.Enabled && !sharesSite(ps, p) {
			return fmt.Sprintf("%s: enabled %v, armed %v, gone %v", p.Name, p.Enabled, p.Armed, p.Gone), ""
		}
		if p.Mirror != "" && p.Armed {
			s, err := v.sites.img.Lookup("jprobe_return")
			if err != nil {
				return err.Error(), ""
			}
			end = uint64(s.Addr)
		}
		if p.Armed {
			// A jump that displaces a jump begins with the same byte.
			want[uint64(p.Addr)] = !p.Optimized || !strings.HasPrefix(p.Insn, "e9")
			for i := range uint64(x86.JmpLen) {
				if p.Optimized {
					jumps[uint64(p.Addr)+i] = true
				}
			}
		}
	}
	n := len(want)
	maps.DeleteFunc(want, func(_ uint64, differs bool) bool { return !differs })
	for _, r := range text.Ranges {
		live, err := hex.DecodeString(r.Live)
		if err != nil {
			return err.Error(), ""
		}
		for i, b := range live {
			addr := uint64(r.Addr) + uint64(i)
			first := byte(x86.Int3)
			if addr == end && b == first && !want[addr] {
				continue
			}
			if jumps[addr] {
				first = x86.JmpOp
			}
			if jumps[addr] && !want[addr] {
				continue // of the displacement
			}
			if b != first || !want[addr] {
				return fmt.Sprintf("at %#x (%s) there is %02x, not of an armed probe", addr, r.Symbol, b), ""
			}
			delete(want, addr)
		}
	}
	if len(want) > 0 {
		return fmt.Sprintf("%d armed sites have neither int3 nor jump, of %d", len(want), n), ""
	}
	return "", fmt.Sprintf("%d probes, %d armed sites", len(ps), n)
}

// sharesSite reports whether another enabled probe is on p's site: the site is
// armed then, whatever p's state is.
func sharesSite(ps []api.Probe, p api.Probe) bool {
	return slices.ContainsFunc(ps, func(o api.Probe) bool { return o.ID != p.ID && o.Addr == p.Addr && o.Enabled })
}

// detachAll detaches every probe that clients have left and closes their sums.
func (v *verifier) detachAll() (wrong, detail string) {
	var ps []api.Probe
	if err := v.ask(func(ctx context.Context, c *remote.Client) (err error) {
		ps, err = c.DetachAll(ctx)
		return err
	}); err != nil {
		return err.Error(), ""
	}
	for _, p := range ps {
		v.account(p, func(format string, args ...any) {
			if wrong == "" {
				wrong = fmt.Sprintf(format, args...)
			}
		})
	}
	return wrong, fmt.Sprintf("%d probes", len(ps))
}

// checkRestored checks that nothing is attached any more and that the guest's
// text is its image's, byte for byte.
func (v *verifier) checkRestored() (wrong, detail string) {
	err := v.ask(func(ctx context.Context, c *remote.Client) error {
		ps, err := c.Probes(ctx)
		if err != nil {
			return err
		}
		list, err := c.KernelList(ctx, "list")
		if err != nil {
			return err
		}
		if len(ps) > 0 || list != "" {
			return fmt.Errorf("%d probes are left: %q", len(ps), list)
		}
		text, err := c.Text(ctx)
		if err != nil {
			return err
		}
		if !text.Identical || text.Live != text.Image {
			return fmt.Errorf("the text differs from its image in %d places: %+v", len(text.Ranges), text.Ranges[:min(len(text.Ranges), 4)])
		}
		detail = fmt.Sprintf("%d bytes", text.Bytes)
		return nil
	})
	if err != nil {
		return err.Error(), ""
	}
	return "", detail
}

// guest checks that the guest runs and has found no wrong result.
func (v *verifier) guest() (wrong, detail string) {
	var g api.Guest
	if err := v.ask(func(ctx context.Context, c *remote.Client) (err error) {
		g, err = c.Guest(ctx)
		return err
	}); err != nil {
		return err.Error(), ""
	}
	var hits uint64
	for _, c := range g.CPUs {
		hits += c.Hits
	}
	switch {
	case g.Crash != nil:
		return "crashed:\n" + g.Crash.Report, ""
	case g.State != "running":
		return "is " + g.State, ""
	case g.Checks != 0:
		return fmt.Sprintf("has reported %d wrong results", g.Checks), ""
	case len(g.CPUs) != v.cpus:
		return fmt.Sprintf("has %d vCPUs, want %d", len(g.CPUs), v.cpus), ""
	}
	return "", fmt.Sprintf("running, %d traps of probes so far", hits)
}

// rounds is the progress of the guest's workload, from its own variables.
type rounds struct{ kernel, user [8]uint64 }

// sample reads them at the beginning of a round.
func (v *verifier) sample() (out rounds, err error) {
	const def = "p:soaks/rounds workload_round k=@workload_rounds:u64[8] u=@user_rounds:u64[8] failures=@selfcheck_failures:u64"
	err = v.ask(func(ctx context.Context, c *remote.Client) error {
		s, err := c.Events(ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: def}}})
		if err != nil {
			return err
		}
		defer s.Close()
		for {
			r, err := s.Next()
			if err != nil {
				return err
			}
			if r.Type != api.RecordHit {
				continue
			}
			var h struct {
				Args []struct {
					Value json.RawMessage `json:"value"`
				} `json:"args"`
			}
			var failures uint64
			err = json.Unmarshal(r.Data, &h)
			if err == nil && len(h.Args) != 3 {
				err = errors.New("not 3 arguments")
			}
			if err == nil {
				err = errors.Join(json.Unmarshal(h.Args[0].Value, &out.kernel), json.Unmarshal(h.Args[1].Value, &out.user), json.Unmarshal(h.Args[2].Value, &failures))
			}
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", r.Data, err)
			case failures != 0:
				return fmt.Errorf("the guest has counted %d failures of its self-check", failures)
			}
			return nil
		}
	})
	return out, err
}

// progress checks that the kernel's and the user program's workload continue on
// every vCPU.
func (v *verifier) progress() (wrong, detail string) {
	before, err := v.sample()
	if err != nil {
		return err.Error(), ""
	}
	start := time.Now()
	time.Sleep(rateTime) // only the rate needs it
	var now rounds
	wrong = awaitCond(2*v.opt.Patience, func() string {
		if now, err = v.sample(); err != nil {
			return err.Error()
		}
		for i := range v.cpus {
			if now.kernel[i] <= before.kernel[i] || now.user[i] <= before.user[i] {
				return fmt.Sprintf("vCPU %d does no rounds: kernel %v, then %v; user %v, then %v", i, before.kernel, now.kernel, before.user, now.user)
			}
		}
		return ""
	})
	took := time.Since(start)
	sum := uint64(0)
	for i := range v.cpus {
		sum += now.kernel[i] - before.kernel[i]
	}
	v.rate = float64(sum) / float64(v.cpus) / took.Seconds()
	return wrong, fmt.Sprintf("kernel rounds %v, user rounds %v; all vCPUs in %v", now.kernel[:v.cpus], now.user[:v.cpus], took.Round(time.Millisecond))
}

// consoleLines checks that the guest has printed only its startup message.
func (v *verifier) consoleLines() (wrong, detail string) {
	var lines []string
	if err := v.ask(func(ctx context.Context, c *remote.Client) (err error) {
		lines, err = console(ctx, c, false)
		return err
	}); err != nil {
		return err.Error(), ""
	}
	for i, l := range lines {
		if i > 0 || !strings.HasPrefix(l, "guestprobe built-in guest") {
			return fmt.Sprintf("the guest has said %q", lines[i:min(len(lines), i+5)]), ""
		}
	}
	return "", fmt.Sprintf("%d lines", len(lines))
}

// console returns the lines of the guest's console, until now or with follow
// until its end.
func console(ctx context.Context, c *remote.Client, follow bool) ([]string, error) {
	s, err := c.Console(ctx, follow)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var lines []string
	for {
		r, err := s.Next()
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return nil, err
		}
		if r.Type == api.RecordConsole {
			var l api.Console
			if err := json.Unmarshal(r.Data, &l); err != nil {
				return nil, err
			}
			lines = append(lines, l.Text)
		}
	}
}

// checkUsage checks that the daemon's process uses no more than before its first
// client: exactly as many goroutines and descriptors, and as much memory, except
// for memory that it keeps on purpose.
func (v *verifier) checkUsage() (wrong, detail string) {
	var d api.Daemon
	// The daemon keeps the last snapshot, so it must have one at each measurement.
	if err := v.ask(func(ctx context.Context, c *remote.Client) error { return c.Save(ctx, io.Discard) }); err != nil {
		return err.Error(), ""
	}
	wrong = awaitCond(v.opt.Patience, func() string {
		if err := v.ask(func(ctx context.Context, c *remote.Client) (err error) {
			d, err = c.Daemon(ctx)
			return err
		}); err != nil {
			return err.Error()
		}
		if d.Goroutines > v.first.Goroutines || d.Descriptors > v.first.Descriptors {
			return fmt.Sprintf("%d goroutines and %d descriptors, %d and %d before the first client", d.Goroutines, d.Descriptors, v.first.Goroutines, v.first.Descriptors)
		}
		return ""
	})
	v.phase.Uses = &d
	if wrong != "" {
		return wrong, ""
	}
	detail = fmt.Sprintf("%d goroutines, %d descriptors, heap %d KiB, resident %d MiB", d.Goroutines, d.Descriptors, d.HeapBytes>>10, d.RSSBytes>>20)
	v.mu.Lock()
	n := len(v.placed)
	v.mu.Unlock()
	if v.warm == nil {
		v.warm, v.warmN = &d, n
		return "", detail
	}
	limit := v.warm.HeapBytes + heapSlack + heapPerSite*uint64(n-v.warmN)
	wrong = awaitCond(min(v.opt.Patience, heapPatience), func() string {
		if d.HeapBytes <= limit {
			return ""
		}
		if err := v.ask(func(ctx context.Context, c *remote.Client) (err error) {
			d, err = c.Daemon(ctx)
			return err
		}); err != nil {
			return err.Error()
		}
		return fmt.Sprintf("the heap has grown from %d to %d bytes, %d new sites", v.warm.HeapBytes, d.HeapBytes, n-v.warmN)
	})
	if d.RSSBytes > v.warm.RSSBytes+rssSlack {
		wrong += fmt.Sprintf("resident memory has grown from %d to %d bytes", v.warm.RSSBytes, d.RSSBytes)
	}
	return wrong, detail
}

// quietLog checks that the daemon has not complained.
func (v *verifier) quietLog() string {
	lines, err := v.daemon.complaints()
	if err != nil {
		return err.Error()
	}
	return strings.Join(lines, "\n")
}
