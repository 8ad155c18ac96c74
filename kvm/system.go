package kvm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// DefaultPath is the KVM device of a host.
const DefaultPath = "/dev/kvm"

// System is an open KVM device. Its methods may be called from any thread, but
// not at the same time as Close.
type System struct {
	path     string
	fd       descriptor
	mmapSize int // of a vCPU's shared mapping
}

// Open opens the KVM device at path ("" is DefaultPath) and checks that it has
// API version 12 and everything that this package needs. The error is an
// *OpenError with a reason for errors.Is.
func Open(path string) (_ *System, err error) {
	if path == "" {
		path = DefaultPath
	}
	n, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(path, err)
	}
	s := &System{path: path}
	s.fd.setFD(n)
	defer func() {
		if err != nil {
			s.fd.close()
		}
	}()

	v, err := ioctl(s.fd.num(), ioGetAPIVersion, 0)
	if err != nil {
		return nil, openError(path, err)
	}
	if err := checkHost(path, v, s.Check); err != nil {
		return nil, err
	}
	if s.mmapSize, err = ioctl(s.fd.num(), ioGetVCPUMmapSize, 0); err != nil {
		return nil, openError(path, fmt.Errorf("get vcpu mmap size: %w", err))
	}
	if s.mmapSize < sizeofRunPage {
		return nil, &OpenError{Path: path, Reason: ErrAPIVersion, Detail: fmt.Sprintf(
			"a vcpu's shared memory has %d bytes, struct kvm_run has %d", s.mmapSize, sizeofRunPage)}
	}
	return s, nil
}

// checkHost says whether a kernel with this API version and these capabilities
// will do.
func checkHost(path string, version int, check func(Capability) int) error {
	if version != apiVersion {
		return &OpenError{Path: path, Reason: ErrAPIVersion,
			Detail: fmt.Sprintf("the kernel has %d, this program needs %d", version, apiVersion),
			Hint:   "use linux 4.13 or newer"}
	}
	for _, r := range required {
		if check(r.cap) == 0 {
			return &OpenError{Path: path, Err: &CapabilityError{Cap: r.cap, Since: r.since},
				Hint: "use a newer kernel"}
		}
	}
	return nil
}

// Path returns the path that the system was opened at.
func (s *System) Path() string { return s.path }

// APIVersion returns the version of the KVM API: always 12, since Open accepts
// no other.
func (s *System) APIVersion() int { return apiVersion }

// Check returns the result of KVM_CHECK_EXTENSION for c: 0 if the host lacks it,
// otherwise 1 or the value that the API document defines for c.
func (s *System) Check(c Capability) int { return checkExtension(&s.fd, c) }

// checkExtension asks a system's or a VM's descriptor. An error means "no":
// the kernel answers 0, not an error, for numbers it does not know.
func checkExtension(d *descriptor, c Capability) int {
	n, err := ioctl(d.num(), ioCheckExtension, uintptr(c))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// vcpuMmapSize returns the size in bytes of the memory that a vCPU shares with
// the kernel.
func (s *System) vcpuMmapSize() int { return s.mmapSize }

// CreateVM creates a VM without memory and vCPUs, and without any interrupt
// controller in the kernel: VM.CreateIRQChip adds those.
func (s *System) CreateVM() (*VM, error) {
	if !s.fd.open() {
		return nil, fmt.Errorf("create vm: system %w", ErrClosed)
	}
	// KVM_CREATE_VM registers an MMU notifier and returns EINTR when a signal
	// (such as one of the Go scheduler's) arrives during that. Nothing has
	// happened then, and the call has to be repeated.
	n, err := retryEINTR(func() (int, error) { return ioctl(s.fd.num(), ioCreateVM, 0) })
	if err != nil {
		return nil, fmt.Errorf("create vm: %w", openError(s.path, err))
	}
	vm := &VM{mmapSize: s.mmapSize, slots: make(map[int]region)}
	vm.fd.setFD(n)
	return vm, nil
}

// retryEINTR calls f until it returns something other than EINTR. It is for
// calls that do nothing when they are interrupted, and never for KVM_RUN.
func retryEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Close closes the device; its VMs live on. A second call does nothing and
// returns nil.
func (s *System) Close() error {
	if err := s.fd.close(); err != nil {
		return fmt.Errorf("close %s: %w", s.path, err)
	}
	return nil
}
