package kvm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

func TestOpen(t *testing.T) {
	kvmtest.Require(t)
	before := kvmFiles()
	s, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	if s.Path() != "/dev/kvm" || s.APIVersion() != 12 || s.vcpuMmapSize() < 2352 {
		t.Errorf("path %q, api version %d, mmap size %d", s.Path(), s.APIVersion(), s.vcpuMmapSize())
	}
	if s.Check(CapUserMemory) != 1 || s.Check(CapMaxVCPUs) < 1 || s.Check(1<<20) != 0 {
		t.Errorf("capabilities: user memory %d, vcpus %d, unknown %d; want 1, at least 1, 0",
			s.Check(CapUserMemory), s.Check(CapMaxVCPUs), s.Check(1<<20))
	}
	if kvmFiles() != before+1 {
		t.Errorf("%d kvm descriptors, want %d", kvmFiles(), before+1)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if kvmFiles() != before {
		t.Errorf("%d kvm descriptors after Close, want %d", kvmFiles(), before)
	}
	if s.Check(CapUserMemory) != 0 {
		t.Error("a closed system has a capability")
	}
	if _, err := s.CreateVM(); !errors.Is(err, ErrClosed) {
		t.Errorf("vm of a closed system: %v, want %v", err, ErrClosed)
	}
	if _, err := s.SupportedCPUID(); !errors.Is(err, unix.EBADF) {
		t.Errorf("cpuid of a closed system: %v, want EBADF", err)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := openFiles()
	for _, tt := range []struct {
		name, path string
		want       error
		text       string // somewhere in the error
	}{
		{"missing", filepath.Join(dir, "kvm"), ErrNoKVM, "modprobe kvm_intel"},
		{"through a file", filepath.Join(file, "kvm"), unix.ENOTDIR, "not a directory"},
		{"directory", dir, ErrNotKVM, "/dev/kvm, character device 10:232"},
		{"regular file", file, ErrNotKVM, "inappropriate ioctl"},
		{"other device", "/dev/null", ErrNotKVM, "open /dev/null: not a kvm device"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Open(tt.path)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			var oe *OpenError
			if !errors.As(err, &oe) || oe.Path != tt.path || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v; want an OpenError that is %q and says %q", err, tt.want, tt.text)
			}
		})
	}
	if n := openFiles(); n != before {
		t.Errorf("%d open files, want %d", n, before)
	}
}

// The errors that a test cannot provoke on every machine.
func TestOpenErrorClasses(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want error
		text string
	}{
		{unix.ENOENT, ErrNoKVM, "open /dev/kvm: no kvm: no such file or directory (load the module: modprobe kvm_intel or modprobe kvm_amd; " +
			"in the firmware setup, virtualization (VT-x, SVM) must be on; in a virtual machine, its host must offer nested virtualization)"},
		{unix.ENXIO, ErrNoKVM, "open /dev/kvm: no kvm: the device node exists, but has no driver: no such device or address (load the module: modprobe kvm_intel or modprobe kvm_amd)"},
		{unix.ENODEV, ErrNoKVM, "open /dev/kvm: no kvm: the device node exists, but has no driver: no such device (load the module: modprobe kvm_intel or modprobe kvm_amd)"},
		{unix.EACCES, ErrPermission, "open /dev/kvm: permission denied (add the user to the device's group, then log in again: usermod -aG kvm USER; in a container, pass the device in)"},
		{unix.EPERM, ErrPermission, "open /dev/kvm: permission denied: operation not permitted (add the user to the device's group, then log in again: usermod -aG kvm USER; in a container, pass the device in)"},
		{unix.ENOTTY, ErrNotKVM, "open /dev/kvm: not a kvm device: inappropriate ioctl for device (the device is /dev/kvm, character device 10:232)"},
		{unix.EBUSY, ErrBusy, "open /dev/kvm: virtualization in use: device or resource busy (another hypervisor on this host holds it: stop that first)"},
		{unix.EMFILE, unix.EMFILE, "open /dev/kvm: too many open files"},
	} {
		err := openError("/dev/kvm", tt.err)
		if !errors.Is(err, tt.want) || !errors.Is(err, tt.err) {
			t.Errorf("%v: is not %v and the errno", err, tt.want)
		}
		if err.Error() != tt.text {
			t.Errorf("got  %s\nwant %s", err, tt.text)
		}
	}
	if err := openError("x", unix.EACCES); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v is not fs.ErrPermission", err)
	}
}

