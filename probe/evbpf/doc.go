// Package evbpf compiles probe definitions and their filters to eBPF programs
// that make the same records as package event's captures.
package evbpf
