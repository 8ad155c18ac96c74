package bpf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
)

// objectMagic is the beginning of an object file: class, byte order and version of
// ELF.
var objectMagic = []byte(elf.ELFMAG + "\x02\x01\x01")

// machineAt is the offset of the machine in the header of an ELF file.
const machineAt = 18

// errCarries is the cause if it is not clear which object is meant.
var errCarries = errors.New("this program carries several object files: extract the one that is meant")

// carriedObject returns the object file inside a program of the host, which begins at
// another such header, with machine bpf: tools made with a skeleton of libbpf
// (bpftool gen skeleton) have it among their constants. Any other file is returned as
// it is.
func carriedObject(b []byte) ([]byte, error) {
	if !isELF(b, elf.EM_X86_64) && !isELF(b, elf.EM_AARCH64) {
		return b, nil
	}
	var object []byte
	for rest := b[1:]; ; rest = rest[1:] {
		at := bytes.Index(rest, objectMagic)
		if at < 0 {
			break
		}
		if rest = rest[at:]; isELF(rest, elf.EM_BPF) {
			if object != nil {
				return nil, errCarries
			}
			object = rest
		}
	}
	if object == nil {
		return nil, errors.New("this is a program of the host, and it carries no object file: give what clang -target bpf makes")
	}
	return object, nil
}

func isELF(b []byte, machine elf.Machine) bool {
	return len(b) > machineAt+1 && bytes.HasPrefix(b, objectMagic) && elf.Machine(binary.LittleEndian.Uint16(b[machineAt:])) == machine
}
