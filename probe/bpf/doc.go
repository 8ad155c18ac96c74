// Package bpf runs probe programs, eBPF bytecode as RFC 9669 defines it: it loads and
// checks them, interprets them on the host, compiles them to x86-64 for the detour,
// and stores their maps in memory that the guest may share.
package bpf
