package oracle

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of ptrace(2) that x/sys has no function for.
const (
	ptraceGetFPRegs         = 14
	ptraceSetFPRegs         = 15
	ptraceSysemuSingleStep  = 32
	ptraceGetSigInfo        = 0x4202
	fpSize                  = 512 // struct user_fpregs_struct
	sigInfoSize             = 128
	sigInfoCode, sigInfoPtr = 8, 16
)

// ptrace makes a request about the child with the buffer b.
func ptrace(request, pid int, b []byte) error {
	var p unsafe.Pointer
	if len(b) > 0 {
		// SAFETY: the kernel reads or writes len(b) bytes at most, while b is alive.
		p = unsafe.Pointer(&b[0])
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), 0, uintptr(p), 0, 0)
	runtime.KeepAlive(b)
	if errno != 0 {
		return errno
	}
	return nil
}

// stepEmulatingCalls lets the child execute one instruction, and stops it before
// a system call instead of making it.
func stepEmulatingCalls(pid int) error { return ptrace(ptraceSysemuSingleStep, pid, nil) }

func getFP(pid int) ([]byte, error) {
	b := make([]byte, fpSize)
	return b, ptrace(ptraceGetFPRegs, pid, b)
}

func setFP(pid int, b []byte) error { return ptrace(ptraceSetFPRegs, pid, b) }

// signalInfo is the part of siginfo_t that tells exceptions apart.
type signalInfo struct {
	code int32
	addr uint64
}

func sigInfo(pid int) (*signalInfo, error) {
	b := make([]byte, sigInfoSize)
	if err := ptrace(ptraceGetSigInfo, pid, b); err != nil {
		return nil, err
	}
	return &signalInfo{int32(binary.LittleEndian.Uint32(b[sigInfoCode:])), binary.LittleEndian.Uint64(b[sigInfoPtr:])}, nil
}
