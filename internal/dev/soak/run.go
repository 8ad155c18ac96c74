package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Shares of one size's time, in percent. They sum up to 100.
const (
	loads        = 3  // phases that end in rest
	loadShare    = 18 // of each
	termShare    = 14
	killShare    = 14
	againShare   = 6
	resultsShare = 12
)

// errStopped ends a soak at its first phase with a failure.
var errStopped = errors.New("stopped at the first failure")

// soak is one run.
type soak struct {
	opt   Options
	sites *sites
	res   *Result
	slot  time.Duration // of one size
}

// Run soaks. A failure found is in the result, and ends the run; an error
// means that it could not be carried out. The result is never nil when the
// options are in order.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	st, err := findSites()
	if err != nil {
		return nil, err
	}
	s := &soak{opt: o, sites: st, slot: o.Duration / time.Duration(len(o.VCPUs)), res: &Result{
		Seed: o.Seed, VCPUs: o.VCPUs, Clients: o.Clients, Sites: st.n, Total: newTally(), Phases: []*Phase{},
	}}
	start := time.Now()
	for i, n := range o.VCPUs {
		if err = s.size(ctx, i, n); err != nil {
			break
		}
	}
	s.res.Seconds = time.Since(start).Seconds()
	s.res.Passed = err == nil
	for _, p := range s.res.Phases {
		s.res.Total.add(&p.Tally)
		s.res.Passed = s.res.Passed && !p.failed()
	}
	if errors.Is(err, errStopped) {
		err = nil
	}
	return s.res, err
}

// share is a part of one size's time.
func (s *soak) share(percent int) time.Duration { return s.slot * time.Duration(percent) / 100 }

// size runs all phases at one size of the guest.
func (s *soak) size(ctx context.Context, i, vcpus int) error {
	// Every other size has int3s of the guest's own, and code at two addresses.
	cmdline := "busy quiet"
	if i%2 == 1 {
		cmdline += " int3 alias"
	}
	name := func(what string) string { return fmt.Sprintf("%d vCPUs, %s", vcpus, what) }
	d, err := s.daemon(ctx, vcpus, 1, cmdline)
	if err != nil {
		return err
	}
	defer func() {
		if d != nil {
			d.Kill()
		}
	}()
	first, err := s.measureFirst(d)
	if err != nil {
		return err
	}
	v := &verifier{first: first}
	var rate float64
	for n := range loads {
		ph := s.begin(name(fmt.Sprintf("load %d of %d", n+1, loads)), vcpus, 1, cmdline)
		v.next(newArena(&s.opt, s.sites, ph, d))
		if err := s.work(ctx, v.arena, s.share(loadShare), clients{slow: true}, nil); err != nil {
			return err
		}
		v.checkAtRest()
		if n == 0 && !ph.failed() {
			rate = v.rate
		}
		if err := s.close(ph); err != nil {
			return err
		}
	}
	if err := s.runTerminated(ctx, name("SIGTERM under load"), d, vcpus, cmdline); err != nil {
		return err
	}
	if d, err = s.daemon(ctx, vcpus, 2, cmdline); err != nil {
		return err
	}
	if err := s.runKilled(ctx, name("SIGKILL under load"), d, vcpus, cmdline); err != nil {
		return err
	}
	if d, err = s.daemon(ctx, vcpus, 3, cmdline); err != nil {
		return err
	}
	if err := s.runStaleSocket(ctx, name("a stale socket replaced"), d, vcpus, cmdline); err != nil {
		return err
	}
	return s.runResults(ctx, vcpus, rate, name)
}

func (s *soak) daemon(ctx context.Context, vcpus, n int, cmdline string) (*process, error) {
	return startDaemon(ctx, &s.opt, fmt.Sprintf("guestprobed-%d-%d", vcpus, n), vcpus, cmdline)
}

// measureFirst measures the daemon's resources before its first client.
func (s *soak) measureFirst(d *process) (*api.Daemon, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.opt.Patience, errNoAnswer)
	defer cancel()
	// The first answer makes the runtime start threads and caches that it keeps,
	// so it is discarded.
	for range 2 {
		c := remote.New(d.socket)
		_, err := c.Daemon(ctx)
		c.Close()
		if err != nil {
			return nil, err
		}
	}
	c := remote.New(d.socket)
	defer c.Close()
	u, err := c.Daemon(ctx)
	return &u, err
}

