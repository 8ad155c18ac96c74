package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxOwn bounds how many probes one client keeps.
const maxOwn = 24

// connectionOps are a client's operations over connections of this process.
var connectionOps = []operation{
	{"attach", 20, (*worker).attachOne},
	{"batch", 8, (*worker).attachBatch},
	{"detach", 16, (*worker).detachOne},
	{"enable", 8, func(w *worker, r *rand.Rand) { w.setEnabled(r, true) }},
	{"disable", 8, func(w *worker, r *rand.Rand) { w.setEnabled(r, false) }},
	{"shared", 10, (*worker).changeShared},
	{"look", 6, (*worker).look},
	{"stream", 10, (*worker).streamDetach},
	{"stream.cut", 8, (*worker).streamCut},
	{"stream.named", 5, (*worker).streamNamed},
	{"stream.all", 4, (*worker).streamAll},
	{"console", 3, (*worker).console},
	{"disarm", 3, (*worker).disarm},
	{"pause", 3, (*worker).pause},
	{"hangup", 3, (*worker).hangUp},
	{"script", 6, (*worker).scriptStop},
	{"script.cut", 4, (*worker).scriptCut},
	{"examine", 6, (*worker).examine},
	{"save", 2, (*worker).save},
	{"stop", 4, (*worker).stopAndStep},
}

// spec generates a probe of the group. With inner it must be rejected.
func (w *worker) spec(r *rand.Rand, group string) (s api.ProbeSpec, inner bool) {
	at := w.sites.pick(r)
	def, returns := define(r, w.name(group), at)
	s = api.ProbeSpec{Def: def}
	s.Post, s.Regs, s.Disabled = r.IntN(3) == 0 && !returns, r.IntN(4) == 0, r.IntN(8) == 0
	if at.entry && !returns && r.IntN(4) == 0 {
		s.Args, s.Mirror, s.Post = 1+r.IntN(8), mirrors[at.fn], false
	}
	return s, at.inner
}

// group decides who may change a probe: only its client, or every client.
func group(r *rand.Rand) string {
	if r.IntN(4) == 0 {
		return "soakx"
	}
	return "soak"
}

func (w *worker) attachOne(r *rand.Rand) { w.attach(r, 1) }

func (w *worker) attachBatch(r *rand.Rand) { w.attach(r, 2+r.IntN(7)) }

// attach attaches n probes, all or none.
func (w *worker) attach(r *rand.Rand, n int) {
	for len(w.own)+n > maxOwn && !w.over {
		w.detachNth(r.IntN(len(w.own)))
	}
	var specs []api.ProbeSpec
	inner := false
	codes := refusals
	for range n {
		s, in := w.spec(r, group(r))
		specs = append(specs, s)
		inner = inner || in
	}
	if inner {
		codes = append(slices.Clone(codes), "not_boundary")
	}
	if n > 1 && r.IntN(10) == 0 {
		// The first one twice. With its name alone the last one could be of its event.
		specs[n-1] = specs[0]
		codes, inner = append(slices.Clone(codes), api.CodeNameTaken), true
	}
	var ps []api.Probe
	err := w.try(func(ctx context.Context) (err error) {
		ps, err = w.c.Attach(ctx, specs...)
		return err
	})
	if !w.ok(err, codes...) {
		if !w.over {
			w.checkNothingLeft(specs)
		}
		return
	}
	if inner {
		w.fail("attached all of %v", specs)
	}
	if len(ps) != n {
		w.fail("%d probes of %d are attached", len(ps), n)
	}
	w.noteAttached(ps)
	for _, p := range ps {
		if strings.HasPrefix(p.Name, "soak/") {
			w.own = append(w.own, p.Name)
		}
	}
}

// probeName returns the name in a definition.
func probeName(s api.ProbeSpec) string {
	head, _, _ := strings.Cut(s.Def, " ")
	_, name, _ := strings.Cut(head, ":")
	return name
}

// checkNothingLeft checks that a rejected batch has left no probe.
func (w *worker) checkNothingLeft(specs []api.ProbeSpec) {
	for _, s := range specs {
		err := w.try(func(ctx context.Context) error {
			_, err := w.c.Probe(ctx, probeName(s))
			return err
		})
		switch {
		case err == nil:
			w.fail("%s is attached, though its batch was refused", s.Def)
		case !errors.Is(err, api.ErrProbeNotFound):
			w.ok(err)
		}
		if w.over {
			return
		}
	}
}

