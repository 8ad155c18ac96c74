// Package bpftest makes random programs, and compares the results of a program
// in the interpreter and in compiled code.
package bpftest
