package http

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// checkPlaces checks what the start needs beside the guest: files, folders and addresses. Both the start and --check-config call it,
// so that neither knows a fault that the other does not. It makes and opens nothing that stays.
func (o *options) checkPlaces() error {
	for _, x := range []struct {
		flag  string
		check func() error
	}{
		{"log-file", o.checkLogFile},
		{"state", o.checkState},
		{"socket", o.checkSocketFolder},
		{"disk", o.checkDisks},
	} {
		if err := x.check(); err != nil {
			return o.of(x.flag, err)
		}
	}
	if o.fleet.URL == "" {
		return nil
	}
	err := o.fleet.CheckFiles()
	var of *fleet.FileError
	if errors.As(err, &of) {
		return o.of("fleet-"+of.Flag, err)
	}
	return err
}

// checkLogFile checks that lines can be added to the log's file.
func (o *options) checkLogFile() error {
	if o.logFile == "" {
		return nil
	}
	st, err := os.Stat(o.logFile)
	switch {
	case err == nil && st.IsDir():
		err = &fs.PathError{Op: "open", Path: o.logFile, Err: syscall.EISDIR}
	case err == nil:
		if err = unix.Access(o.logFile, unix.W_OK); err != nil {
			err = &fs.PathError{Op: "open", Path: o.logFile, Err: err}
		}
	case errors.Is(err, fs.ErrNotExist):
		if err = unix.Access(filepath.Dir(o.logFile), unix.W_OK|unix.X_OK); err != nil {
			err = &fs.PathError{Op: "open", Path: o.logFile, Err: err}
		}
	}
	if err != nil {
		return fmt.Errorf("log file: %w", err)
	}
	return nil
}

// checkState checks the folder of --state, and the file in it.
func (o *options) checkState() error {
	if o.state == "" {
		return nil
	}
	if err := files.Private(o.state, o.stateUsers()...); err != nil {
		return fmt.Errorf("--state %w", err)
	}
	if st, err := os.Stat(o.state); err == nil && !st.IsDir() {
		return fmt.Errorf("--state %s: %w", o.state, syscall.ENOTDIR)
	}
	dir, err := filepath.EvalSymlinks(o.state)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--state: %w", err)
	}
	_, err = (&state{path: filepath.Join(dir, stateName)}).read(o.stateUsers()...)
	return err
}

// checkSocketFolder checks that nobody else can put a socket in the place of ours.
func (o *options) checkSocketFolder() error {
	if o.socket == "" {
		return nil // the default's folder is made by us, or by the package
	}
	dir := filepath.Dir(o.socket)
	also := o.stateUsers()
	if system := filepath.Dir(api.SystemSocket); dir == system {
		if st, err := os.Stat(system); err == nil { // of the package's user
			also = append(also, int(st.Sys().(*syscall.Stat_t).Uid))
		}
	}
	// In a folder as /tmp, what is there stays its owner's.
	if err := files.Trusted(filepath.Join(dir, "."), also...); err != nil {
		if st, serr := os.Stat(dir); serr != nil || st.Mode()&fs.ModeSticky == 0 || files.Trusted(filepath.Dir(dir), also...) != nil {
			return fmt.Errorf("--socket %s: %w", o.socket, err)
		}
	}
	return nil
}

// checkDisks checks that the disks are there and may be used.
func (o *options) checkDisks() error {
	for _, d := range o.disks {
		mode := uint32(unix.R_OK | unix.W_OK)
		if d.ReadOnly {
			mode = unix.R_OK
		}
		st, err := os.Stat(d.Path)
		if err == nil && st.IsDir() {
			err = syscall.EISDIR
		}
		if err == nil {
			err = unix.Access(d.Path, mode)
		}
		if e := (*fs.PathError)(nil); errors.As(err, &e) {
			err = e.Err
		}
		if err != nil {
			return fmt.Errorf("--disk %s: %w", d.Path, err)
		}
	}
	return nil
}

// loopbackFault says what is wrong with an address to listen on, or returns "".
func loopbackFault(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil || !onLoopback(addr) {
		return "not 127.0.0.1:PORT, [::1]:PORT or localhost:PORT"
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Sprintf("port %q: want 0 to 65535", port)
	}
	return ""
}

// maxTrial bounds the memory of a guest that is tried.
const maxTrial = 1 << 40

// checkBoot loads the guest into memory of its size, as the start does, and gives it back.
func (o *options) checkBoot(prog bootable) error {
	var ranges []guest.MemoryRange
	if prog.linux != nil {
		l, err := linux.LayoutFor(o.memory)
		if err != nil {
			return o.ofBoot(err)
		}
		ranges = l.Ranges()
	} else {
		l, err := guest.LayoutFor(o.memory)
		if err != nil {
			return o.ofBoot(err)
		}
		ranges = l.Ranges()
	}
	mem := &guest.Memory{}
	for _, r := range ranges {
		if r.Size > maxTrial {
			return nil
		}
		b, err := unix.Mmap(-1, 0, int(r.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			return nil // this host may have less memory than the one that is checked for
		}
		defer unix.Munmap(b)
		if err := mem.Add(r.Base, b, r.Name); err != nil {
			return o.ofBoot(err)
		}
	}
	if prog.linux != nil {
		_, err := linux.Boot(mem, prog.linux.Kernel, linux.BootOptions{RAM: o.memory, Cmdline: o.cmdline, Initrd: prog.linux.Initrd, Slide: prog.linux.Slide})
		return o.ofBoot(err)
	}
	_, err := guest.Boot(mem, prog.image, guest.BootOptions{VCPUs: o.vcpus, RAM: o.memory, Cmdline: o.cmdline})
	return o.ofBoot(err)
}

// ofBoot says where the guest's memory is configured, in an error of a guest that cannot be booted in it.
func (o *options) ofBoot(err error) error {
	if err == nil || !strings.Contains(err.Error(), "boot ") && !strings.Contains(err.Error(), "lay out") {
		return err
	}
	return o.of("memory", fmt.Errorf("--memory %s: %w", formatSize(o.memory), err))
}
