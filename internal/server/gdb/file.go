package gdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
)

// Errors of file packets, in the protocol's numbering (GDB manual, E.9).
const (
	errnoENOENT = "F-1,2"
	errnoEBADF  = "F-1,9"
	errnoEINVAL = "F-1,16" // 22
	errnoENOSYS = "F-1,58" // 88
)

// openFiles is how many files a debugger may have open at a time.
const openFiles = 16

// file reads the guest's program, the only file.
func (s *session) file(_ context.Context, b []byte) (string, error) {
	op, args, _ := bytes.Cut(b, []byte(":"))
	switch string(op) {
	case "setfs": // selects the process
		return "F0", nil
	case "open":
		return s.openFile(args), nil
	case "pread":
		return s.preadFile(args), nil
	case "fstat":
		return s.statFile(args), nil
	case "close":
		fd, data := s.findFile(args)
		if data == nil {
			return errnoEBADF, nil
		}
		delete(s.files, fd)
		return "F0", nil
	case "readlink", "unlink", "pwrite":
		return errnoENOSYS, nil
	}
	return "", nil
}

// findFile returns an open file.
func (s *session) findFile(b []byte) (int, []byte) {
	n, ok := number(b)
	if !ok || n >= openFiles {
		return 0, nil
	}
	return int(n), s.files[int(n)]
}

func (s *session) openFile(args []byte) string {
	name, rest, _ := bytes.Cut(args, []byte(","))
	path := make([]byte, len(name)/2)
	var flags, mode uint64
	if !unhex(path, name) || !numbers(rest, &flags, &mode) {
		return errnoEINVAL
	}
	file := s.t.Program().File
	if string(path) != guestFile || file == nil || flags != 0 {
		return errnoENOENT
	}
	for fd := range openFiles {
		if s.files[fd] == nil {
			s.files[fd] = file()
			return fmt.Sprintf("F%x", fd)
		}
	}
	return "F-1,18" // EMFILE
}

func (s *session) preadFile(args []byte) string {
	fd, rest, _ := bytes.Cut(args, []byte(","))
	_, data := s.findFile(fd)
	var count, offset uint64
	if data == nil || !numbers(rest, &count, &offset) {
		return errnoEBADF
	}
	data = data[min(offset, uint64(len(data))):]
	n, room := 0, packetSize-16
	for n < len(data) && uint64(n) < count {
		if room -= escapedLen(data[n]); room < 0 {
			break
		}
		n++
	}
	return fmt.Sprintf("F%x;%s", n, data[:n])
}

// statFile answers with a struct stat of the protocol's: 64 bytes, big-endian.
// Debuggers read only the size.
func (s *session) statFile(args []byte) string {
	_, data := s.findFile(args)
	if data == nil {
		return errnoEBADF
	}
	var st [64]byte
	binary.BigEndian.PutUint32(st[8:], 0o100444)           // st_mode
	binary.BigEndian.PutUint32(st[12:], 1)                 // st_nlink
	binary.BigEndian.PutUint64(st[28:], uint64(len(data))) // st_size
	return fmt.Sprintf("F%x;%s", len(st), st[:])
}
