// Package cli implements guestprobe's commands, one file each. Most of them are
// thin wrappers around the daemon's client.
package cli
