//go:build linux && amd64

package bpf_test

import (
	"testing"

	"github.com/guestprobe/guestprobe/internal/bpftest"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// FuzzBackends runs generated programs in the interpreter and compiled, and
// wants the same of both.
func FuzzBackends(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(bpftest.Bytes(seed, 300), byte(seed))
		f.Add(bpftest.Bytes(seed, 300), byte(8+seed))
	}
	w := bpftest.Twin{Runner: bpf.NewNative(f)}
	f.Fuzz(func(t *testing.T, src []byte, kind byte) {
		if err := w.Compare(bpftest.Program(src[:min(len(src), 2000)], kind&8 != 0), bpf.Kind(kind&7%3), 3); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBackendsAgree is the fuzzer with fixed random programs.
func TestBackendsAgree(t *testing.T) {
	w := bpftest.Twin{Runner: bpf.NewNative(t)}
	const n = 3000 // FuzzBackends goes on from here
	for seed := range uint64(n) {
		if err := w.CompareSeed(seed, 3); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("2 times %d programs: %d small, %d refused, %d host only, %d runs, ended %v", n, w.Small, w.Refused, w.HostOnly, w.Runs, w.Ended)
	if w.Small < n/4 {
		t.Errorf("only %d of %d small programs were compiled as such", w.Small, n)
	}
	if w.Runs < 3*n || w.Ended[bpf.NoFault.String()] < w.Runs/3 {
		t.Errorf("%d programs were refused and %d host only; %d of %d runs came to their end: the generator tests too little",
			w.Refused, w.HostOnly, w.Ended[bpf.NoFault.String()], w.Runs)
	}
}
