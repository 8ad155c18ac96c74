// Command gpdev contains the tools for developing guestprobe.
package main

import (
	"os"

	"github.com/guestprobe/guestprobe/internal/dev"
)

func main() { os.Exit(dev.Main()) }
