package kvm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ThreadName is the name that Bind gives the thread of a vCPU, in
// /proc/PID/task/TID/comm (proc(5)) and so in top -H and ps -L, for users who
// pin it.
func ThreadName(cpu int) string { return fmt.Sprintf("vcpu%d", cpu) }

// nameThread names the calling thread, and returns its old name. If that fails
// it keeps its name, which only people need.
func nameThread(name string) (had string) {
	var old [16]byte
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return name
	}
	// SAFETY: the kernel writes 16 bytes, the last of them 0, and reads at most 16
	// bytes of a string that ends with 0 (PR_GET_NAME, PR_SET_NAME in prctl(2));
	// it keeps no pointer.
	_ = unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&old)), 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0)
	return unix.ByteSliceToString(old[:])
}
