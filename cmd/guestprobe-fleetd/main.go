// Command guestprobe-fleetd serves a fleet of daemons.
package main

import (
	"os"

	"github.com/guestprobe/guestprobe/internal/server/fleetd"
)

func main() { os.Exit(fleetd.Main()) }
