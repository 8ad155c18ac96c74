//go:build race

package probe_test

// The race detector empties pools at random and slows everything down.
const (
	ceiling = 1
	slack   = 20
)
