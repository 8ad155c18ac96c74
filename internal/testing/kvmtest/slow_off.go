//go:build !slowguest

package kvmtest

// Slow reports whether guests run ten times slower than this host can run them: see
// package kvm.
const Slow = false
