// Package profile converts stacks and their counts to forms for people: folded
// text, pprof profiles, flame graphs, tables, and the difference of two.
package profile
