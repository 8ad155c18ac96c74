package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

type (
	reg64 = x86.Reg64
	imm   = x86.Imm
)

// set emits r = v. It may change the flags.
func (c *coder) set(r reg64, v uint64) {
	if v == 0 {
		c.Xor(4, r, r)
		return
	}
	c.Mov(8, r, imm(v))
}
