// Package remote is the typed client of the daemon's socket.
package remote
