// Package script compiles scripts in bpftrace's language to programs, and prints
// what these write as bpftrace does.
package script
