// Package client is the typed client of the daemon's socket.
package client
