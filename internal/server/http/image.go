package http

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/event"
)

// bootable is the program that the guest boots: one of the two, or none if it is
// not known.
type bootable struct {
	image *guest.Image
	linux *machine.LinuxConfig
}

// loadProgram reads the guest: a kernel with its initrd and disks, an ELF file,
// or the built-in one. It also looks for debug information, and sets o.debug to
// that file, and o.beside to files with parts of it.
func loadProgram(o *options) (p bootable, err error) {
	if p, err = loadBootable(o); err != nil {
		return p, err
	}
	if o.debug != "" {
		if o.debug, err = debuginfo.Find(o.debug, p.buildID()); err == nil {
			o.beside, err = debuginfo.PartFiles(o.debug)
		}
		if err != nil {
			return bootable{}, o.flagError("debug", fmt.Errorf("--debug: %w", err))
		}
	} else if o.guest != "" {
		// Errors in it are reported when debug information is needed: a guest runs without
		// it.
		if o.beside, o.besideErr = debuginfo.PartFiles(o.guest); errors.Is(o.besideErr, debuginfo.ErrNone) {
			o.besideErr = nil
		}
	}
	return p, nil
}

func loadBootable(o *options) (bootable, error) {
	if o.kernel != "" {
		l, err := loadLinux(o)
		return bootable{linux: l}, err
	}
	if o.guest != "" {
		img, err := guest.LoadFile(o.guest)
		return bootable{image: img}, o.flagError("guest", err)
	}
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		return bootable{}, fmt.Errorf("built-in guest: %w", err)
	}
	return bootable{image: img}, nil
}

// sha256 returns the hash of the file, in hexadecimal digits.
func (p bootable) sha256() string {
	if p.linux != nil {
		return hex.EncodeToString(p.linux.Kernel.ID.SHA256[:])
	}
	return hex.EncodeToString(p.image.SHA256[:])
}

// buildID returns the program's build ID, in hexadecimal digits, or "".
func (p bootable) buildID() string {
	if p.linux != nil {
		return p.linux.Kernel.ID.BuildID
	}
	return p.image.BuildID
}

// loadLinux reads a kernel, its initrd and its disks.
func loadLinux(o *options) (*machine.LinuxConfig, error) {
	k, err := linux.Load(o.kernel)
	if err != nil {
		return nil, o.flagError("kernel", err)
	}
	if o.symbols != "" {
		if err := k.ReadSymbols(o.symbols); err != nil {
			return nil, o.flagError("symbols", fmt.Errorf("--symbols: %w", err))
		}
	}
	l := &machine.LinuxConfig{Kernel: k, Disks: o.disks}
	if o.initrd != "" {
		if l.Initrd, err = o.readInitrd(); err != nil {
			return nil, o.flagError("initrd", err)
		}
	}
	return l, nil
}

// readInitrd reads a regular file that fits into the guest's memory. A file that
// a snapshot names must have the snapshot's checksum: another file of that name
// is not passed to the guest.
func (o *options) readInitrd() ([]byte, error) {
	b, err := files.Read(o.initrd, int64(o.memory))
	switch {
	case errors.Is(err, files.ErrTooLarge):
		return nil, fmt.Errorf("load initrd %w: it does not fit into the guest's memory (--memory %s)", err, formatSize(o.memory))
	case err != nil:
		return nil, fmt.Errorf("load initrd %w", err)
	}
	is := fmt.Sprintf("%x", sha256.Sum256(b))
	if o.initrdSHA256 != "" && o.initrdSHA256 != is {
		return nil, command.Usagef("--restore %s: %s is not the initial RAM disk that its guest had, with SHA-256 %.16s…: say which one by --initrd", o.restore, o.initrd, o.initrdSHA256)
	}
	o.initrdSHA256 = is
	return b, nil
}

// checkLinuxHost rejects a host on which a Linux guest could hardly run.
func checkLinuxHost(o *options) (*host.Report, error) {
	h, err := host.Calibrate(context.Background(), o.kvm)
	if err != nil {
		return nil, err
	}
	if why := h.NoLinuxReason(); why != "" && !o.slowly {
		return nil, command.Usagef("--kernel: %s (guestprobe doctor); give --slowly to probe what a Linux guest does until then", why)
	}
	return &h, nil
}

// types returns the types in a program's section .BTF, or nil. A guest with
// damaged types is probed without them.
func (p bootable) types(view func() guest.View, log *slog.Logger) event.Types {
	known, err := p.readTypes(view)
	if err != nil {
		log.Warn("the guest's types are not known: arguments have no names", "error", err)
	}
	return known
}

// readTypes returns the program's types, or nil if it has none. The types of a
// Linux kernel's modules are read on demand.
func (p bootable) readTypes(view func() guest.View) (event.Types, error) {
	if p.linux != nil {
		info, err := p.linux.Kernel.Info(view)
		if err != nil {
			return nil, err
		}
		return info, nil
	}
	if p.image == nil {
		return nil, nil
	}
	section, err := p.image.SectionData(".BTF", types.MaxBTF)
	if section == nil {
		return nil, err
	}
	spec, err := types.Read(section, nil)
	if err != nil {
		return nil, err
	}
	return types.New(spec, nil), nil
}
