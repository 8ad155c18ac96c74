// Package bench measures what a probe costs on this machine, and beside it, in
// the same run, what a user would use instead.
package bench