func TestCheckHost(t *testing.T) {
	all := func(Capability) int { return 1 }
	for _, tt := range []struct {
		name    string
		version int
		check   func(Capability) int
		want    error
		text    string
	}{
		{"good", 12, all, nil, ""},
		{"older", 11, all, ErrAPIVersion, "open kvm: wrong kvm api version: the kernel has 11, this program needs 12 (use linux 4.13 or newer)"},
		{"newer", 13, all, ErrAPIVersion, "open kvm: wrong kvm api version: the kernel has 13, this program needs 12 (use linux 4.13 or newer)"},
		{"no capabilities", 12, func(Capability) int { return 0 }, ErrCapability,
			"open kvm: missing kvm capability: KVM_CAP_USER_MEMORY, in linux since 2.6.25 (use a newer kernel)"},
		{"one missing", 12, func(c Capability) int {
			if c == CapImmediateExit {
				return 0
			}
			return 1
		}, ErrCapability,
			"open kvm: missing kvm capability: KVM_CAP_IMMEDIATE_EXIT, in linux since 4.13 (use a newer kernel)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := checkHost("kvm", tt.version, tt.check)
			if tt.want == nil {
				if err != nil {
					t.Errorf("got %v, want nil", err)
				}
				return
			}
			if !errors.Is(err, tt.want) || err.Error() != tt.text {
				t.Errorf("got %v, want %s", err, tt.text)
			}
		})
	}
	var ce *CapabilityError
	if err := checkHost("kvm", 12, func(Capability) int { return 0 }); !errors.As(err, &ce) || ce.Cap != CapUserMemory {
		t.Errorf("got %v, want a CapabilityError of %v", err, CapUserMemory)
	}
	if got, want := (&CapabilityError{Cap: CapXSave2}).Error(), "missing kvm capability: KVM_CAP_XSAVE2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRetryEINTR(t *testing.T) {
	calls := 0
	n, err := retryEINTR(func() (int, error) {
		if calls++; calls < 4 {
			return -1, unix.EINTR
		}
		return 7, nil
	})
	if n != 7 || err != nil || calls != 4 {
		t.Errorf("got %d, %v after %d calls; want 7, nil after 4", n, err, calls)
	}
	calls = 0
	if _, err = retryEINTR(func() (int, error) { calls++; return -1, unix.ENOMEM }); err != unix.ENOMEM || calls != 1 {
		t.Errorf("got %v after %d calls; want ENOMEM after 1", err, calls)
	}
}

func TestDescriptor(t *testing.T) {
	var d descriptor
	if d.num() != -1 || d.open() || d.close() != nil {
		t.Errorf("zero value: number %d, open %v", d.num(), d.open())
	}
	// Number 0 is a descriptor like any other: take a duplicate's place.
	n, err := unix.FcntlInt(uintptr(unix.Stderr), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.setFD(n)
	if d.num() != n || !d.open() {
		t.Errorf("number %d, open %v; want %d, true", d.num(), d.open(), n)
	}
	func() {
		defer func() {
			if s, _ := recover().(string); !strings.HasPrefix(s, "BUG: ") {
				t.Errorf("owning a second file: recovered %q, want a panic", s)
			}
		}()
		d.setFD(n)
	}()
	for range 2 {
		if err := d.close(); err != nil {
			t.Error(err)
		}
		if d.num() != -1 || d.open() {
			t.Errorf("closed: number %d, open %v; want -1, false", d.num(), d.open())
		}
	}
}
