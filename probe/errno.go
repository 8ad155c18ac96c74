package probe

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrnoName returns the symbolic name of an errno ("EILSEQ"), or "errno N" if it has
// none. 95 is EOPNOTSUPP, the kernel's word for it; ENOTSUP is the C library's other
// name.
func ErrnoName(e syscall.Errno) string {
	if e == syscall.EOPNOTSUPP {
		return "EOPNOTSUPP"
	}
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return fmt.Sprintf("errno %d", uint(e))
}
