// Command guestprobed boots a guest and serves its probes.
package main

import (
	"os"

	"github.com/guestprobe/guestprobe/internal/cli"
	"github.com/guestprobe/guestprobe/internal/daemon"
)

func main() { os.Exit(daemon.Main(cli.Monitor)) }