// begin opens a phase's account.
func (s *soak) begin(name string, vcpus, daemon int, cmdline string) *Phase {
	ph := newPhase(name, vcpus, daemon, cmdline)
	s.res.Phases = append(s.res.Phases, ph)
	return ph
}

// close closes it.
func (s *soak) close(ph *Phase) error {
	ph.end()
	s.opt.Progress(ph.summary())
	if ph.failed() {
		return errStopped
	}
	return nil
}

// clients describes the clients in addition to the ordinary ones.
type clients struct {
	slow    bool   // a reader that does not read
	witness string // a reader of everything, whose stream must end for this reason
}

// work lets clients work for d, or until ended is closed, calls end while they
// are still at it, and waits until they are done.
func (s *soak) work(ctx context.Context, a *arena, d time.Duration, who clients, end func()) error {
	var wg sync.WaitGroup
	spawn := func(id string, n int, run func(w *worker)) {
		w := a.newWorker(id, n)
		wg.Go(func() {
			defer w.c.Close()
			run(w)
		})
	}
	for i := range s.opt.Clients {
		ops, kind := connectionOps, "conn"
		if i%3 == 2 {
			ops, kind = commandOps, "cli"
		}
		spawn(fmt.Sprintf("%s%d", kind, i), i, func(w *worker) { w.run(ops) })
	}
	if who.slow {
		spawn("slow", 1000, func(w *worker) { w.doing = "slow"; w.slowReader(nil) })
	}
	if who.witness != "" {
		spawn("witness", 1001, func(w *worker) { w.doing = "witness"; w.witness(who.witness) })
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	var err error
	select {
	case <-timer.C:
	case <-a.daemon.Exited():
		a.phase.fail("guestprobed has ended by itself: %v: %s", a.daemon.Wait(), a.daemon.lastOutput())
	case <-a.hopeless:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if end != nil && err == nil {
		end()
	}
	close(a.stop)
	wg.Wait()
	return err
}

// runTerminated ends the daemon by SIGTERM while clients are at work.
func (s *soak) runTerminated(ctx context.Context, name string, d *process, vcpus int, cmdline string) error {
	ph := s.begin(name, vcpus, 1, cmdline)
	a := newArena(&s.opt, s.sites, ph, d)
	var wrong string
	err := s.work(ctx, a, s.share(termShare), clients{slow: true, witness: api.EndShutdown}, func() {
		a.leaving.Store(int32(terminated))
		wrong = d.terminate()
	})
	if err != nil {
		return err
	}
	ph.check("exit", wrong, "status 0, its socket is gone")
	s.checkRestoredLog(ph, d)
	return s.close(ph)
}

// checkRestoredLog checks that a daemon that has ended in good order has put
// the guest's text back, and has not complained.
func (s *soak) checkRestoredLog(ph *Phase, d *process) {
	ok, err := d.hasLogLine("guest text restored")
	switch {
	case err != nil:
		ph.check("text", err.Error(), "")
	case !ok:
		ph.check("text", "the log does not say that the guest's text was restored", "")
	default:
		ph.check("text", "", "the log says that it was restored")
	}
	lines, err := d.complaints()
	if err != nil {
		lines = []string{err.Error()}
	}
	ph.check("log", strings.Join(lines, "\n"), "")
}

// runKilled ends the daemon by SIGKILL while clients are at work.
func (s *soak) runKilled(ctx context.Context, name string, d *process, vcpus int, cmdline string) error {
	ph := s.begin(name, vcpus, 2, cmdline)
	a := newArena(&s.opt, s.sites, ph, d)
	if err := s.work(ctx, a, s.share(killShare), clients{slow: true}, func() {
		a.leaving.Store(int32(killed))
		d.Kill()
	}); err != nil {
		return err
	}
	wrong := ""
	if st, err := os.Lstat(d.socket); err != nil || st.Mode().Type() != fs.ModeSocket {
		wrong = fmt.Sprintf("there is no stale socket to replace: %v", err)
	}
	ph.check("socket", wrong, "not removed")
	lines, err := d.complaints()
	if err != nil {
		lines = []string{err.Error()}
	}
	ph.check("log", strings.Join(lines, "\n"), "")
	return s.close(ph)
}

// runStaleSocket works with a daemon that has replaced a stale socket, and ends it by
// SIGTERM at rest.
func (s *soak) runStaleSocket(ctx context.Context, name string, d *process, vcpus int, cmdline string) error {
	ph := s.begin(name, vcpus, 3, cmdline)
	first, err := s.measureFirst(d)
	if err != nil {
		return err
	}
	v := &verifier{first: first}
	v.next(newArena(&s.opt, s.sites, ph, d))
	if err := s.work(ctx, v.arena, s.share(againShare), clients{slow: true}, nil); err != nil {
		return err
	}
	v.checkAtRest()
	ph.check("exit", d.terminate(), "status 0, its socket is gone")
	s.checkRestoredLog(ph, d)
	return s.close(ph)
}

// next moves the verifier on to the next phase with the same daemon.
func (v *verifier) next(a *arena) {
	if v.arena != nil {
		a.placed = v.placed
	}
	v.arena = a
}

// runResults runs a number of the guest's rounds to the end, once alone and once
// with clients at work, and compares the guest's results.
func (s *soak) runResults(ctx context.Context, vcpus int, rate float64, name func(string) string) error {
	// As many rounds as take all the time without probes: with probes they take
	// longer, so the guest does not end before the clients have had their time.
	n := min(max(int(rate*s.share(resultsShare).Seconds()), 2), 20_000)
	cmdline := fmt.Sprintf("rounds=%d quiet", n)
	ph := s.begin(name(fmt.Sprintf("the results of %d rounds", n)), vcpus, 4, cmdline)
	var lines [2][]string
	for i, d := range []time.Duration{0, s.share(resultsShare)} {
		p, err := s.daemon(ctx, vcpus, 4+i, cmdline)
		if err != nil {
			return err
		}
		lines[i], err = s.runToEnd(ctx, ph, p, d)
		p.Kill()
		if err != nil {
			return err
		}
	}
	wrong := ""
	if len(lines[0]) == 0 || !slices.Equal(lines[0], lines[1]) {
		wrong = fmt.Sprintf("without probes %q, with probes %q", lines[0], lines[1])
	}
	ph.check("results", wrong, strings.Join(lines[0], "; "))
	return s.close(ph)
}

// runToEnd waits until the guest has done its rounds, with clients at work for
// d, and returns its results.
func (s *soak) runToEnd(ctx context.Context, ph *Phase, p *process, d time.Duration) ([]string, error) {
	a := newArena(&s.opt, s.sites, ph, p)
	v := &verifier{arena: a}
	a.leaving.Store(int32(guestEnds))
	if d > 0 {
		if err := s.work(ctx, a, d, clients{}, nil); err != nil {
			return nil, err
		}
		wrong, detail := v.detachAll()
		ph.check("detach", wrong, detail)
	}
	c := remote.New(p.socket)
	defer c.Close()
	limit, cancel := context.WithTimeoutCause(ctx, 2*s.opt.Patience, errors.New("the guest has not done its rounds in time"))
	defer cancel()
	lines, err := console(limit, c, true)
	if err != nil {
		return nil, err
	}
	g, err := c.Guest(limit)
	if err != nil {
		return nil, err
	}
	switch {
	case g.Crash != nil:
		ph.check("end", "crashed:\n"+g.Crash.Report, "")
	case g.ExitCode == nil || *g.ExitCode != 0 || g.Checks != 0:
		ph.check("end", fmt.Sprintf("the guest is %s, exit code %v, %d wrong results; it said %q", g.State, g.ExitCode, g.Checks, lines), "")
	default:
		ph.check("end", "", fmt.Sprintf("exit code 0, with clients for %v", d))
	}
	wrong, detail := v.checkRestored()
	ph.check("text", wrong, detail)
	ph.check("exit", p.terminate(), "status 0, its socket is gone")
	s.checkRestoredLog(ph, p)
	lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "result ") })
	slices.Sort(lines)
	return lines, nil
}
