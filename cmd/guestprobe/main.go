// Command guestprobe attaches probes to a guest and controls it.
package main

import (
	"os"

	"github.com/guestprobe/guestprobe/internal/cli"
)

func main() { os.Exit(cli.Main()) }
