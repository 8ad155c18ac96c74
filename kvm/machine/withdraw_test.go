package machine

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/probe"
)

// TestWithdrawnInTheMiddle takes everything of the engine's out of the built-in guest at random moments, with probes of all kinds on it, as it is
// taken out of a Linux guest that hibernates: the guest comes to the results of one that was never probed, although there is no code of the
// engine's any more.
func TestWithdrawnInTheMiddle(t *testing.T) {
	n := 30
	if testing.Short() {
		n = 5
	}
	config := Config{Image: builtinImage(t), VCPUs: 2, Memory: 16 << 20, Cmdline: "rounds=3 quiet", Tick: slowTick, EmulatedStages: true,
		Log: slog.New(slog.DiscardHandler), Probe: probe.Options{OptimizeDelay: time.Millisecond}}
	m := newMachine(t, config)
	want := sumsOf(t, m)
	rng := rand.New(rand.NewPCG(31, 7))
	l := newSavedLoad(t, m, rng)
	for i := 0; i < n && !t.Failed(); i++ {
		if err := m.Reset(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		l.change()
		time.Sleep(time.Duration(rng.IntN(15000)) * time.Microsecond)
		if m.Phase() == PhaseExited {
			i--
			continue
		}
		gone := false
		if err := m.withdraw(func() {
			for _, a := range []execArea{m.exec.kernel, m.exec.user} {
				b, err := m.mem.Slice(a.GPA, int(a.Size))
				if err != nil {
					t.Error(err)
				}
				clear(b) // add %al,(%rax), with an address that is not there
			}
			gone = true
		}); err != nil || !gone {
			t.Fatalf("run %d: %v, gone %v", i, err, gone)
		}
		if diff := gocmp.Diff(want, sumsOf(t, m)); diff != "" {
			t.Errorf("run %d (-never probed +withdrawn):\n%s", i, diff)
		}
	}
}
