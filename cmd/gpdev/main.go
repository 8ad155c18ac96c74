// Command gpdev has the tools of those who work on guestprobe.
package main

import (
	"os"

	"github.com/guestprobe/guestprobe/internal/dev"
)

func main() { os.Exit(dev.Main()) }
