package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
)

// A tracepoint of a Linux guest is off, and calls nothing, until a function is registered on it. The guest's kernel registers
// ours itself: one of its threads calls tracepoint_probe_register. It registers a function of the kernel that does nothing, twice,
// with different words: with several functions a tracepoint calls its iterator, where our probes are. So the kernel's list of functions
// has no address of the engine.

// tracepointWords are the data words of our functions; no other data of a kernel has
// such values.
var tracepointWords = [2]uint64{0x6770_7470_0000_0001, 0x6770_7470_0000_0002}

// How long a change waits for the guest's kernel to register or unregister one
// function, and how often this is retried in the background.
const (
	switchTime  = 10 * time.Second
	switchAgain = 100 * time.Millisecond
)

// caller is a Guest whose kernel can be made to call a function of its own, in a
// context where it may sleep.
type caller interface {
	Call(ctx context.Context, fn guest.GVA, args ...uint64) (uint64, error)
}

// traced is an image that knows its kernel's tracing. A *linux.View is one.
type traced interface{ Tracing() linux.Tracing }

// tracingOf returns the tracing of the guest's kernel; ok is false if it has none.
func tracingOf(g Guest) (t linux.Tracing, ok bool) {
	if img, ok := g.Image().(traced); ok {
		return img.Tracing(), true
	}
	return t, false
}

// tracepoints are the tracepoints of probes.
type tracepoints struct {
	st *Session

	// switching is held while the guest's kernel switches tracepoints.
	switching sync.Mutex

	mu      sync.Mutex
	probes  map[placed]string // enabled ones, and the tracepoint of each
	seen    map[string]bool   // tracepoints that may be on because of us
	on      map[string]bool   // of these the ones that are on
	unknown bool              // the guest's memory was replaced: any may be on
	retries bool              // a goroutine retries
	ended   bool              // no new one is started

	ctx  context.Context // until end
	stop context.CancelFunc
	done sync.WaitGroup // the goroutine
}

func newTracepoints(st *Session) *tracepoints {
	t := &tracepoints{st: st, probes: map[placed]string{}, seen: map[string]bool{}, on: map[string]bool{}, unknown: true}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// end waits until nothing reads the guest's memory in the background any more.
func (t *tracepoints) end() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.stop()
	t.done.Wait()
}

// want records that probes of tracepoints need them on, or no longer do. It reports
// whether any of the probes is at a tracepoint.
func (t *tracepoints) want(as []*Probe, on bool) (any bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range as {
		name := a.def.Tracepoint()
		if name == "" {
			continue
		}
		any = true
		if on {
			t.probes[a.on], t.seen[name] = name, true
		} else {
			delete(t.probes, a.on)
		}
	}
	return any
}

// change makes the guest's kernel switch on the tracepoints of enabled probes, or
// switch off tracepoints of disabled or removed probes that no other probe needs.
func (t *tracepoints) change(as []*Probe, on bool) error {
	if on {
		as = slices.DeleteFunc(slices.Clone(as), func(a *Probe) bool { return a.on.disabled(t.st.engine) })
	}
	if !t.want(as, on) {
		return nil
	}
	err := t.settle()
	if err == nil || !on {
		return err
	}
	t.want(as, false)
	undo := t.settle()
	return errors.Join(tracepointError(err, as), undo)
}

// tracepointError turns an error about a tracepoint into one about the first of its
// probes.
func tracepointError(err error, as []*Probe) error {
	var x *TracepointError
	if !errors.As(err, &x) {
		return err
	}
	for i, a := range as {
		if a.def.Tracepoint() == x.Tracepoint {
			return &probe.Error{Code: probe.CodeTracepoint, Errno: errnoOf(x.Err, syscall.EIO), Index: i, Text: x.Error(), Cause: x}
		}
	}
	return err
}

// errnoOf returns the errno of an error, or other if it has none.
func errnoOf(err error, other syscall.Errno) syscall.Errno {
	if n := other; errors.As(err, &n) {
		return n
	}
	return other
}

// isOn reports whether a tracepoint is on because of us, as far as is known.
func (t *tracepoints) isOn(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.on[name]
}

// forget records that the guest's memory was replaced.
func (t *tracepoints) forget() {
	t.mu.Lock()
	t.unknown = true
	clear(t.on)
	t.mu.Unlock()
	if _, ok := tracingOf(t.st.guest); ok {
		t.retry()
	}
}

// adopt arranges to switch off tracepoints that an earlier session has left on, in a
// guest that was restored.
func (t *tracepoints) adopt() {
	if img, ok := tracingOf(t.st.guest); ok && started(img) {
		t.retry()
	}
}

// started reports whether the kernel has started far enough to switch tracepoints.
func started(img linux.Tracing) bool {
	s, known := img.System()
	return !known || s >= linux.StateRunning
}

// TracepointError says that the guest's kernel did not switch a tracepoint.
type TracepointError struct {
	Tracepoint string
	On         bool // as requested
	Err        error
}

