package flow

import (
	"slices"
	"sort"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// MaxTargets is the most targets that an index holds: more than any image has
// whose symbols are bounded as guest's are, so that reaching it means that the
// image is not code.
const MaxTargets = 8 << 20

// Index is a set of direct branch targets of an image: how a region learns of
// jumps from other functions. It does not change and can be used from any
// thread.
type Index struct {
	targets []uint64 // ascending, each once
	full    bool
}

// AppendTargets appends to dst the targets of all direct branches (jmp, jcc,
// loop, jrcxz, call, xbegin) in the function at addr that leave it, decoding in
// a straight line up to the first bytes that are no instruction. It appends
// nothing once dst has MaxTargets entries.
func AppendTargets(dst []uint64, addr uint64, code []byte) []uint64 {
	for off := 0; off < len(code) && len(dst) < MaxTargets; {
		i, err := insn.Decode(code[off:])
		if err != nil {
			break
		}
		if t, ok := i.Target(addr + uint64(off)); ok && t-addr >= uint64(len(code)) {
			dst = append(dst, t)
		}
		off += int(i.Len)
	}
	return dst
}

// NewIndex makes an index of targets, and takes over the slice.
func NewIndex(targets []uint64) *Index {
	x := &Index{full: len(targets) >= MaxTargets}
	slices.Sort(targets)
	x.targets = slices.Clip(slices.Compact(targets))
	return x
}

// Targets returns the targets in [lo, hi), ascending. The slice is the index's
// own and must not be changed. It is what Input.Targets wants.
func (x *Index) Targets(lo, hi uint64) []uint64 {
	i := sort.Search(len(x.targets), func(i int) bool { return x.targets[i] >= lo })
	j := i
	for j < len(x.targets) && x.targets[j] < hi {
		j++
	}
	return x.targets[i:j:j]
}

// Len returns the number of targets.
func (x *Index) Len() int { return len(x.targets) }

// Complete reports whether all targets found room.
func (x *Index) Complete() bool { return !x.full }
