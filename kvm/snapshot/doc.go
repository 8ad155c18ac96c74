// Package snapshot has the state of a machine, as kvm/machine takes it and puts it back, and the file that
// keeps it.
package snapshot