// Error names the tracepoint and the reason.
func (e *TracepointError) Error() string {
	what := "off"
	if e.On {
		what = "on"
	}
	return fmt.Sprintf("the guest's kernel has not switched the tracepoint %s %s: %v", e.Tracepoint, what, e.Err)
}

// Unwrap returns the cause.
func (e *TracepointError) Unwrap() error { return e.Err }

// settle makes the guest's kernel switch tracepoints on and off as probes need them.
// If the guest cannot do so now, this is retried later, in the background, and is not
// an error.
func (t *tracepoints) settle() error {
	err := t.trySettle()
	if errors.Is(err, probe.ErrCallLater) {
		t.retry()
		return nil
	}
	return err
}

// retry starts a goroutine that settles what the guest could not do at once.
func (t *tracepoints) retry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retries || t.ended {
		return
	}
	t.retries = true
	t.done.Go(func() {
		said := ""
		for {
			select {
			case <-time.After(switchAgain):
			case <-t.ctx.Done():
				return
			}
			err := t.trySettle()
			if t.ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, probe.ErrCallLater) && err.Error() != said {
				said = err.Error()
				t.st.log.Warn("tracepoints", "err", err)
			}
			t.mu.Lock()
			if err == nil {
				t.retries = false
				t.mu.Unlock()
				t.st.index.tell()
				return
			}
			t.mu.Unlock()
		}
	})
}

// trySettle is settle, once.
func (t *tracepoints) trySettle() error {
	t.switching.Lock()
	defer t.switching.Unlock()
	img, ok := tracingOf(t.st.guest)
	by, can := t.st.guest.(caller)
	switch {
	case !ok || !can:
		return nil
	case !started(img):
		return probe.ErrCallLater
	}
	if err := t.st.recorders.renew(); err != nil {
		return err
	}
	todo, err := t.differences(img)
	for _, d := range todo {
		if err != nil {
			break
		}
		err = d.make(t.ctx, by)
	}
	if _, again := t.differences(img); err == nil { // records the new state
		err = again
	}
	return err
}

// difference is a tracepoint that is not in the wanted state.
type difference struct {
	tp   linux.Tracepoint
	want bool
	have []linux.TracepointFunc // ours
}

// differences returns the tracepoints that are not in the state that probes need, and
// records which are on.
func (t *tracepoints) differences(img linux.Tracing) (todo []difference, err error) {
	t.mu.Lock()
	wanted := map[string]bool{}
	for _, name := range t.probes {
		wanted[name] = true
	}
	names := map[string]bool{}
	for name := range t.seen {
		names[name] = true
	}
	all := t.unknown
	t.mu.Unlock()
	if all {
		for _, name := range img.Tracepoints() {
			names[name] = true
		}
	}
	var tps []linux.Tracepoint
	for name := range names {
		if err := t.ctx.Err(); err != nil {
			return nil, err
		}
		tp, e := img.Tracepoint(name)
		switch {
		case e == nil:
			tps = append(tps, tp)
		case wanted[name]:
			return nil, &TracepointError{name, true, e}
		}
	}
	on := map[string]bool{}
	err = t.st.guest.Target().Stop(func(probe.World) error {
		for _, tp := range tps {
			users, err := img.Users(tp)
			if err != nil {
				return &TracepointError{tp.Name, wanted[tp.Name], err}
			}
			var ours []linux.TracepointFunc
			for _, u := range users {
				if slices.Contains(tracepointWords[:], u.Data) {
					ours = append(ours, u)
				}
			}
			if on[tp.Name] = len(ours) == len(tracepointWords); on[tp.Name] == wanted[tp.Name] && (on[tp.Name] || len(ours) == 0) {
				continue
			}
			todo = append(todo, difference{tp, wanted[tp.Name], ours})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(todo, func(a, b difference) int {
		if a.tp.Name < b.tp.Name {
			return -1
		}
		return 1
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = on
	if all && len(todo) == 0 {
		t.unknown = false
	}
	for name := range t.seen {
		if !wanted[name] && !on[name] && !slices.ContainsFunc(todo, func(d difference) bool { return d.tp.Name == name }) {
			delete(t.seen, name)
		}
	}
	return todo, nil
}

// make makes the guest's kernel switch it.
func (d *difference) make(ctx context.Context, by caller) error {
	call := func(fn, arg guest.GVA, word uint64) error {
		ctx, cancel := context.WithTimeout(ctx, switchTime)
		defer cancel()
		ret, err := by.Call(ctx, fn, uint64(d.tp.Addr), uint64(arg), word)
		if n := int32(ret); err == nil && n < 0 {
			err = syscall.Errno(-n)
		}
		if err != nil {
			return &TracepointError{d.tp.Name, d.want, err}
		}
		return nil
	}
	if !d.want {
		for _, f := range slices.Backward(d.have) {
			if err := call(d.tp.Unregister, f.Func, f.Data); err != nil {
				return err
			}
		}
		return nil
	}
	for _, word := range tracepointWords {
		if slices.ContainsFunc(d.have, func(f linux.TracepointFunc) bool { return f.Data == word }) {
			continue
		}
		if err := call(d.tp.Register, d.tp.Idle, word); err != nil {
			return err
		}
	}
	return nil
}
