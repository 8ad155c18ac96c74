package kvm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ThreadName is what Bind calls the thread of a vCPU, in /proc/PID/task/TID/comm (proc(5)) and with that in top -H and
// ps -L, for those who pin it.
func ThreadName(cpu int) string { return fmt.Sprintf("vcpu%d", cpu) }

// nameThread names the calling thread, and returns the name that it had. Where that is refused it keeps its name, which
// nothing but people needs.
func nameThread(name string) (had string) {
	var old [16]byte
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return name
	}
	// SAFETY: the kernel writes 16 bytes, the last of them 0, and reads a string that ends with 0, of which it takes 16
	// bytes at most (PR_GET_NAME, PR_SET_NAME in prctl(2)); it keeps no pointer.
	_ = unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&old)), 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0)
	return unix.ByteSliceToString(old[:])
}
