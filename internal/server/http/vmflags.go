package http

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/command"
)

// VM says which guest of another VMM to look at, for OpenVM and guestprobed --vm.
type VM struct {
	Name  string // its VMM's pid, or its own name
	Image string // the file of its kernel or program, or ""
	Slide uint64 // of the addresses of a program that is not Linux, in bytes
}

// VMName is the value of --vm, of both programs.
type VMName string

// String, Set and Type implement pflag.Value.
func (v *VMName) String() string { return string(*v) }

func (v *VMName) Set(s string) error {
	if s == "" {
		return errors.New("it is empty: 'guestprobe vms' lists VMs")
	}
	*v = VMName(s)
	return nil
}

func (*VMName) Type() string { return "VM" }

// vmFlags are the flags that go together with --vm.
var vmFlags = []string{
	"vm", "vm-image", "vm-slide", "socket", "config", "check-config", "allow-uid", "group", "max-connections", "max-bodies", "body-timeout", "stall-timeout", "ready-fd",
	"user", "memory-limit", "require-jail", "no-jail", "log-level", "log-format", "log-file",
}

// checkImage checks the file of --vm-image.
func (v *VM) checkImage() error {
	if v.Image == "" {
		return nil
	}
	if _, err := linux.Load(v.Image); err == nil {
		return nil
	}
	if _, err := guest.LoadAny(v.Image); err != nil {
		return fmt.Errorf("--vm-image: %w", err)
	}
	return nil
}

// checkVM rejects flags that do not go together with --vm.
func (o *options) checkVM() (err error) {
	if o.lookAt.Name == "" {
		if o.lookAt.Image != "" || o.lookAt.Slide != 0 {
			return command.Usagef("--vm-image and --vm-slide are about the guest of --vm")
		}
		return nil
	}
	if o.lookAt.Slide != 0 && o.lookAt.Image == "" {
		return command.Usagef("--vm-slide moves the addresses of --vm-image: give both")
	}
	o.set.VisitAll(func(f *pflag.Flag) {
		if err == nil && o.given(f.Name) && !slices.Contains(vmFlags, f.Name) {
			err = command.Usagef("--%s is for a guest that guestprobed boots: it cannot be used with --vm", f.Name)
		}
	})
	return err
}
