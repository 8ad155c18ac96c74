// Package btsuite runs the tests of a checkout of bpftrace on the scripts'
// compiler and interpreter, and reports where they disagree. It reads the
// checkout, and keeps nothing of it.
package btsuite
