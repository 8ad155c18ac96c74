// Package torture generates guests, runs them with and without probes, and
// compares the results with a native run of the same code.
package torture
