//go:build !race

package probe_test

const (
	ceiling = 0 // allocations per hit
	slack   = 1 // by how much limits of time are stretched
)
