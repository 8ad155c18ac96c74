package flow

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// MaxCopy is the most bytes that AppendCopy appends: as many relocated
// instructions as a region can have, the last of which may be a call.
const MaxCopy = (x86.JmpLen-1)*x86.MaxRelocated + maxCall

// maxCall is the most bytes that stand for a call: push imm32, mov imm32 to
// the upper half, jmp rel32.
const maxCall = 5 + 8 + 5

// AppendCopy appends to b the region's instructions as they have to be when the
// first of them stands at to, and returns where each of them begins, relative to
// to: the copy does what the originals do, and falls out of its end, or does not
// go on, as they do. The jump back is the caller's. Flags are not touched.
//
// A final call becomes a push of the original return address and a jump, so the
// callee, and whoever walks the stack, sees what it would have seen.
//
// An error wraps x86.ErrOutOfReach or x86.ErrNotMovable; b comes back as it was.
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

// copyCall returns what does at at the same as a call of target that returns to
// ret.
func copyCall(at, target, ret uint64) ([]byte, error) {
	a := x86.NewAsm(at)
	a.Push(x86.Imm(int32(ret)))
	if uint64(int64(int32(ret))) != ret {
		a.Mov(4, x86.At(x86.RSP, 4), x86.Imm(ret>>32))
	}
	a.Jmp(a.Outside(target))
	return a.Link()
}
