// Package script compiles scripts in bpftrace's language to programs, and prints
// their output as bpftrace does.
package script
