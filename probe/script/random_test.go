package script

import (
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/scripttest"
)

// TestRandomScripts runs random scripts, which print what they do by an evaluation that
// does not know the compiler.
func TestRandomScripts(t *testing.T) {
	for seed := range uint64(1000) {
		runRandom(t, seed)
	}
}

// TestRandomNestedScripts is TestRandomScripts for scripts whose expressions print, change what others read, and
// leave the script.
func TestRandomNestedScripts(t *testing.T) {
	for seed := range uint64(400) {
		runNested(t, seed)
	}
}

// FuzzRandomScripts is TestRandomScripts for other numbers.
func FuzzRandomScripts(f *testing.F) {
	f.Add(uint64(1 << 40))
	f.Fuzz(runRandom)
}

// FuzzNestedScripts is TestRandomNestedScripts for other numbers.
func FuzzNestedScripts(f *testing.F) {
	f.Add(uint64(1 << 40))
	f.Fuzz(runNested)
}

func runRandom(t *testing.T, seed uint64) { runMade(t, seed, false) }

func runNested(t *testing.T, seed uint64) { runMade(t, seed, true) }

func runMade(t *testing.T, seed uint64, nested bool) {
	s := scripttest.New(seed, scripttest.Options{Place: "kprobe:vfs_read", Args: 3, Nested: nested})
	r := rand.New(rand.NewPCG(seed, 1))
	var hits []hit
	for range 4 {
		h := hit{fn: "vfs_read", cpu: r.IntN(testCPUs), args: [6]uint64{r.Uint64(), r.Uint64N(100), uint64(-r.Int64N(5))}}
		hits = append(hits, h)
		s.Hit(h.args[:]...)
	}
	got, err := runScript(t, s.Text, nil, false, 0, hits...)
	if err != nil {
		t.Fatalf("script %d: %v\n%s", seed, err, s.Text)
	}
	if want := s.Output(); got.out != want {
		t.Fatalf("script %d\n%sprints\n%s\nwant\n%s\n%s", seed, s.Text, got.out, want, got.warnings)
	}
}
