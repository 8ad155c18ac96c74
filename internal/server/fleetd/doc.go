// Package fleetd is guestprobe-fleetd, the server that the daemons and clients of a fleet meet at: a NATS server with
// defaults that suit one machine.
package fleetd
