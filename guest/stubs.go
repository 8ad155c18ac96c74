package guest

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TrapStub is a stub of the trap ABI, which a guest has at a vector that it passes to
// the host: out of AL to a port, and iretq.
func TrapStub(port uint8) []byte {
	return x86.Assemble(func(a *x86.Asm) {
		a.Out(port)
		a.Iretq()
	})
}

// PutGate writes an interrupt gate to the kernel's code segment, DPL 3, of 16 bytes,
// which uses stack ist of the IST if ist is not 0 (SDM Vol. 3, 6.14.1).
func PutGate(b []byte, to GVA, ist uint64) {
	a := uint64(to)
	binary.LittleEndian.PutUint64(b, a&0xffff|SelKernelCode<<16|ist<<32|0xee<<40|a>>16&0xffff<<48)
	binary.LittleEndian.PutUint64(b[8:], a>>32)
}
