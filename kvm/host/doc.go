// Package host finds out, by running a small guest, how a host's KVM delivers
// breakpoints, steps and watchpoints.
package host
