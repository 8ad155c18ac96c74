// Command guestprobed boots a guest and serves its probes.
package main

import (
	"os"

	"github.com/guestprobe/guestprobe/internal/cli"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
)

func main() { os.Exit(daemon.Main(cli.Monitor)) }
