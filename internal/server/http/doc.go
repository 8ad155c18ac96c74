// Package http is guestprobed: it boots one guest and serves its probes,
// state and events as HTTP and JSON on a unix socket.
package http
