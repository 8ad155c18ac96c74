package probe

import (
	"errors"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Walks of a kernel's stacks in the guest
//
// The stack of a kernel like Linux is walked by the rule of each return address on it,
// which the host finds in the kernel's own tables. So that a detour can walk (walkCode),
// the host notes each rule that its own walks apply, in a table that guest and host
// share. A walk in the guest stops at an address without a noted rule, and at anything
// else than the simple case: the hit takes an exit, the host walks, and notes the rules
// that were missing.

// MaxWalk is the largest Stage.Walk.
const MaxWalk = 382

// The memory of a vCPU's walk: a word that is not 0 while the stages of a hit use it,
// the number of addresses, and the addresses.
const (
	walkUsed   = 0
	walkCount  = 8
	walkPCs    = 16
	walkStride = walkPCs + 8*MaxWalk
)

// The table: an address has its place in one of several buckets. A place is a word: in
// its lower half that of the address, and in the upper one its rule.
const (
	walkBuckets = 1 << 12
	walkBucket  = 8 // places in each, together one line of the processor's cache
	walkSpread  = 0x9e3779b1

	walkLowest = guest.GVA(0xffff_ffff_8000_0000) // the address of which the lower half says all
)

// A rule is the offset of the CFA in 16 bits, that of the saved RBP by 8 in 8 bits, 0
// if RBP is the caller's, and flags. Both are signed.
const (
	walkRBPShift = 16
	walkByRBP    = 1 << (24 + iota) // the base of the CFA is RBP, not RSP
	walkOuter                       // there is no caller
	walkTrap                        // the CFA is the address of a struct pt_regs
)

// walks is the memory for walks in the guest.
type walks struct {
	at      guest.GVA // of that of vCPU 0
	tableAt guest.GVA
	table   []atomic.Uint64
	turn    atomic.Uint32 // which place of a full bucket is used again
}

// packRule returns the table's form of a rule; ok is false if it has none.
func packRule(r guest.FrameRule) (packed uint32, ok bool) {
	switch {
	case r.Outer:
		return walkOuter, true
	case r.Base > guest.FrameRBP, r.Indirect, r.AtRBP, r.CFA%8 != 0, r.CFA != int32(int16(r.CFA)):
		return 0, false
	case r.Trap && (!r.Full || r.Return != int32(x86.PtIP) || r.RBP != int32(x86.PtBP)):
		return 0, false
	case r.Trap:
		packed = walkTrap
	case r.Return != -8 || r.RBP%8 != 0 || r.RBP/8 != int32(int8(r.RBP/8)):
		return 0, false
	default:
		packed = uint32(uint8(r.RBP/8)) << walkRBPShift
	}
	if r.Base == guest.FrameRBP {
		packed |= walkByRBP
	}
	return packed | uint32(uint16(r.CFA)), true
}

// bucketOf returns the index of the first place of the bucket of an address.
func bucketOf(key uint32) int { return int(key * walkSpread >> 20 * walkBucket) }

// find returns the rule noted for the address at; ok is false if no rule was noted.
func (w *walks) find(at guest.GVA) (rule uint32, ok bool) {
	key := uint32(at)
	for i := range walkBucket {
		if x := w.table[bucketOf(key)+i].Load(); uint32(x) == key {
			return uint32(x >> 32), true
		}
	}
	return 0, false
}

// put notes a rule. Others may do so at the same time.
func (w *walks) put(at guest.GVA, rule uint32) {
	key, free := uint32(at), -1
	b := bucketOf(key)
	for i := range walkBucket {
		switch x := w.table[b+i].Load(); {
		case uint32(x) == key:
			w.table[b+i].Store(uint64(rule)<<32 | uint64(key))
			return
		case x == 0 && free < 0:
			free = i
		}
	}
	if free < 0 {
		free = int(w.turn.Add(1) % walkBucket)
	}
	w.table[b+free].Store(uint64(rule)<<32 | uint64(key))
}

// clear forgets all rules. The world is stopped.
func (w *walks) clear() {
	if w == nil {
		return
	}
	for i := range w.table {
		w.table[i].Store(0)
	}
}

// coreText reports whether addr is text of the kernel itself, which is never unloaded.
func coreText(syms Symbols, addr guest.GVA) bool {
	k, ok := syms.(Kernel)
	if !ok {
		return false
	}
	pieces := k.Pieces()
	if len(pieces) == 0 {
		return false
	}
	for _, r := range pieces[0].Text {
		if addr >= r.Start && addr < r.End {
			return true
		}
	}
	return false
}

var (
	errNoWalks  = errors.New("only stacks of a kernel whose unwind data is known are walked so in the guest")
	errNoStacks = errors.New("where the kernel has the stacks of its tasks is not known")
)
