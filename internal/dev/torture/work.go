package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// work is one guest with probes.
type work struct {
	*rand.Rand
	t      *Torture
	p      *Program
	want   *truth
	probes []*planted
	all    []*planted // that were ever attached

	history []string // of steps
}

// planted is a probe, and its handlers' counts.
type planted struct {
	in      Inst
	kind    string
	probe   probe.Probe
	k       *probe.Kprobe // of probe
	handled atomic.Uint64 // calls of the pre or entry handler
	passed  atomic.Uint64 // of the post or return handler
	odd     bool          // a filter lets every second hit pass
	staged  bool          // it can run in the guest, where only its own count is kept
	seen    atomic.Uint64 // by the filter
	kernel  bool          // it is on code of CPL0
	defined *defined      // it has a definition for its handlers
}

// plan makes a probe of some kind at a random instruction.
func (w *work) plan() *planted {
	x := &planted{in: w.p.Insts[w.IntN(len(w.p.Insts))], kind: "kprobe", kernel: w.p.Kernel}
	if w.IntN(3) == 0 {
		var odd []int
		for k, i := range w.p.Insts {
			if i.Odd && k > 0 {
				odd = append(odd, k)
			}
		}
		if len(odd) > 0 {
			x.in = w.p.Insts[odd[w.IntN(len(odd))]-w.IntN(2)] // it, or an instruction whose jump may cover it
		}
	}
	if w.IntN(4) == 0 {
		f := w.p.Funcs[w.IntN(len(w.p.Funcs))]
		if f.Calls {
			x.in, x.kind = Inst{Off: f.Off}, "kretprobe"
		}
	}
	if w.p.Classes&Rewrites != 0 {
		// A probe on code that is rewritten without notification keeps a copy of the old
		// code, as everywhere.
		for x.in.Rewritten {
			x.in = w.p.Insts[w.IntN(len(w.p.Insts))]
		}
	}
	at := textVA + guest.GVA(x.in.Off)
	if w.IntN(3) == 0 {
		k := &probe.Kprobe{Addr: at}
		x.probe, x.k = k, k
		if x.kind == "kretprobe" {
			r := &probe.Kretprobe{Kprobe: *k, MaxActive: 1 + w.IntN(20)}
			x.kind, x.probe, x.k = "returns", r, &r.Kprobe
		} else {
			x.kind = "definition"
		}
		return x
	}
	var filter func(*probe.Context) bool
	if w.IntN(5) == 0 {
		x.odd = true
		filter = func(*probe.Context) bool { return x.seen.Add(1)%2 == 0 }
	}
	if x.kind == "kretprobe" {
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Addr: at, Filter: filter}, MaxActive: 1 + w.IntN(20)}
		r.Entry = func(*probe.Context) int { x.handled.Add(1); return 0 }
		r.Return = func(*probe.Context) { x.passed.Add(1) }
		x.probe, x.k = r, &r.Kprobe
		return x
	}
	k := &probe.Kprobe{Addr: at, Filter: filter}
	k.Pre = func(*probe.Context) int { x.handled.Add(1); return 0 }
	if filter == nil && w.IntN(2) == 0 {
		x.kind, x.staged = "stage", true
		x.probe, x.k = k, k
		return x
	}
	if w.IntN(5) == 0 {
		k.Post = func(*probe.Context) { x.passed.Add(1) }
	}
	x.probe, x.k = k, k
	return x
}

// refusals are the errors with which a place in a generated program may be
// rejected.
var refusals = map[probe.Code]bool{probe.CodeData: true, probe.CodeNoPost: true, probe.CodeNotBoundary: true, probe.CodeUndecodable: true,
	probe.CodeNotEntry: true, probe.CodeTrapInsn: true, probe.CodeTextChanged: true}

