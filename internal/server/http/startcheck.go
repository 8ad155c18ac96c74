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
	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/internal/server/service"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// checkPlaces checks the requirements of the start other than the guest: files,
// folders and addresses. Both the start and --check-config call it, so that both
// find the same faults. It leaves nothing created or open.
func (o *options) checkPlaces(getenv func(string) string) error {
	for _, x := range []struct {
		flag  string
		check func() error
	}{
		{"log-file", o.checkLogFile},
		{"state", o.checkState}, {"cache", o.checkCache},
		{"socket", func() error { return o.checkSocket(service.Listens(getenv)) }},
		{"disk", o.checkDisks},
	} {
		if err := x.check(); err != nil {
			return o.flagError(x.flag, err)
		}
	}
	if o.fleet.URL == "" {
		return nil
	}
	err := o.fleet.CheckFiles()
	var of *fleet.FileError
	if errors.As(err, &of) {
		return o.flagError("fleet-"+of.Flag, err)
	}
	return err
}

// checkLogFile checks that the log's file can be appended to.
func (o *options) checkLogFile() error {
	if o.logFile == "" {
		return nil
	}
	st, err := os.Stat(o.logFile)
	switch {
	case err == nil && st.IsDir():
		err = &fs.PathError{Op: "open", Path: o.logFile, Err: syscall.EISDIR}
	case err == nil: // not opened: the reader of a pipe would take the close for its end
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

// checkState checks the folder of --state, and the file in that folder.
func (o *options) checkState() error {
	if o.state == "" {
		return nil
	}
	if err := files.CheckPrivate(o.state, o.stateUsers()...); err != nil {
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
	_, err = saved.Read(dir, o.stateUsers()...)
	return err
}

// checkCache checks the folder of --cache, if the user has named one.
func (o *options) checkCache() error {
	if o.cache == "" || o.cache == noCache {
		return nil
	}
	if err := files.CheckPrivate(filepath.Join(o.cache, cacheFolder), o.stateUsers()...); err != nil {
		return fmt.Errorf("--cache %w", err)
	}
	return nil
}

// checkSocket checks that a socket can be created at its path, and that no other
// user can replace it. A daemon that already serves there is not a fault: its
// configuration may be the one that is checked. For a socket from a service
// manager, only the folder's owners are checked.
func (o *options) checkSocket(given bool) error {
	if o.socket == "" {
		return nil // the default's folder is made by us, or by the package
	}
	switch err := o.checkSocketFolder(filepath.Dir(o.socket), given); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--socket %s: %w: create the folder first, or choose another", o.socket, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("--socket %s: %w: choose a folder that this user can write to", o.socket, err)
	case err != nil:
		return fmt.Errorf("--socket %s: %w", o.socket, err)
	}
	if given {
		return nil
	}
	if _, err := socketAt(o.socket); err != nil {
		return err
	}
	return files.CheckLock(o.socket + api.LockSuffix)
}

// checkSocketFolder checks the folder of the socket.
func (o *options) checkSocketFolder(dir string, given bool) error {
	also := o.stateUsers()
	if system := filepath.Dir(api.SystemSocket); dir == system {
		if st, err := os.Stat(system); err == nil { // owned by the package's user
			also = append(also, int(st.Sys().(*syscall.Stat_t).Uid))
		}
	}
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return err
	}
	// In a folder with the sticky bit, such as /tmp, files still belong to their
	// owners.
	if err := files.CheckTrusted(filepath.Join(dir, "."), also...); err != nil && (st.Mode()&fs.ModeSticky == 0 || files.CheckTrusted(filepath.Dir(dir), also...) != nil) {
		return err
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil && !given {
		return &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}

// checkKVM checks that the device of --kvm is KVM, as the start does when it
// opens the device. Without the flag nothing is checked: the machine that checks
// a configuration may have no KVM.
func (o *options) checkKVM() error {
	if o.kvm == "" {
		return nil
	}
	sys, err := kvm.Open(o.kvm)
	if err != nil {
		return o.flagError("kvm", err)
	}
	return sys.Close()
}

// checkDisks checks that the disks exist and may be used.
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

// loopbackFault describes what makes an address unfit to listen on, or returns
// "".
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

// maxTrial bounds the memory of a guest that is booted as a check.
const maxTrial = 1 << 40

// checkBoot loads the guest into memory of its size, as the start does, and
// frees the memory.
func (o *options) checkBoot(prog bootable) error {
	var ranges []guest.MemoryRange
	if prog.linux != nil {
		l, err := linux.LayoutFor(o.memory)
		if err != nil {
			return o.bootError(err)
		}
		ranges = l.Ranges()
	} else {
		l, err := guest.LayoutFor(o.memory)
		if err != nil {
			return o.bootError(err)
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
			return nil // this host may have less memory than the one that the configuration is for
		}
		defer unix.Munmap(b)
		if err := mem.Add(r.Base, b, r.Name); err != nil {
			return o.bootError(err)
		}
	}
	if prog.linux != nil {
		_, err := linux.Boot(mem, prog.linux.Kernel, linux.BootOptions{RAM: o.memory, Cmdline: o.cmdline, Initrd: prog.linux.Initrd, Slide: prog.linux.Slide})
		return o.bootError(err)
	}
	_, err := guest.Boot(mem, prog.image, guest.BootOptions{VCPUs: o.vcpus, RAM: o.memory, Cmdline: o.cmdline})
	return o.bootError(err)
}

// guestError adds to an error of creating a machine which option is at fault:
// the guest's memory, or the device of --kvm.
func (o *options) guestError(err error) error {
	if o.kvm != "" && strings.Contains(err.Error(), "open "+o.kvm+": ") {
		return o.flagError("kvm", err)
	}
	return o.bootError(err)
}

// bootError adds where the guest's memory is configured to the error of a guest
// that cannot be booted in that memory.
func (o *options) bootError(err error) error {
	if err == nil || !strings.Contains(err.Error(), "boot ") && !strings.Contains(err.Error(), "lay out") {
		return err
	}
	return o.flagError("memory", fmt.Errorf("--memory %s: %s", formatSize(o.memory), strings.TrimPrefix(err.Error(), "new machine: ")))
}
