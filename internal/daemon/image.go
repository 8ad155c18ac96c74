package daemon

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
)

// loadImage reads the guest: a file, or the built-in one.
func loadImage(path string) (*guest.Image, error) {
	if path != "" {
		return guest.LoadFile(path)
	}
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		return nil, fmt.Errorf("built-in guest: %w", err)
	}
	return img, nil
}
