package oracle

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The child begins as a program of two instructions, syscall and int3, at an
// address that programs keep away from.
const (
	stubAddr = 0x7000_0000_0000
	stubCode = 64 + 56 // after the headers
)

// stubFile returns a path that can be executed, as long as the file is open.
func stubFile() (string, *os.File, error) {
	fd, err := unix.MemfdCreate("stepped", 0)
	if err != nil {
		return "", nil, err
	}
	f := os.NewFile(uintptr(fd), "stepped")
	var b bytes.Buffer
	for _, v := range []any{
		elf.Header64{
			Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Entry: stubAddr + stubCode, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
		},
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: stubAddr, Paddr: stubAddr, Filesz: stubCode + 3, Memsz: stubCode + 3, Align: 4096},
		[]byte{0x0f, 0x05, 0xcc},
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	if _, err := f.Write(b.Bytes()); err != nil {
		f.Close()
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), f, nil
}
