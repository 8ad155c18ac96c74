// Package profile makes of stacks and their counts what people look at: folded text, pprof
// profiles, flame graphs, tables, and the difference of two.
package profile
