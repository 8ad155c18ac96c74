package flow

import (
	"slices"
	"sort"
	"sync"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// MaxCode is the most bytes of one function that are analyzed. Every region of
// a longer one is refused: the work stays bounded whatever a symbol claims.
const MaxCode = 256 << 10

// Input is one function, and what the image knows around it. The callbacks are
// called from Analyze, Region and Data, on the caller's thread.
type Input struct {
	Addr uint64 // of the function's first byte
	// Code is the function as the image has it, without patches, up to the
	// next symbol: the padding between them may be displaced. It must not change
	// as long as the Func is used.
	Code []byte
	// Label: nothing says that Addr is where code begins. An ELF symbol without
	// a type, for one, names data in text as well as code.
	Label bool
	// Open: Code ends before the next symbol does begin, or nobody knows where
	// that is. What stands at its end is then no padding.
	Open bool
	// AllCode: the image's text holds instructions and padding alone, as that of
	// Linux does, whose build decodes all of it (tools/objtool). What no known
	// path leads to is then code all the same.
	AllCode bool
	// Movable: the image is position-independent, so numbers in its instructions
	// are no addresses.
	Movable bool
	// Exception reports whether the exception table has an entry for the
	// instruction at an address. nil: there is no table.
	Exception func(addr uint64) bool
	// Symbols are where other symbols begin in the function: instructions or data.
	Symbols []uint64
	// Edges are places in the function where a branch may come to lead that the
	// bytes do not show: of a jump label, say, that is a nop now.
	Edges []uint64
	// Known returns what the code of the whole image says about this function's
	// bytes; with AllCode it is asked only for what a jump may displace. nil: nothing is
	// known of other functions.
	Known func() *Index
	// Text reports whether an address is in the image's text. nil: only this
	// function's addresses are known to be.
	Text func(addr uint64) bool
	// Read returns n bytes of the image's data as it is at first, for jump
	// tables, or nil when it does not have them. nil: no table is read.
	Read func(addr uint64, n int) []byte
	// Object returns why no instruction can begin at lo and end at hi by the
	// image's own account (a symbol of an object, a relocated field), or "". nil:
	// nothing.
	Object func(lo, hi uint64) string
	// Patched returns what in [lo, hi) the guest itself rewrites while it runs
	// ("ftrace", "jump_label", "static_call", "smp_lock"), or "". nil: nothing.
	Patched func(lo, hi uint64) string
}

// Inst is one instruction of a function.
type Inst struct {
	Off int // from the function's first byte
	// Reached: a known path leads there. Others are what bytes decode as that no
	// known path reaches, and may be data.
	Reached bool
	x86.Inst
}

// end returns the offset behind the instruction.
func (i *Inst) end() int { return i.Off + int(i.Len) }

// IndirectJump is a near jump through a register or memory.
type IndirectJump struct {
	Off int
	// Targets are where the jump's table leads, ascending and each once, when
	// the table was found; nil otherwise. An indirect tail call has no table.
	Targets []uint64
}

// Func is one analyzed function. It does not change after Analyze and can be
// used from any thread if the callbacks of its Input can.
type Func struct {
	in       Input
	size     int
	insts    []Inst // ascending by offset; those of overlapping code overlap, and those whose accounts differ
	indirect []IndirectJump
	branches []branch // those into the function, ascending by target
	refs     []Ref    // to text, by the function's own instructions
	leaves   []target // direct branches out of the function
	tables   []Ref    // of jumps
	leaText  bool     // some lea has the address of text
	lost     int      // offset of an indirect jump that leads nobody knows where, or -1

	straight struct { // as Linux decodes, for its rules; made when first asked for
		once sync.Once
		line line
	}
}

// branch is a known jump into the function.
type branch struct {
	to   uint64
	from int // offset of the instruction, or -1 for one elsewhere
}

// target is where a direct branch leads.
type target struct {
	to      uint64
	reached bool // from an instruction that is
}

// Analyze follows every known path through the function, decodes what is left,
// and collects what the rules look at. It never panics, whatever the bytes; its
// work is bounded by MaxCode.
//
// Paths begin at the function's entry and where direct branches of reached code
// elsewhere lead. They follow direct branches, jump tables, and what an
// instruction falls through to. What follows a call is reached when the called
// function returns there, as the ABI wants; not so what follows a call of a
// place within the function, which may be there for its return address alone.
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

// collect gathers what the rules look at. tables are the targets that were found
// on the way.
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
	slices.SortFunc(f.branches, byTarget)
	// With all branches known, a table that was found may not be certain any more.
	for k := range f.insts {
		switch i := &f.insts[k]; i.Class() {
		case x86.ClassJumpInd:
			j := IndirectJump{Off: i.Off}
			if t, ok := f.jumpTable(k); ok {
				j.Targets = t.targets
				f.tables = append(f.tables, Ref{Addr: t.addr, Size: uint32(t.n * t.size)})
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
	slices.SortFunc(f.refs, byRef)
}

func byTarget(a, b branch) int {
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

// Size returns the number of bytes that were given, padding included.
func (f *Func) Size() int { return f.size }

// Insts returns the instructions, ascending by offset: those that known paths
// reach, and between them what the other bytes decode as, in a straight line and
// from where branches and symbols say that something begins. The slice is the
// function's own and must not be changed.
func (f *Func) Insts() []Inst { return f.insts }

// Index returns the index in Insts of the instruction that begins at off, and
// false when none does.
func (f *Func) Index(off int) (int, bool) {
	return slices.BinarySearchFunc(f.insts, off, func(i Inst, off int) int { return i.Off - off })
}

// Branched reports whether a known branch leads to the byte at off.
func (f *Func) Branched(off int) bool {
	at := f.in.Addr + uint64(off)
	_, here := firstInto(f.branches, at, at+1)
	return here || f.in.Known != nil && len(f.in.Known().Targets(at, at+1)) != 0
}

// Indirect returns the near indirect jumps, ascending. The slice is the
// function's own and must not be changed.
func (f *Func) Indirect() []IndirectJump { return f.indirect }

// Entry returns the offset of the function's entry as a probe sees it: behind
// the endbr64 or endbr32 that the function begins with, where there is one
// (kprobes on a function with one go there: arch_adjust_kprobe_addr).
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
