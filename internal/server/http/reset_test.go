package http

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveMachine starts a daemon with the built-in guest on a real machine, whose
// kernel code runs handler stages, too. h.g is nil.
func serveMachine(t *testing.T, vcpus int, change ...func(*options)) *harness {
	t.Helper()
	kvmtest.Require(t)
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(machine.Config{Image: img, VCPUs: vcpus, Cmdline: "rounds=0", EmulatedStages: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	o := defaultOptions()
	o.vcpus = vcpus
	for _, f := range change {
		f(&o)
	}
	return newHarness(t).serve(machineGuest{Machine: m, source: func() (*debuginfo.Info, error) { return readImageSource(img) }}, o)
}

// await asks for a probe until it is as wanted.
func (h *harness) await(name, what string, ok func(api.Probe) bool) api.Probe {
	h.Helper()
	for {
		p, err := h.c.Probe(h.ctx, name)
		if err != nil {
			h.Fatalf("%s: %s: %v", name, what, err)
		}
		if ok(p) {
			return p
		}
		select {
		case <-h.ctx.Done():
			h.Fatalf("%s: %s: %+v, %+v, because %q", name, what, p.Stats, p.Program, p.OnHost)
		case <-time.After(time.Millisecond):
		}
	}
}

// guestHits returns how many hits of a probe took no exit.
func (h *harness) guestHits(name string) uint64 {
	i, err := h.s.probes.Get(name)
	if err != nil {
		h.Fatal(err)
	}
	return i.Stats.InGuest
}

// TestCancelledReset: a reset whose client has given up leaves the guest as it was,
// running, and what is counted in it goes on.
func TestCancelledReset(t *testing.T) {
	h := serveMachine(t, 2)
	h.attach("p:def_user user_hot a=%di")
	counting := func() {
		t.Helper()
		was := h.guestHits("def_user")
		h.await("def_user", "in the guest, and hit there", func(api.Probe) bool { return h.guestHits("def_user") > was+2 })
	}
	counting()
	gone, cancel := context.WithCancel(h.ctx)
	cancel()
	err := h.s.resetGuest(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, "POST", "/v1/guest/reset", http.NoBody))
	if e := toAPI(err); e.Code != api.CodeCancelled {
		t.Errorf("cancelled: %v", err)
	}
	// Some that are given up on the way.
	for i := range 10 {
		ctx, cancel := context.WithTimeout(h.ctx, time.Duration(i)*3*time.Millisecond)
		_, _ = h.c.Reset(ctx, api.ResetGuest{})
		cancel()
		h.s.resetMu.Lock() // behind the one that is under way
		if g := h.s.guest.State(); g.Phase != machine.PhaseRunning {
			t.Errorf("round %d: %s", i, g.Phase)
		}
		h.s.resetMu.Unlock()
		counting()
	}
}
