package jail

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// seccompFilter calls seccomp(SECCOMP_SET_MODE_FILTER) with a program of at most 4096 instructions.
func seccompFilter(p []unix.SockFilter, flags uint) (uintptr, error) {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	// SAFETY: the conversion is in the argument list of the system call, so prog
	// stays alive and in place until that returns (unsafe.Pointer, rule 4), and so
	// does the memory that it points to. The kernel copies both.
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// seccompKnows calls seccomp(SECCOMP_GET_ACTION_AVAIL).
func seccompKnows(action uint32) bool {
	// SAFETY: as above.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}

// setCapabilities sets the effective and permitted capabilities of all threads,
// and leaves nothing to inherit.
func setCapabilities(set [2]uint32) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // process 0: each thread itself
	d := [2]unix.CapUserData{{Effective: set[0], Permitted: set[0]}, {Effective: set[1], Permitted: set[1]}}
	// SAFETY: as above; the kernel takes two elements with this version. psx keeps its arguments alive (uintptrescapes).
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d[0])), 0)
	if errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// capabilities returns the permitted capabilities of this thread.
func capabilities() (set [2]uint32, err error) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	err = unix.Capget(&h, &d[0])
	return [2]uint32{d[0].Permitted, d[1].Permitted}, err
}

// prctlAllThreads calls prctl on all threads.
func prctlAllThreads(option int, arg uintptr) error {
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, uintptr(option), arg, 0, 0, 0, 0); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}
