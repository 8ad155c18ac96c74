package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// MaxSlots bounds the length of a program in instruction slots: a 64-bit immediate
// takes two, everything else one. Offsets of jumps count slots.
const MaxSlots = 1 << 16

// Errors of Decode.
var (
	ErrTruncated = errors.New("not a whole number of instructions")
	ErrMalformed = errors.New("malformed instruction")
	ErrTooLong   = fmt.Errorf("more than %d instruction slots", MaxSlots)
	ErrEmpty     = errors.New("no instructions")
)

// Decode splits a program, little endian, into instructions. It does not check them:
// New does. Errors are ErrEmpty, ErrTruncated and ErrTooLong, or about the second
// slot of a 64-bit immediate.
func Decode(b []byte) (asm.Instructions, error) {
	const size = asm.InstructionSize
	switch {
	case len(b) == 0:
		return nil, fmt.Errorf("decode program: %w", ErrEmpty)
	case len(b)%size != 0:
		return nil, fmt.Errorf("decode program of %d bytes: %w", len(b), ErrTruncated)
	case len(b)/size > MaxSlots:
		return nil, fmt.Errorf("decode program of %d bytes: %w", len(b), ErrTooLong)
	}
	prog, err := asm.AppendInstructions(make(asm.Instructions, 0, len(b)/size), bytes.NewReader(b), binary.LittleEndian, "linux")
	if err != nil {
		return nil, fmt.Errorf("decode program: %w: %w", ErrMalformed, err)
	}
	return prog, nil
}

// resolve returns a copy of a program in which jumps and calls to labels have their
// distances.
func resolve(prog asm.Instructions) (asm.Instructions, error) {
	prog = slices.Clone(prog)
	labels := map[string]int{}
	for it := prog.Iterate(); it.Next(); {
		if s := it.Ins.Symbol(); s != "" {
			labels[s] = int(it.Offset)
		}
	}
	for it := prog.Iterate(); it.Next(); {
		i := it.Ins
		name := i.Reference()
		if name == "" {
			continue
		}
		fail := func(why string) error {
			return &CheckError{Index: int(it.Offset), Insn: *i, Reason: fmt.Sprintf("%s %q", why, name)}
		}
		to, ok := labels[name]
		off := int64(to) - int64(it.Offset) - 1
		switch {
		case !refersToFunction(i) && !isJump(i):
			return nil, fail("an instruction that is not a jump or a call refers to")
		case !ok:
			return nil, fail("there is no label")
		case refersToFunction(i) || isLongJump(i):
			i.Constant = off
		case off < math.MinInt16 || off > math.MaxInt16:
			return nil, fail("too far is label")
		default:
			i.Offset = int16(off)
		}
		*i = i.WithReference("")
	}
	return prog, nil
}
