package daemon

import (
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
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

// profileOf returns what is known of how the guest keeps its tasks, or nil.
func profileOf(o *options) event.Profile {
	if o.guest != "" {
		return nil
	}
	return make(builtinProfile, o.vcpus)
}

// builtinProfile knows the tasks of the built-in guest: each has a stack whose
// bottom says whose it is. It holds one buffer per vCPU, used by that vCPU's
// thread only, so that a hit allocates nothing.
type builtinProfile [][stackInfoSize]byte

const stackInfoSize = builtin.StackInfoComm + event.CommSize

// Task implements event.Profile.
func (p builtinProfile) Task(c *probe.Context, comm []byte) (pid int32, ok bool) {
	info := p[c.CPU][:]
	bottom := guest.GVA(c.Regs.RSP &^ (builtin.StackSize - 1))
	if c.Read(bottom, info) != nil || binary.LittleEndian.Uint64(info) != builtin.StackMagic {
		return 0, false
	}
	copy(comm, info[builtin.StackInfoComm:])
	return int32(binary.LittleEndian.Uint32(info[builtin.StackInfoPID:])), true
}
