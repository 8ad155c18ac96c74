package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// errNoAnswer ends a request, or a process of a client, when patience does.
var errNoAnswer = errors.New("no answer in time")

// leaving says why clients must put up with a daemon that goes away.
type leaving int32

const (
	staying    leaving = iota
	guestEnds          // the guest ends by itself
	terminated         // SIGTERM: streams end with an end record
	killed             // SIGKILL: they are cut off
)

// arena is the state that the clients of one phase share.
type arena struct {
	opt    *Options
	sites  *sites
	phase  *Phase
	daemon *process
	cpus   int

	// stop is closed when clients must not begin anything new.
	stop chan struct{}

	leaving atomic.Int32

	mu     sync.Mutex
	placed map[guest.GVA]bool // sites that had a probe

	dumped sync.Once

	// hopeless is closed when the guest has come to an end of its own that was
	// not due: every client would only say so again and again.
	hopeless chan struct{}
	once     sync.Once
}

func newArena(o *Options, s *sites, ph *Phase, d *process) *arena {
	return &arena{opt: o, sites: s, phase: ph, daemon: d, cpus: ph.VCPUs, stop: make(chan struct{}), hopeless: make(chan struct{}), placed: map[guest.GVA]bool{}}
}

// is reports whether the daemon, or its guest, is going away like this.
func (a *arena) is(l leaving) bool { return leaving(a.leaving.Load()) == l }

// giveUp ends the phase early.
func (a *arena) giveUp() { a.once.Do(func() { close(a.hopeless) }) }

// stopped reports whether the phase's time is over.
func (a *arena) stopped() bool {
	select {
	case <-a.stop:
		return true
	case <-a.hopeless:
		return true
	default:
		return false
	}
}

// rest lets time pass, unless the phase's time is over.
func (a *arena) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.stop:
	}
}

// try runs one request under the time limit.
func (a *arena) try(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), a.opt.Patience, errNoAnswer)
	defer cancel()
	err := f(ctx)
	if errors.Is(err, errNoAnswer) {
		a.dumped.Do(func() { err = fmt.Errorf("%w; %s", err, a.daemon.dump()) })
	}
	return err
}

// refusals are the errors with which a place may be rejected; any other error
// for a client that makes no mistakes is a bug.
var refusals = []api.Code{
	"blacklisted", "unsupported_insn", "masks_exceptions", "trap_insn", "no_post", "emulation_prefix", "displacement_range", "host_cannot", "undecodable",
}

// gone reports whether err is how a client sees a daemon that went away.
func gone(err error) bool {
	return errors.Is(err, remote.ErrUnreachable) || errors.Is(err, remote.ErrCutOff) || errors.Is(err, api.ErrClosing)
}

// worker is one client.
type worker struct {
	*arena
	id   string
	rand *rand.Rand
	c    *remote.Client

	op    int      // how many were begun
	doing string   // the name of the present one
	seq   int      // for names
	own   []string // probes attached to stay
	over  bool     // the daemon has gone, as it was to
}

