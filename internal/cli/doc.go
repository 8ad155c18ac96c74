// Package cli is guestprobe, the command line: one file per subcommand, all of
// them thin over the daemon's client.
package cli
