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

// inGuest returns how many hits of a probe took no exit.
func (h *harness) inGuest(name string) uint64 {
	i, err := h.s.probes.Get(name)
	if err != nil {
		h.Fatal(err)
	}
	return i.Stats.InGuest
}

// TestResetOfOptimized resets a guest with programs and definitions that run in
// it, in kernel and in user code: their sites get their jumps back by
// themselves, they run in the guest again, and their counts go on and close.
func TestResetOfOptimized(t *testing.T) {
	h := serveMachine(t, 2)
	for _, section := range []string{"kprobe/vfs_read", "kprobe/user_hot"} {
		if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "privileges.o"), Section: section}); err != nil {
			t.Fatal(err)
		}
	}
	h.attach("p:def_user user_hot a=%di", "p:def_kernel vfs_read fd=%di")
	names := []string{"kernel", "user_own", "def_user", "def_kernel"}
	last := map[string]uint64{}
	for boot := range 4 {
		if boot > 0 {
			if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range names {
			h.await(name, "in the guest, and hit there", func(p api.Probe) bool {
				if p.Stats.Hits < last[name] {
					t.Fatalf("boot %d: %s: %d hits, and %d before", boot, name, p.Stats.Hits, last[name])
				}
				return p.Runs == api.RunsInGuest && h.inGuest(name) > last[name]+2
			})
			last[name] = h.inGuest(name)
		}
	}
	if _, err := h.c.Pause(h.ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p, err := h.c.Probe(h.ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if s := p.Stats; s.Hits != s.Handled+s.Filtered+s.Missed || s.Hits < last[name] {
			t.Errorf("%s: %+v", name, s)
		}
		if g := p.Program; g != nil && (g.Runs < last[name] || g.Faults != 0) {
			t.Errorf("%s: %+v", name, g)
		}
	}
}

// TestObjectOfBothPrivileges attaches programs of kernel and user code that share
// a map: the one at user code runs on the host and says why, and both count in the
// map.
func TestObjectOfBothPrivileges(t *testing.T) {
	h := serveMachine(t, 2)
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "privileges.o")}); err != nil {
		t.Fatal(err)
	}
	const why = `it shares map "in_both" with a program at kernel code, and user code must not reach that`
	h.await("kernel", "in the guest", func(p api.Probe) bool { return p.Runs == api.RunsInGuest && h.inGuest("kernel") > 0 })
	h.await("user_shared", "on the host", func(p api.Probe) bool {
		return p.Runs == api.RunsOnHost && p.OnHost == why && p.Program.Runs > 0 && p.Program.InGuest == 0
	})
	ms, err := h.c.Maps(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		d, err := h.c.Map(h.ctx, m.Name)
		if err != nil || !m.Shared || len(d.Values) != 1 || d.Values[0].Values[0] == "0000000000000000" {
			t.Errorf("map %+v: %+v, %v", m, d.Values, err)
		}
	}
}

// TestCancelledReset: a reset whose client has given up leaves the guest as it was,
// running, and what is counted in it goes on.
func TestCancelledReset(t *testing.T) {
	h := serveMachine(t, 2)
	h.attach("p:def_user user_hot a=%di")
	counting := func() {
		t.Helper()
		was := h.inGuest("def_user")
		h.await("def_user", "in the guest, and hit there", func(api.Probe) bool { return h.inGuest("def_user") > was+2 })
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
