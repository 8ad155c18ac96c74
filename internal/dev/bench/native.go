package bench

import (
	"encoding/binary"
	"os"
	"path/filepath"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Layout of the program that nativeLoop makes: one segment, code right after the
// headers, the copied function at its own page.
const (
	nativeBase = 0x400000
	nativeCode = 0x78   // ELF header and one program header
	nativeFunc = 0x1000 // file offset of the function
)

// nativeLoop writes a static Linux program that calls a copy of fn n times with
// two small arguments and exits. fn is position-independent leaf code from the
// guest's image: peer and guest execute the same bytes.
func nativeLoop(dir, name string, fn []byte, n uint32) (path string, err error) {
	a := x86.NewAsm(nativeBase + nativeCode)
	a.Mov(4, x86.RBX, x86.Imm(n))
	loop := a.LabelHere()
	a.Mov(4, x86.RDI, x86.Imm(1))
	a.Mov(4, x86.RSI, x86.Imm(2))
	a.Call(a.LabelAt(nativeBase + nativeFunc))
	a.Dec(4, x86.RBX)
	a.Jcc(x86.CondNE, loop)
	a.Mov(4, x86.RAX, x86.Imm(60)) // exit
	a.Xor(4, x86.RDI, x86.RDI)
	a.Syscall()
	file := make([]byte, nativeFunc+len(fn))
	size := uint64(len(file))
	h := file[:0]
	h = append(h, 0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	h = binary.LittleEndian.AppendUint16(h, 2)                     // ET_EXEC
	h = binary.LittleEndian.AppendUint16(h, 62)                    // EM_X86_64
	h = binary.LittleEndian.AppendUint32(h, 1)                     // version
	h = binary.LittleEndian.AppendUint64(h, nativeBase+nativeCode) // entry
	h = binary.LittleEndian.AppendUint64(h, 64)                    // program headers
	h = binary.LittleEndian.AppendUint64(h, 0)                     // no sections
	h = binary.LittleEndian.AppendUint32(h, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		h = binary.LittleEndian.AppendUint16(h, v)
	}
	h = binary.LittleEndian.AppendUint32(h, 1) // PT_LOAD
	h = binary.LittleEndian.AppendUint32(h, 5) // R+X
	for _, v := range []uint64{0, nativeBase, nativeBase, size, size, 0x1000} {
		h = binary.LittleEndian.AppendUint64(h, v)
	}
	copy(file[nativeCode:], a.Code())
	copy(file[nativeFunc:], fn)
	path = filepath.Join(dir, name)
	return path, os.WriteFile(path, file, 0o755)
}
