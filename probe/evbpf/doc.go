// Package evbpf compiles probe definitions and their filters to eBPF programs,
// which write the records that package event lays out.
package evbpf
