package probe_test

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestReconcile rewrites each set of the bytes of a region, with each plan and in
// each way in which the engine may look: the guest's bytes are there afterwards, all
// others are the image's, and the probe is armed if its instruction is intact. When
// the image's bytes are back, so are the int3 and the jump.
func TestReconcile(t *testing.T) {
	looks := []struct {
		name string
		gone bool // the probe is gone afterwards
		do   func(e *probe.Engine, p, q *probe.Kprobe) error
	}{
		{"reconcile", false, func(e *probe.Engine, _, _ *probe.Kprobe) error { return e.Reconcile() }},
		{"another probe there", false, func(e *probe.Engine, _, q *probe.Kprobe) error { return errors.Join(e.Register(q), e.Unregister(q)) }},
		{"disable and enable", false, func(e *probe.Engine, p, _ *probe.Kprobe) error { return errors.Join(e.Disable(p), e.Enable(p)) }},
		{"unregister", true, func(e *probe.Engine, p, _ *probe.Kprobe) error { return e.Unregister(p) }},
	}
	for _, fn := range []string{"f_emulate", "hot_load"} { // instructions of 1 and of more than 5 bytes
		for _, jump := range []bool{true, false} {
			f := newFake(t, 1, probetest.Image())
			e := f.Engine()
			p := &probe.Kprobe{Symbol: fn, Pre: emptyHandler}
			optimize(t, e, p)
			i, _ := e.Info(p)
			region := i.Region
			if err := e.SetOptimization(jump); err != nil {
				t.Fatal(err)
			}
			at, n, whole := p.Addr, max(len(i.Insn), x86.JmpLen)+2, len(i.Insn)
			image := probetest.Image().Code(at, n)
			now := make([]byte, n)
			for set := 1; set < 1<<n; set += 1 + set/64 {
				for _, look := range looks {
					what := fmt.Sprintf("%s, jump %v, bytes %b, %s", fn, jump, set, look.name)
					var patched [16]byte
					if err := f.Read(at, patched[:n]); err != nil {
						t.Fatal(err)
					}
					want, hurt := bytes.Clone(image), false
					for k := range n {
						if set>>k&1 != 0 {
							want[k] = patched[k] ^ 0x5a
							hurt = hurt || k < whole
							if err := f.Poke(at+guest.GVA(k), want[k:k+1]); err != nil {
								t.Fatal(err)
							}
						}
					}
					err := look.do(e, p, &probe.Kprobe{Symbol: fn, Pre: emptyHandler})
					var m *guest.TextMismatchError
					if reported := errors.As(err, &m); !reported && hurt {
						t.Errorf("%s: error %v", what, err)
					}
					i, ok := e.Info(p)
					if ok == look.gone || ok && (i.Armed == hurt || i.Changed != hurt || i.Optimized && set&(1<<region-1) != 0) {
						t.Errorf("%s: %v %+v", what, ok, i)
					}
					if ok && i.Armed {
						want[0] = x86.Int3
					}
					if err := f.Read(at, now); err != nil || !i.Optimized && !bytes.Equal(now, want) {
						t.Errorf("%s: text is % x, want % x", what, now, want)
					}
					if hurt && !look.gone {
						if err := e.Register(&probe.Kprobe{Symbol: fn}); !errors.Is(err, syscall.EBUSY) {
							t.Errorf("%s: another probe: %v", what, err)
						}
						if v, err := f.Engine().Check(&probe.Kprobe{Symbol: fn}); err == nil {
							t.Errorf("%s: %+v would be registered", what, v)
						}
					}
					// The guest puts the image's bytes back.
					for k := range n {
						if set>>k&1 != 0 {
							if err := f.Poke(at+guest.GVA(k), image[k:k+1]); err != nil {
								t.Fatal(err)
							}
						}
					}
					if look.gone {
						p.Addr = 0
						err = e.Register(p)
					} else {
						err = e.Reconcile()
					}
					if err = errors.Join(err, e.Optimize()); err != nil {
						t.Fatalf("%s: then %v", what, err)
					}
					if i, _ := e.Info(p); !i.Armed || i.Changed || i.Optimized != jump {
						t.Fatalf("%s: behind it %+v", what, i)
					}
				}
			}
		}
	}
}

// TestLooks: when the engine looks at the guest's text. Changes of a jump are
// repaired within 25 delays; an int3 whose instruction has changed may be the
// guest's, and gets twice the time.
func TestLooks(t *testing.T) {
	const delay, look = 20 * time.Millisecond, 500 * time.Millisecond
	for _, jump := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := &faulty{Fake: newFake(t, 1, probetest.Image()), patchErr: map[guest.GVA]error{}}
			e, err := probe.New(f, probe.Options{OptimizeDelay: delay})
			if err != nil {
				t.Fatal(err)
			}
			p := &probe.Kprobe{Symbol: "hot_load", Pre: emptyHandler}
			if err := errors.Join(e.SetOptimization(jump), e.Register(p)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3*look + look/2)
			synctest.Wait()
			stops := 0
			f.onStop = func() { stops++ }
			changed := func(when string, want bool) {
				t.Helper()
				synctest.Wait()
				if i, _ := e.Info(p); i.Changed != want || i.Armed == want {
					t.Errorf("jump %v, %s: %+v", jump, when, i)
				}
			}
			image := probetest.Image().Code(p.Addr, 8)
			if err := f.Poke(p.Addr+6, []byte{0x5a}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(look)
			changed("at the first look", jump)
			time.Sleep(look)
			changed("at the second", true)
			if err := f.Poke(p.Addr, image); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * look)
			changed("with the image's bytes", false)
			before := stops
			time.Sleep(10 * look)
			if stops != before {
				t.Errorf("jump %v: %d stops while nothing changed", jump, stops-before)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
