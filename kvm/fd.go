package kvm

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// descriptor owns one file descriptor. The zero value owns none.
type descriptor struct {
	n atomic.Int64 // the number plus one; 0: none, or closed
}

// setFD makes d the owner of n.
func (d *descriptor) setFD(n int) {
	if !d.n.CompareAndSwap(0, int64(n)+1) {
		panic("BUG: kvm: descriptor owns a file already")
	}
}

// num returns the number, or -1 after close: the kernel then answers EBADF,
// and no other file can be hit.
func (d *descriptor) num() int { return int(d.n.Load()) - 1 }

// open reports whether d owns a file.
func (d *descriptor) open() bool { return d.n.Load() != 0 }

// close closes the file once; further calls do nothing. close(2) is never
// retried: on Linux the number is free again even when it fails.
func (d *descriptor) close() error {
	n := d.n.Swap(0)
	if n == 0 {
		return nil
	}
	return unix.Close(int(n) - 1)
}