// attach registers a probe. It returns false when its place is rejected, which
// is counted.
func (w *work) attach(x *planted) (bool, error) {
	switch {
	case x.kind == "definition", x.kind == "returns":
		if err := w.t.defs.define(x); err != nil {
			return false, fmt.Errorf("definition at +%#x: %w", x.in.Off, err)
		}
	case x.staged:
		var err error
		if x.k.Stage, err = w.stage(); err != nil {
			return false, err
		}
	}
	err := w.t.m.Engine().Register(x.probe)
	var refused *probe.Error
	// The guest's own tracer may have an int3 there.
	if errors.As(err, &refused) && (refusals[refused.Code] || refused.Code == probe.CodeForeignInt3 && w.p.Classes&Tracers != 0) {
		w.t.sum.Refused[string(refused.Code)]++
		if x.defined != nil {
			return false, w.t.defs.drop(x)
		}
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s at +%#x: %w", x.kind, x.in.Off, err)
	}
	w.all = append(w.all, x)
	return true, nil
}

// optimize lets sites become jumps, mostly.
func (w *work) optimize() error {
	if w.IntN(5) == 0 {
		return nil
	}
	return w.t.m.Engine().Optimize()
}

// plant attaches the probes that stay.
func (w *work) plant() error {
	for range 1 + w.IntN(14) {
		x := w.plan()
		ok, err := w.attach(x)
		if err != nil {
			return err
		}
		if ok {
			w.probes = append(w.probes, x)
		}
	}
	if w.p.Classes&Tracers != 0 {
		// All that the guest's tracer reads of the engine's it finds when it writes it back.
		if err := w.p.tracer(w.t.m, byte(w.IntN(4))); err != nil {
			return err
		}
	}
	return w.optimize()
}

// runProbed runs the guest with probes that are there all the time.
func (w *work) runProbed(ctx context.Context) error {
	if err := w.plant(); err != nil {
		return err
	}
	xs, err := w.watch()
	if err != nil {
		return err
	}
	if err := w.t.wait(ctx); err != nil {
		return err
	}
	return errors.Join(w.unwatch(xs), w.checkExact(), w.detach(w.probes...), w.text())
}

// checkExact holds the counts of all probes against the truth.
func (w *work) checkExact() error {
	var bad []error
	for _, x := range w.probes {
		bad = append(bad, w.check(x))
	}
	return errors.Join(bad...)
}

// check holds the counts of a probe that was there all the time against the truth.
func (w *work) check(x *planted) error {
	i, _ := w.t.m.Engine().Info(x.k)
	st := i.Stats
	plan := i.Plan
	switch {
	case i.InGuest:
		plan = "in guest"
	case i.Optimized:
		plan = "jump"
	}
	name := x.kind + ", " + plan
	w.t.sum.Probes[name]++
	w.t.sum.Hits[name] += st.Hits
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s at +%#x (%v): %s: %+v", name, x.in.Off, i, fmt.Sprintf(format, args...), st)
	}
	if st.Hits != st.Handled+st.Filtered+st.Missed {
		return fail("hits do not close")
	}
	if x.in.Signal || x.in.Changed {
		return nil
	}
	want := w.want.counts[uint64(x.in.Off)]
	if st.Hits != want {
		return fail("%d hits, natively %d", st.Hits, want)
	}
	if x.defined == nil && x.handled.Load()+st.InGuest != st.Handled && x.kind != "kretprobe" {
		return fail("its handler ran %d times", x.handled.Load())
	}
	if x.odd && st.Missed == 0 && st.Filtered != want-want/2 {
		return fail("%d filtered of %d", st.Filtered, want)
	}
	_, returns := x.probe.(*probe.Kretprobe)
	if returns && (st.Handled != st.Returns+st.Abandoned+uint64(i.InUse) || x.defined == nil && x.passed.Load() != st.Returns) {
		return fail("returns do not close: %d in use, handler ran %d times", i.InUse, x.passed.Load())
	}
	// Each call of a task that has ended has returned, on whatever stack.
	if returns && w.done() && (st.Abandoned != 0 || i.InUse != 0) {
		return fail("%d calls have not returned", i.InUse)
	}
	// A program in the guest may be interrupted, and asked for again on the same vCPU.
	if !returns && st.Missed != 0 && (x.defined == nil || st.InGuest == 0) {
		return fail("missed hits")
	}
	return nil
}

// done reports whether all tasks end.
func (w *work) done() bool {
	return !slices.ContainsFunc(w.want.tasks, func(o outcome) bool { return o.State != stateDone })
}

