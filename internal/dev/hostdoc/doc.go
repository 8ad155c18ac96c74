// Package hostdoc writes docs/hosts.md from recorded runs of `guestprobe doctor`.
package hostdoc
