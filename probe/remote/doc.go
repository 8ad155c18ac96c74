// Package remote is the typed client of the daemon's socket, for Go programs that
// attach probes and read events of a guest run by guestprobed. Package
// probe/remote/api has the types of requests and answers.
package remote
