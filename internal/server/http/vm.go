package http

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm/foreign"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// vmLooks are the routes for a guest of another VMM.
var vmLooks = func() map[string]bool {
	out := maps.Clone(looks)
	delete(out, "POST /v1/guest/save")
	delete(out, "GET /v1/blacklist")
	out["POST /v1/profile"], out["DELETE /v1/events/{stream}"] = true, true
	// What 'guestprobe ps' and 'list' ask of a daemon. There are no probes.
	out["GET /v1/daemon"], out["GET /v1/probes"], out["GET /v1/kprobes/enabled"] = true, true, true
	return out
}()

// OpenVM opens the guest of another VMM on this host. It serves the requests
// that look at a guest, and changes nothing. Errors name the missing part.
func OpenVM(v VM, log *slog.Logger) (_ *Core, err error) {
	s, g, _, err := openVM(v, defaultOptions(), log, func() uint64 { return 0 })
	if err != nil {
		return nil, err
	}
	return newCore(s, g.Close), nil
}

// openVM returns a server for the guest of another VMM, and the guest, to be closed
// after the server's.
func openVM(v VM, o options, log *slog.Logger, logLost func() uint64) (_ *server, g *foreign.Guest, prog bootable, err error) {
	p, err := foreign.Find(v.Name)
	if err != nil {
		return nil, nil, prog, vmError(err)
	}
	if g, err = foreign.Open(p); err != nil {
		return nil, nil, prog, vmError(err)
	}
	if g.NoQMP != nil {
		log.Warn("the VMM's QMP socket is not used", "error", g.NoQMP)
	}
	m, prog, err := observe(g, v, &o, log)
	if err != nil {
		return nil, nil, prog, errors.Join(vmError(err), g.Close())
	}
	s := newServer(log, o, newGuestOf(m, &o, prog, log), logLost)
	s.vm = m
	return s, g, prog, nil
}

// observe finds out what runs in the guest, notes it in o, and returns it as a machine.
func observe(g *foreign.Guest, v VM, o *options, log *slog.Logger) (_ *machine.Machine, prog bootable, err error) {
	o.vm = fmt.Sprintf("process %d (%s), by %s", g.Process.PID, g.Process.VMM, g.Way)
	o.given, o.vcpus, o.memory, o.tick = func(string) bool { return false }, g.VCPUs(), g.Size(), 0
	out := machine.Outside{Guest: g, Log: log}
	var none error
	err = g.Stop(context.Background(), func(cpus []foreign.CPU) error {
		out.Linux, none = g.FindLinux(cpus)
		return nil
	})
	switch {
	case err != nil:
		return nil, prog, err
	case none == nil && v.Slide == 0:
		o.kernel = v.Image
		if o.kernel == "" {
			if o.kernel, err = findKernel(out.Linux.Release); err != nil {
				return nil, prog, err
			}
		}
		k, err := linux.Load(o.kernel)
		if err != nil {
			return nil, prog, fmt.Errorf("the guest's kernel: %w", err)
		}
		out.Kernel, prog.linux = k, &machine.LinuxConfig{Kernel: k}
	case v.Image != "":
		img, err := guest.LoadAny(v.Image)
		if err != nil {
			return nil, prog, fmt.Errorf("--vm-image: %w", err)
		}
		o.guest, prog.image = v.Image, img
		out.View = guest.MoveView(img, guest.GVA(v.Slide))
	default:
		o.guest, out.View = "unknown", guest.Nameless()
	}
	m, err := machine.Observe(out)
	return m, prog, err
}

// kernelPlaces are where distributions have the image of a kernel, by its
// release. A file with debug information comes first.
var kernelPlaces = []string{
	"/usr/lib/debug/boot/vmlinux-%s", "/usr/lib/debug/lib/modules/%s/vmlinux", "/boot/vmlinux-%s",
	"/boot/vmlinuz-%s", "/usr/lib/modules/%s/vmlinuz", "/lib/modules/%s/vmlinuz",
}

// findKernel returns the image of a kernel on this host.
func findKernel(release string) (string, error) {
	if release == "" || strings.ContainsAny(release, "/\x00") {
		return "", &foreign.Error{Code: foreign.CodeImageDiffers, Text: fmt.Sprintf("the guest's kernel calls itself %q: --vm-image FILE names its image", release)}
	}
	var tried []string
	for _, form := range kernelPlaces {
		path := fmt.Sprintf(form, release)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		tried = append(tried, filepath.Dir(path))
	}
	return "", &foreign.Error{Code: foreign.CodeImageDiffers, Text: fmt.Sprintf("the image of the guest's kernel %s is not on this host (%s): --vm-image FILE names it", release, strings.Join(tried, ", "))}
}
