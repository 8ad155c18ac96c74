// Package snapshot has the state of a machine, which kvm/machine saves and
// restores, and its file format.
package snapshot
