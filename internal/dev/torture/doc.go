// Package torture makes guests up, runs them with and without probes, and holds
// what they do against a native run of the same code.
package torture
