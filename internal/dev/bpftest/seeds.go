package bpftest

import (
	"fmt"
	"math/rand/v2"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Bytes returns n random bytes, the same for the same seed.
func Bytes(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 7))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// CompareSeed compares the two random programs of a seed, a long one and a small
// one, with runs runs each.
func (w *Twin) CompareSeed(seed uint64, runs int) error {
	if err := w.Compare(Program(Bytes(seed, 400), false), bpf.Kind(seed%3), runs); err != nil {
		return fmt.Errorf("program %d: %w", seed, err)
	}
	if err := w.Compare(Program(Bytes(seed, 60+int(seed%200)), true), bpf.Kprobe, runs); err != nil {
		return fmt.Errorf("small program %d: %w", seed, err)
	}
	return nil
}
