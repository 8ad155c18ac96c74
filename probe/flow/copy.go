package flow

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// MaxCopy is the most bytes that AppendCopy appends: as many relocated instructions
// as a region can have, the last of which may be a call.
const MaxCopy = (x86.JmpLen-1)*x86.MaxRelocated + maxCall

// maxCall is the most bytes that replace a call: push imm32, mov imm32 to the upper
// half, jmp rel32.
const maxCall = 5 + 8 + 5

// AppendCopy appends to b the region's instructions, relocated so that the first one
// is at to. It returns where each of them begins, relative to to. The copy does the
// same as the originals: it falls out of its end if they do. The caller adds the jump
// back. The copy changes no other flags.
//
// A final call becomes a push of the original return address and a jump, so the
// callee, and any stack walk, sees the same as before.
//
// An error wraps x86.ErrOutOfReach or x86.ErrNotMovable; b is then unchanged.
func (r *Region) AppendCopy(b []byte, to uint64) (code []byte, starts []int, err error) {
	code, from := b, r.Addr
	for k := range r.Insts {
		i := &r.Insts[k]
		at := len(code) - len(b)
		starts = append(starts, at)
		if r.Call && k == len(r.Insts)-1 {
			target, _ := i.Target(from)
			c, err := copyCall(to+uint64(at), target, from+uint64(i.Len))
			if err != nil {
				return b, nil, fmt.Errorf("flow: copy call %#x: %w", target, err)
			}
			return append(code, c...), starts, nil
		}
		var buf [x86.MaxRelocated]byte
		n, err := x86.Relocate(buf[:], i, from, to+uint64(at))
		if err != nil {
			return b, nil, err
		}
		code = append(code, buf[:n]...)
		from += uint64(i.Len)
	}
	return code, starts, nil
}

// copyCall returns code for address at that is equivalent to a call of target that
// returns to ret.
func copyCall(at, target, ret uint64) ([]byte, error) {
	a := x86.NewAsm(at)
	a.Push(x86.Imm(int32(ret)))
	if uint64(int64(int32(ret))) != ret {
		a.Mov(4, x86.At(x86.RSP, 4), x86.Imm(ret>>32))
	}
	a.Jmp(a.LabelAt(target))
	return a.Link()
}
