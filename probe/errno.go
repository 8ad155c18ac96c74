package probe

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrnoName returns the symbolic name of an errno ("EILSEQ"), or "errno N"
// where it has none.
func ErrnoName(e syscall.Errno) string {
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return fmt.Sprintf("errno %d", uint(e))
}
