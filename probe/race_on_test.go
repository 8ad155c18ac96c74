//go:build race

package probe_test

// The race detector empties pools at random.
const ceiling = 1
