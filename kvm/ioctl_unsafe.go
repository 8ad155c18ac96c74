package kvm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl calls ioctl(fd, op, arg) once with a plain number. It never retries:
// a caller that may do so says so (see retryEINTR).
func ioctl(fd int, op, arg uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), op, arg)
	if errno != 0 {
		return int(r), errno
	}
	return int(r), nil
}

// ioctlPtr calls ioctl(fd, op, arg) once with a pointer to a structure or buffer
// that is at least as large as the kernel expects op's argument to be.
func ioctlPtr[T any](fd int, op uintptr, arg *T) (int, error) {
	// SAFETY: the conversion stands in the argument list of the system call,
	// so arg stays alive and in place until it returns (unsafe.Pointer, rule
	// 4). The size is right because every caller passes the type that is
	// proven by TestStructSizes against the number in op, or the first byte of
	// a buffer whose length it computed from the count it wrote there.
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), op, uintptr(unsafe.Pointer(arg)))
	if errno != 0 {
		return int(r), errno
	}
	return int(r), nil
}
