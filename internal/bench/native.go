package bench

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
)

// Layout of the program that nativeLoop makes: one segment, code right behind
// the headers, the copied function at its own page.
const (
	nativeBase = 0x400000
	nativeCode = 0x78   // ELF header and one program header
	nativeFunc = 0x1000 // file offset of the function
)

// nativeLoop writes a static Linux program that calls a copy of fn n times with
// two small arguments and exits. fn is position-independent leaf code, taken
// from the guest's image: peer and guest execute the same bytes.
func nativeLoop(dir, name string, fn []byte, n uint32) (path string, err error) {
	var code bytes.Buffer
	code.WriteByte(0xbb) // mov ebx, n
	binary.Write(&code, binary.LittleEndian, n)
	loop := code.Len()
	code.Write([]byte{0xbf, 1, 0, 0, 0, 0xbe, 2, 0, 0, 0, 0xe8}) // mov edi, 1; mov esi, 2; call fn
	binary.Write(&code, binary.LittleEndian, int32(nativeFunc-(nativeCode+code.Len()+4)))
	code.Write([]byte{0xff, 0xcb, 0x75, 0})                         // dec ebx; jnz loop
	code.Bytes()[code.Len()-1] = byte(loop - code.Len())            // rel8 from the end of jnz
	code.Write([]byte{0xb8, 0x3c, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05}) // mov eax, 60; xor edi, edi; syscall
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
	copy(file[nativeCode:], code.Bytes())
	copy(file[nativeFunc:], fn)
	path = filepath.Join(dir, name)
	return path, os.WriteFile(path, file, 0o755)
}
