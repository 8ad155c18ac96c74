package http

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// iocb is Linux's structure of that name (include/uapi/linux/aio_abi.h).
type iocb struct {
	data       uint64
	key, flags uint32
	opcode     uint16
	priority   int16
	fd         uint32
	buf, bytes uint64
	offset     int64
	reserved   uint64
	more       uint32
	event      uint32
}

// fsyncAsync syncs a file by asynchronous I/O, n times, one after the other.
func fsyncAsync(fd, n int) error {
	var ring uintptr
	if _, _, err := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&ring)), 0); err != 0 {
		return err
	}
	for range n {
		request := &iocb{opcode: 2 /* IOCB_CMD_FSYNC */, fd: uint32(fd)}
		if _, _, err := unix.Syscall(unix.SYS_IO_SUBMIT, ring, 1, uintptr(unsafe.Pointer(&request))); err != 0 {
			return err
		}
		var done [4]uint64 // struct io_event
		if _, _, err := unix.Syscall6(unix.SYS_IO_GETEVENTS, ring, 1, 1, uintptr(unsafe.Pointer(&done)), 0, 0); err != 0 {
			return err
		}
	}
	return nil
}
