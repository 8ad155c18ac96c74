//go:build !race

package probe_test

const ceiling = 0 // allocations per hit