// newWorker returns the client of this name. Its sequence of operations depends
// only on the seed, the phase and the name.
func (a *arena) newWorker(id string, n int) *worker {
	h := uint64(14695981039346656037) // FNV-1a, over the phase's name
	for _, b := range []byte(a.phase.Name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return &worker{arena: a, id: id, rand: rand.New(rand.NewPCG(a.opt.Seed, h+uint64(n))), c: remote.New(a.daemon.socket)}
}

// operation is an action of a client, with a random source of its own: how many
// numbers it draws must not affect later operations.
type operation struct {
	name   string
	weight int
	run    func(w *worker, r *rand.Rand)
}

// choose draws the next operation.
func choose(r *rand.Rand, ops []operation) (operation, *rand.Rand) {
	sum := 0
	for _, o := range ops {
		sum += o.weight
	}
	n := r.IntN(sum)
	dice := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
	for _, o := range ops {
		if n -= o.weight; n < 0 {
			return o, dice
		}
	}
	panic("BUG: soak: weights do not add up")
}

// run works until the phase's time is over or the daemon has gone.
func (w *worker) run(ops []operation) {
	defer w.c.Close()
	for !w.stopped() && !w.over {
		o, dice := choose(w.rand, ops)
		w.op++
		w.doing = o.name
		w.phase.count(func(t *Tally) { t.Ops[o.name]++ })
		o.run(w, dice)
		if dice.IntN(4) == 0 {
			w.rest(time.Duration(dice.IntN(15)) * time.Millisecond)
		}
	}
}

// fail notes that this client has found something wrong.
func (w *worker) fail(format string, args ...any) {
	w.phase.fail("client %s, operation %d (%s): %s", w.id, w.op, w.doing, fmt.Sprintf(format, args...))
}

// ok judges the answer to a request, and returns true if it succeeded. An error
// with one of the codes is counted. Errors of a daemon that is being ended are
// ignored. Everything else is a failure.
func (w *worker) ok(err error, codes ...api.Code) bool {
	if err == nil {
		return true
	}
	var wire *api.Error
	if errors.As(err, &wire) {
		ended := w.is(guestEnds) && wire.Code == api.CodeGuestState
		if ended || slices.Contains(codes, wire.Code) {
			w.countRefusal(string(wire.Code))
			return false
		}
	}
	switch {
	case gone(err) && (w.is(terminated) || w.is(killed)):
		w.over = true
	default:
		w.fail("%v", err)
		if errors.Is(err, api.ErrGuestState) {
			w.giveUp()
		}
	}
	return false
}

func (w *worker) countRefusal(code string) { w.phase.count(func(t *Tally) { t.Refusals[code]++ }) }

// name returns a new name for a probe of the group.
func (w *worker) name(group string) string {
	w.seq++
	return fmt.Sprintf("%s/%s_%d", group, w.id, w.seq)
}

// noteAttached notes probes that were attached.
func (a *arena) noteAttached(ps []api.Probe) {
	a.mu.Lock()
	for _, p := range ps {
		a.placed[guest.GVA(p.Addr)] = true
	}
	n := len(a.placed)
	a.mu.Unlock()
	a.phase.count(func(t *Tally) {
		t.Attached += uint64(len(ps))
		t.Sites = n
	})
}

// account checks the sums of a probe that was detached, and counts its hits.
func (a *arena) account(p api.Probe, report func(string, ...any)) {
	if why := unbalancedSum(p); why != "" {
		report("the sums of %s (%s) do not close: %s", p.Name, p.Def, why)
	}
	a.phase.count(func(t *Tally) {
		t.Hits += p.Stats.Hits
		t.Missed += p.Stats.Missed
	})
}

// unbalancedSum says which sum in the final counts of a probe does not close, or
// "".
func unbalancedSum(p api.Probe) string {
	s := p.Stats
	sum := func(c api.Counts) string {
		if c.Hits != c.Handled+c.Filtered+c.Missed {
			return fmt.Sprintf("%d hits, but %d handled + %d filtered + %d missed", c.Hits, c.Handled, c.Filtered, c.Missed)
		}
		return ""
	}
	if why := sum(s.Counts); why != "" {
		return why
	}
	var hits, handled, missed uint64
	for _, c := range s.CPUs {
		if why := sum(c.Counts); why != "" {
			return fmt.Sprintf("vCPU %d: %s", c.CPU, why)
		}
		hits, handled, missed = hits+c.Hits, handled+c.Handled, missed+c.Missed
	}
	records := s.Handled
	switch {
	case p.Post:
		records *= 2
	case p.Kind == "r":
		records = s.Returns
	}
	switch {
	case p.Kind == "r" && s.Returns+s.Abandoned > s.Handled:
		return fmt.Sprintf("%d returns and %d abandoned of %d handled calls", s.Returns, s.Abandoned, s.Handled)
	case hits != s.Hits || handled != s.Handled || missed != s.Missed:
		return fmt.Sprintf("the vCPUs have %d hits, %d handled, %d missed, the probe has %d, %d, %d", hits, handled, missed, s.Hits, s.Handled, s.Missed)
	case s.Events > records:
		return fmt.Sprintf("%d events of %d handled hits and %d returns", s.Events, s.Handled, s.Returns)
	case s.Lost > s.Events:
		return fmt.Sprintf("%d events lost of %d", s.Lost, s.Events)
	case s.Panics > 0:
		return fmt.Sprintf("%d panics in handlers", s.Panics)
	}
	return ""
}
