// Package files opens files named by users, which may be anything that a path leads
// to.
//
// The package can be imported, but is not supported: it serves guestprobe's commands and
// changes without notice (docs/stability.md).
package files