func (w *worker) detachOne(r *rand.Rand) {
	if n := r.Uint32(); len(w.own) > 0 {
		w.detachNth(int(n) % len(w.own))
	}
}

// detachNth detaches one of our own.
func (w *worker) detachNth(n int) {
	name := w.own[n]
	w.own = slices.Delete(w.own, n, n+1)
	w.detach(name)
}

// detach detaches a probe of our own, and returns it with its final counts.
func (w *worker) detach(name string) (p api.Probe, ok bool) {
	err := w.try(func(ctx context.Context) (err error) {
		p, err = w.c.Detach(ctx, name)
		return err
	})
	var codes []api.Code
	if w.is(guestEnds) {
		codes = append(codes, api.CodeProbeNotFound) // it went with its stream
	}
	if !w.ok(err, codes...) {
		return p, false
	}
	w.account(p, w.fail)
	return p, true
}

func (w *worker) setEnabled(r *rand.Rand, on bool) {
	n := r.Uint32()
	if len(w.own) == 0 {
		return
	}
	name := w.own[int(n)%len(w.own)]
	var p api.Probe
	err := w.try(func(ctx context.Context) (err error) {
		p, err = w.c.SetEnabled(ctx, name, on)
		return err
	})
	if w.ok(err) && p.Enabled != on {
		w.fail("%s: enabled is %v, want %v", name, p.Enabled, on)
	}
}

// changeShared changes a probe that any client may change: another client may
// have removed it.
func (w *worker) changeShared(r *rand.Rand) {
	n, what := r.Uint32(), r.IntN(3)
	var ps []api.Probe
	err := w.try(func(ctx context.Context) (err error) {
		ps, err = w.c.Probes(ctx)
		return err
	})
	if !w.ok(err) {
		return
	}
	ps = slices.DeleteFunc(ps, func(p api.Probe) bool { return !strings.HasPrefix(p.Name, "soakx/") })
	if len(ps) == 0 {
		return
	}
	p := ps[int(n)%len(ps)]
	err = w.try(func(ctx context.Context) (err error) {
		if what == 0 || len(ps) > 2*maxOwn {
			p, err = w.c.Detach(ctx, p.Name)
			if err == nil {
				w.account(p, w.fail)
			}
			return err
		}
		_, err = w.c.SetEnabled(ctx, p.Name, what == 1)
		return err
	})
	w.ok(err, api.CodeProbeNotFound)
}

// look makes requests that change nothing.
func (w *worker) look(r *rand.Rand) {
	what := r.IntN(6)
	err := w.try(func(ctx context.Context) (err error) {
		switch what {
		case 0:
			_, err = w.c.Guest(ctx)
		case 1:
			_, err = w.c.KernelList(ctx, "list")
		case 2:
			_, err = w.c.KernelList(ctx, "profile")
		case 3:
			_, err = w.c.Text(ctx)
		case 4:
			_, err = w.c.Blacklist(ctx)
		default:
			_, err = w.c.Daemon(ctx)
		}
		return err
	})
	w.ok(err)
}

// disarm turns the global knob off and, after a moment, on. Another client may
// do so at the same time.
func (w *worker) disarm(r *rand.Rand) {
	hold := time.Duration(r.IntN(20)) * time.Millisecond
	if !w.ok(w.try(func(ctx context.Context) error { return w.c.SetArmed(ctx, false) })) {
		return
	}
	w.rest(hold)
	w.ok(w.try(func(ctx context.Context) error { return w.c.SetArmed(ctx, true) }))
}

// pause stops the guest for a moment.
func (w *worker) pause(r *rand.Rand) {
	hold := time.Duration(r.IntN(20)) * time.Millisecond
	change := func(f func(context.Context) (api.Guest, error)) bool {
		return w.ok(w.try(func(ctx context.Context) error {
			_, err := f(ctx)
			return err
		}))
	}
	if !change(w.c.Pause) {
		return
	}
	w.rest(hold)
	change(w.c.Resume)
}
