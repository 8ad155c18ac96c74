package http

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// kernelInfo is what programs are told of the kernel of a Linux guest. It is read when it
// is asked for first: not every guest has programs.
type kernelInfo struct {
	image *linux.Kernel
	path  string // of the image's file
	view  func() guest.View
	log   *slog.Logger

	once  sync.Once
	known bpf.Kernel
}

// linuxGuest is what a Guest has that runs Linux.
type linuxGuest interface {
	// kernel returns nil where the guest runs something else.
	kernel() *kernelInfo
}

// read reads what the kernel's files say.
func (k *kernelInfo) read() {
	k.known = bpf.Kernel{Version: bpf.KernelVersion(k.image.Version), Symbol: func(name string) (uint64, bool) {
		at, ok := k.lookup(name)
		return uint64(at), ok
	}}
	types, err := k.image.Types()
	if err == nil {
		k.known.Types = append(k.known.Types, types.Spec)
	} else {
		k.log.Warn("programs that need the kernel's types are refused", "error", err)
	}
	// As distributions name it, and as libbpf looks for it.
	if text, err := files.Read(kernelConfig(k.path, k.image.Version), bpf.MaxKernelConfig); err == nil {
		k.known.Config = bpf.KernelConfig(string(text))
	} else if !errors.Is(err, os.ErrNotExist) {
		k.log.Warn("programs that need the kernel's configuration are refused", "error", err)
	}
}

// kernelConfig is where the configuration of a kernel's image is, if it is anywhere.
func kernelConfig(image, version string) string {
	return filepath.Join(filepath.Dir(image), "config-"+version)
}

// lookup finds a symbol of the kernel as it runs.
func (k *kernelInfo) lookup(name string) (guest.GVA, bool) {
	s, err := k.view().Lookup(name)
	return s.Addr, err == nil
}

// programs returns what programs may ask of the kernel.
func (k *kernelInfo) programs() *bpf.Kernel {
	k.once.Do(k.read)
	return &k.known
}

// reader returns how the tasks of the current boot are read.
func (k *kernelInfo) reader() *linux.Tasks { return k.view().(*linux.View).TaskReader() }
