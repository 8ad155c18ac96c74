// Package report sums up a saved trace, in memory that does not grow with it.
package report
