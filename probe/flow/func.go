package flow

import (
	"slices"
	"sort"
	"sync"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// MaxCode is the most bytes of one function that are analyzed. Every region of a
// longer one is rejected, so the work stays bounded whatever size a symbol has.
const MaxCode = 256 << 10

// Input is one function, and the image's information around it. The callbacks are
// called from Analyze, Region and Data, on the caller's thread.
type Input struct {
	Addr uint64 // of the function's first byte
	// Code is the function's code in the image, without patches, up to the next
	// symbol: the padding between them may be displaced. It must not change while the
	// Func is used.
	Code []byte
	// Label: Addr may not be the beginning of code. An ELF symbol without a type, for
	// example, names data in text as well as code.
	Label bool
	// Open: Code ends before the next symbol begins, or the next symbol is unknown.
	// The bytes at its end are then not padding.
	Open bool
	// AllCode: the image's text holds only instructions and padding, as Linux's does,
	// whose build decodes all of it (tools/objtool). Bytes that no known path reaches
	// are then still code.
	AllCode bool
	// Movable: the image is position-independent, so numbers in its instructions are
	// not addresses.
	Movable bool
	// Exception reports whether the exception table has an entry for the
	// instruction at an address. nil: there is no table.
	Exception func(addr uint64) bool
	// Symbols are where other symbols begin in the function: instructions or data.
	Symbols []uint64
	// Edges are places in the function that a branch may lead to although the bytes
	// do not show it: for example the target of a jump label that is a nop now.
	Edges []uint64
	// Known returns what the code of the whole image implies about this function's
	// bytes; with AllCode it is called only for bytes that a jump may displace. nil:
	// nothing is known of other functions.
	Known func() *Index
	// Text reports whether an address is in the image's text. nil: only this
	// function's addresses count as text.
	Text func(addr uint64) bool
	// Read returns n bytes of the image's initial data, for jump tables, or nil if it
	// does not have them. nil: tables are not read.
	Read func(addr uint64, n int) []byte
	// Object returns why, by the image's own data, no instruction can begin at lo and
	// end at hi (a symbol of an object, a relocated field), or "". nil: no such data.
	Object func(lo, hi uint64) string
	// Patched returns the reason why the guest itself rewrites bytes in [lo, hi) at
	// run time ("ftrace", "jump_label", "static_call", "smp_lock"), or "". nil: it
	// rewrites none.
	Patched func(lo, hi uint64) string
}

// Inst is one instruction of a function.
type Inst struct {
	Off int // from the function's first byte
	// Reached: a known path leads there. Others are decoded from bytes that no known
	// path reaches, and may be data.
	Reached bool
	x86.Inst
}

// end returns the offset after the instruction.
func (i *Inst) end() int { return i.Off + int(i.Len) }

// IndirectJump is a near jump through a register or memory.
type IndirectJump struct {
	Off int
	// Targets are the targets in the jump's table, ascending and each once, if the
	// table was found; nil otherwise. An indirect tail call has no table.
	Targets []uint64
}

// Func is one analyzed function. It does not change after Analyze and can be
// used from any thread if the callbacks of its Input can.
type Func struct {
	in       Input
	size     int
	insts    []Inst // ascending by offset; overlapping code, and contradictory decodings, overlap
	indirect []IndirectJump
	branches []branch // those into the function, ascending by target
	refs     []ref    // to text, by the function's own instructions
	leaves   []target // direct branches out of the function
	tables   []ref    // of jumps
	leaText  bool     // some lea has the address of text
	lost     int      // offset of an indirect jump with unknown targets, or -1

	straight struct { // decoded as by Linux, for its rules; made on first use
		once sync.Once
		line line
	}
}

// branch is a known jump into the function.
type branch struct {
	to   uint64
	from int // offset of the instruction, or -1 for one elsewhere
}

// target is the target of a direct branch.
type target struct {
	to      uint64
	reached bool // from a reached instruction
}

// Analyze follows every known path through the function, decodes the rest, and
// collects the data for the rules. It never panics, whatever the bytes; its work is
// bounded by MaxCode.
//
// Paths begin at the function's entry and at the targets of direct branches of
// reached code elsewhere. They follow direct branches, jump tables, and instructions
// that fall through. The code after a call is reached if the called function returns
// there, as the ABI requires; but not after a call of a place within the function,
// which may only be for its return address.
func Analyze(in Input) *Func {
	f := &Func{in: in, size: len(in.Code), lost: -1}
	if len(in.Code) > MaxCode {
		return f
	}
	w := newWalk(f)
	if !in.Label {
		w.push(0)
	}
	if in.Known != nil && !in.AllCode {
		known := in.Known()
		for _, t := range known.Targets(in.Addr, in.Addr+uint64(f.size)) {
			if known.reached(t) {
				w.push(int(t - in.Addr))
			}
		}
	}
	for _, t := range in.Edges {
		w.push(int(t - in.Addr))
	}
	w.follow()
	w.decodeRest()
	f.collect(w.tables)
	return f
}

// collect gathers the data for the rules. tables are the targets that were found on
// the way.
func (f *Func) collect(tables []branch) {
	f.branches = tables
	for _, t := range f.in.Edges {
		f.branches = append(f.branches, branch{t, -1})
	}
	for k := range f.insts {
		i := &f.insts[k]
		if t, ok := i.Target(f.in.Addr + uint64(i.Off)); !ok {
		} else if f.inside(t) {
			f.branches = append(f.branches, branch{t, i.Off})
		} else {
			f.leaves = append(f.leaves, target{t, i.Reached})
		}
		f.leaText = f.leaText || isLea(&i.Inst) && i.RIPRelative() && f.text(i.RIPTarget(f.in.Addr+uint64(i.Off)))
	}
	slices.SortFunc(f.branches, compareTargets)
	// Now that all branches are known, a table that was found may not be certain any
	// more.
	for k := range f.insts {
		switch i := &f.insts[k]; i.Class() {
		case x86.ClassJumpInd:
			j := IndirectJump{Off: i.Off}
			if t, ok := f.jumpTable(k); ok {
				j.Targets = t.targets
				f.tables = append(f.tables, ref{Addr: t.addr, Size: uint32(t.n * t.size)})
			} else {
				f.lost = i.Off
			}
			f.indirect = append(f.indirect, j)
		case x86.ClassFar:
			if i.Opcode == 0xff && i.Reg() == 5 {
				f.lost = i.Off
			}
		}
		f.reference(k)
	}
	slices.SortFunc(f.refs, compareRefs)
}

func compareTargets(a, b branch) int {
	switch {
	case a.to < b.to:
		return -1
	case a.to > b.to:
		return 1
	}
	return a.from - b.from
}

// inside reports whether t is in the function.
func (f *Func) inside(t uint64) bool { return t-f.in.Addr < uint64(f.size) }

// Addr returns the function's address.
func (f *Func) Addr() uint64 { return f.in.Addr }

// Size returns the number of bytes of Code, padding included.
func (f *Func) Size() int { return f.size }

// Insts returns the instructions, ascending by offset: those that known paths reach,
// and between them the decoding of the other bytes, in a straight line and from
// places that branches and symbols name. The slice is the function's own and must not
// be changed.
func (f *Func) Insts() []Inst { return f.insts }

// Index returns the index in Insts of the instruction that begins at off, and false
// if no instruction does.
func (f *Func) Index(off int) (int, bool) {
	return slices.BinarySearchFunc(f.insts, off, func(i Inst, off int) int { return i.Off - off })
}

// Branched reports whether a known branch leads to the byte at off.
func (f *Func) Branched(off int) bool {
	at := f.in.Addr + uint64(off)
	_, here := firstInto(f.branches, at, at+1)
	return here || f.in.Known != nil && len(f.in.Known().Targets(at, at+1)) != 0
}

// IndirectJumps returns the near indirect jumps, ascending. The slice is the
// function's own and must not be changed.
func (f *Func) IndirectJumps() []IndirectJump { return f.indirect }

// Entry returns the offset of the function's entry for probes: after the endbr64 or
// endbr32 that the function begins with, if any (kprobes on a function with one go
// there: arch_adjust_kprobe_addr).
func (f *Func) Entry() int {
	if len(f.insts) > 1 && f.insts[0].Off == 0 && f.insts[0].IsEndbr() {
		return f.insts[0].end()
	}
	return 0
}

// firstInto returns the first branch of bs whose target is in [lo, hi).
func firstInto(bs []branch, lo, hi uint64) (branch, bool) {
	i := sort.Search(len(bs), func(i int) bool { return bs[i].to >= lo })
	if i < len(bs) && bs[i].to < hi {
		return bs[i], true
	}
	return branch{}, false
}
