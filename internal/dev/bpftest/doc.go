// Package bpftest makes random programs, and compares what the interpreter and
// compiled code make of a program.
package bpftest
