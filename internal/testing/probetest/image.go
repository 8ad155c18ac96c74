package probetest

import (
	_ "embed"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
)

//go:generate sh suite/build.sh

//go:embed suite/suite.elf
var suiteELF []byte

var parseSuite = sync.OnceValues(func() (*guest.Image, error) { return guest.ParseELF(suiteELF) })

// Image returns the image of the suite's guest: a bare ELF64 with the boot
// contract, whose vCPUs set up their vectors and then park at a hlt with
// interrupts off. Its functions are described in suite/suite.S.
func Image() *guest.Image {
	img, err := parseSuite()
	if err != nil {
		panic("BUG: the embedded suite image: " + err.Error())
	}
	return img
}
