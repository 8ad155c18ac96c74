// Package bench measures the cost of a probe on this machine, and in the same
// run the cost of the alternatives.
package bench
