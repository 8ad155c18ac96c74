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

// kernelInfo is the information about a Linux guest's kernel that programs use.
// It is read on first use: not every guest has programs.
type kernelInfo struct {
	image *linux.Kernel
	path  string // of the image's file
	view  func() guest.View
	log   *slog.Logger

	once  sync.Once
	known bpf.Kernel
}

// linuxGuest has the methods of a Guest that runs Linux.
type linuxGuest interface {
	// kernel returns nil where the guest runs something else.
	kernel() *kernelInfo
}

// read reads the kernel's files.
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
	// The names that distributions use, and that libbpf looks for.
	if text, err := files.Read(kernelConfig(k.path, k.image.Version), bpf.MaxKernelConfig); err == nil {
		k.known.Config = bpf.KernelConfig(string(text))
	} else if !errors.Is(err, os.ErrNotExist) {
		k.log.Warn("programs that need the kernel's configuration are refused", "error", err)
	}
}

// kernelConfig returns the path at which distributions put the configuration of a
// kernel's image.
func kernelConfig(image, version string) string {
	return filepath.Join(filepath.Dir(image), "config-"+version)
}

// lookup finds a symbol of the running kernel.
func (k *kernelInfo) lookup(name string) (guest.GVA, bool) {
	s, err := k.view().Lookup(name)
	return s.Addr, err == nil
}

// programs returns the information about the kernel that programs may use.
func (k *kernelInfo) programs() *bpf.Kernel {
	k.once.Do(k.read)
	return &k.known
}

// reader returns the reader of the current boot's tasks.
func (k *kernelInfo) reader() *linux.Tasks { return k.view().(*linux.View).TaskReader() }
