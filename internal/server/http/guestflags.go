package http

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// guestFlags declares the flags that describe the guest.
func (o *options) guestFlags(f *pflag.FlagSet) {
	f.StringVar(&o.guest, "guest", o.guest, "boot this static x86-64 ELF `file` (default: the built-in guest)")
	f.StringVar(&o.kernel, "kernel", o.kernel, "boot this Linux kernel, a bzImage or vmlinux `file`, instead")
	f.StringVar(&o.initrd, "initrd", o.initrd, "initial RAM disk `file` of the kernel")
	f.StringVar(&o.cmdline, "append", o.cmdline, "command line `TEXT` for the kernel")
	f.Var((*disksValue)(&o.disks), "disk", fmt.Sprintf("give the kernel this raw image or block device `FILE[,ro]` as a virtio disk; may be repeated, %d times at most", device.MaxDisks))
	f.StringVar(&o.net, "net", o.net, "refused: guests have no `NETWORK`")
	if err := f.MarkHidden("net"); err != nil {
		panic("BUG: " + err.Error())
	}
	f.StringVar(&o.debug, "debug", o.debug, "take the source of the guest's program from this ELF `file` with debug information, or from the one with its build ID below a folder as /usr/lib/debug")
	f.StringVar(&o.symbols, "symbols", o.symbols, "take the kernel's names from this System.map or vmlinux `file`")
	f.BoolVar(&o.slowly, "slowly", o.slowly, "boot the kernel even where the host emulates its code")
	f.IntVar(&o.vcpus, "vcpus", o.vcpus, fmt.Sprintf("`number` of vCPUs, 1 to %d", guest.MaxVCPUs))
	f.Var((*sizeValue)(&o.memory), "memory", fmt.Sprintf("guest RAM, with an optional K, M, G or T (default %s, %s with --kernel)", formatSize(machine.DefaultMemory), formatSize(machine.DefaultLinuxMemory)))
	f.Var((*sizeValue)(&o.maps), "map-memory", "the host's memory that maps of programs may take in all")
	f.StringVar(&o.cmdline, "cmdline", o.cmdline, "command line `TEXT` for the guest")
	command.MarkSeveral(f, "disk")
}

// GuestFiles are the flags of GuestFlags whose values are files.
var GuestFiles = []string{"guest", "kernel", "initrd", "debug", "symbols"}

// GuestFlags declares the flags of guestprobed that describe the guest, for
// programs that start guestprobed. args checks the flags and returns those that
// were given as arguments for guestprobed; its error is a usage error.
func GuestFlags(f *pflag.FlagSet) (args func() ([]string, error)) {
	o := defaultOptions()
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.guestFlags(own)
	f.AddFlagSet(own)
	return func() (out []string, err error) {
		own.VisitAll(func(x *pflag.Flag) {
			if x.Changed && x.Name != "disk" {
				out = append(out, "--"+x.Name+"="+x.Value.String())
			}
		})
		for _, d := range o.disks {
			out = append(out, "--disk="+d.String())
		}
		return out, o.check()
	}
}
