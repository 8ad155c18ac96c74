package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

type (
	reg64 = insn.Reg64
	imm   = insn.Imm
)

// set emits r = v. It may change the flags.
func (c *compiler) set(r reg64, v uint64) {
	if v == 0 {
		c.Xor(4, r, r)
		return
	}
	c.Mov(8, r, imm(v))
}