// detach unregisters probes, and holds the final counts against the handlers'.
func (w *work) detach(xs ...*planted) error {
	var bad []error
	for _, x := range xs {
		if err := w.checkChanged(w.t.m.Engine().Unregister(x.k)); err != nil {
			bad = append(bad, err)
			continue
		}
		st, _, _ := w.t.m.Engine().Stats(x.k)
		if st.Hits != st.Handled+st.Filtered+st.Missed {
			bad = append(bad, fmt.Errorf("%s at +%#x: final hits do not close: %+v", x.kind, x.in.Off, st))
		}
		if x.defined != nil {
			if err := w.t.defs.drop(x); err != nil {
				bad = append(bad, fmt.Errorf("%s at +%#x: %w", x.kind, x.in.Off, err))
			}
		}
	}
	return errors.Join(bad...)
}

// text compares the guest's text with the program's expected text.
func (w *work) text() error {
	now := make([]byte, len(w.p.Text))
	if err := w.t.m.Target().ReadMemory(0, textVA, now); err != nil {
		return err
	}
	if i := firstDiff(now, w.want.text); i >= 0 {
		var there []string
		for _, x := range w.all {
			if x.in.Off == i {
				there = append(there, x.kind)
			}
		}
		return fmt.Errorf("text+%#x is %#x afterwards, was %#x; probes there: %v", i, now[i], w.want.text[i], there)
	}
	return nil
}

// firstDiff returns the index of the first byte that differs, or -1.
func firstDiff(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// runChanging runs the guest while probes come and go.
func (w *work) runChanging(ctx context.Context) error {
	if w.p.Classes&Tracers != 0 {
		// Text that it has read while a probe was there it cannot write back when the probe has gone, and of a breakpoint
		// of its own it has read the byte: a bare guest's writes are not followed.
		bits := byte(tracerYields)
		if w.IntN(2) == 0 {
			bits |= tracerTells
		}
		if err := w.p.tracer(w.t.m, bits); err != nil {
			return err
		}
	}
	if err := w.t.m.Resume(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- w.t.awaitEnd(ctx) }()
	for n := 0; ; {
		select {
		case err := <-done:
			return errors.Join(err, w.detach(w.probes...), w.text())
		default:
		}
		if err := w.change(); err != nil {
			return errors.Join(err, <-done)
		}
		// Each change stops the world, so give the guest time to run.
		if n++; n > busyChanges {
			time.Sleep(500 * time.Microsecond)
		}
	}
}

// busyChanges is how many changes come one after the other; later ones wait.
const busyChanges = 1000

// change attaches, detaches, switches or optimizes something. An error about
// text that the guest has really changed is dropped.
func (w *work) change() error {
	return w.checkChanged(w.changeOne())
}

// checkChanged returns err unless it says that the guest has changed text, or has an int3 of its own there, and it does.
func (w *work) checkChanged(err error) error {
	var changed *probe.Error
	tracers := w.p.Classes&Tracers != 0
	if errors.As(err, &changed) && (changed.Code == probe.CodeTextChanged && (tracers || !bytes.Equal(w.want.text, w.p.Text)) || changed.Code == probe.CodeForeignInt3 && tracers) {
		w.t.sum.Refused[string(changed.Code)]++
		return nil
	}
	return err
}

func (w *work) changeOne() error {
	e := w.t.m.Engine()
	w.t.sum.Changes++
	k := 0
	if n := len(w.probes); n > 0 {
		k = w.IntN(n)
	}
	switch n := w.IntN(10); {
	case n < 4 && len(w.probes) < 16, len(w.probes) == 0:
		x := w.plan()
		ok, err := w.attach(x)
		if ok {
			w.probes = append(w.probes, x)
		}
		return err
	case n < 7:
		x := w.probes[k]
		w.probes = append(w.probes[:k], w.probes[k+1:]...)
		return w.detach(x)
	case n == 7:
		return e.Disable(w.probes[k].k)
	case n == 8:
		return e.Enable(w.probes[k].k)
	}
	return e.Optimize()
}
