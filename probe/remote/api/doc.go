// Package api holds what goes over the daemon's socket: plain structs, record
// types and error codes, shared by the daemon, the client and the command
// line.
package api
