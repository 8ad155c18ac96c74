// Package program binds eBPF programs, from object files and from probe
// definitions, to probes, in the host's interpreter and in the guest.
package program
