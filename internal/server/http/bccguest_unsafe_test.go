package http

import (
	"syscall"
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

// sleep calls nanosleep or clock_nanosleep, by the number of the system call.
func sleep(nr uintptr, t *unix.Timespec) {
	if nr == unix.SYS_NANOSLEEP {
		_, _, _ = unix.RawSyscall(nr, uintptr(unsafe.Pointer(t)), 0, 0)
		return
	}
	_, _, _ = unix.RawSyscall6(nr, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(t)), 0, 0, 0)
}

// openBy opens a file by open, openat or openat2, by the number of the system call. The result is below 0 on an error.
func openBy(nr uintptr, name string, flags int) int {
	path, err := unix.BytePtrFromString(name)
	exitOnError(err)
	var fd uintptr
	var e syscall.Errno
	here := unix.AT_FDCWD
	how := unix.OpenHow{Flags: uint64(flags)}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	switch nr {
	case unix.SYS_OPEN:
		fd, _, e = unix.RawSyscall(nr, uintptr(unsafe.Pointer(path)), uintptr(flags), 0o600)
	case unix.SYS_OPENAT:
		fd, _, e = unix.RawSyscall6(nr, uintptr(here), uintptr(unsafe.Pointer(path)), uintptr(flags), 0o600, 0, 0)
	default:
		fd, _, e = unix.RawSyscall6(nr, uintptr(here), uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0, 0)
	}
	if e != 0 {
		return -1
	}
	return int(fd)
}

// statBy asks for a file by stat or lstat, by the number of the system call: the library takes another for both.
func statBy(nr uintptr, name string) {
	path, err := unix.BytePtrFromString(name)
	exitOnError(err)
	var st unix.Stat_t
	_, _, _ = unix.RawSyscall(nr, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&st)), 0)
}
