package flow

import (
	"slices"
	"sort"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// MaxCode is the most bytes of one function that are analyzed. Every region of
// a longer one is refused: the work stays bounded whatever a symbol claims.
const MaxCode = 256 << 10

// Input is one function, and what the image knows around it. The callbacks are
// called from Analyze and Region, on the caller's thread.
type Input struct {
	Addr uint64 // of the function's first byte
	// Code is the function as the image has it, without patches, up to the
	// next symbol: the padding between them may be displaced. It is read during
	// Analyze only.
	Code []byte
	// Exception reports whether the exception table has an entry for the
	// instruction at an address. nil: there is no table.
	Exception func(addr uint64) bool
	// Targets returns the direct branch targets in [lo, hi) of code elsewhere
	// in the image, in any order; Index.Targets is one. nil: none are known.
	Targets func(lo, hi uint64) []uint64
	// Read returns n bytes of the image's data as it is at first, for jump
	// tables, or nil when it does not have them. Wrong bytes do no harm: what a
	// table says can only forbid a region. nil: no table is read.
	Read func(addr uint64, n int) []byte
	// Patched returns what in [lo, hi) the guest itself rewrites while it runs
	// ("ftrace", "jump_label", "static_call", "smp_lock"), or "". nil: nothing.
	Patched func(lo, hi uint64) string
}

// Inst is one instruction of a function.
type Inst struct {
	Off int // from the function's first byte
	insn.Inst
}

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
	in        Input
	size      int
	insts     []Inst
	bad       int // offset of the first byte that could not be decoded; size when all were
	badErr    error
	indirect  []IndirectJump
	branches  []branch // those into the function, ascending by target
	kernel    []branch // what Linux takes for branches, ascending by target
	exception int      // offset of the first instruction with an exception-table entry, or -1
	farJump   int      // offset of the first far indirect jump, or -1
}

// branch is a known jump into the function.
type branch struct {
	to   uint64
	from int // offset of the instruction, or -1 for one elsewhere
}

// Analyze decodes the whole function and collects what the rules look at. It
// never panics, whatever the bytes; its work is bounded by MaxCode.
//
// Decoding goes in a straight line from the first byte, as it does in Linux
// (arch/x86/kernel/kprobes/opt.c, can_optimize): data between instructions is
// taken for instructions until it is none.
func Analyze(in Input) *Func {
	f := &Func{in: in, size: len(in.Code), exception: -1, farJump: -1}
	code := in.Code
	f.in.Code = nil
	if len(code) > MaxCode {
		return f
	}
	f.insts = make([]Inst, 0, len(code)/4+1)
	for f.bad < len(code) {
		i, err := insn.Decode(code[f.bad:])
		if err != nil {
			f.badErr = err
			break
		}
		f.insts = append(f.insts, Inst{f.bad, i})
		f.bad += int(i.Len)
	}
	for k := range f.insts {
		f.note(k)
	}
	byTarget := func(a, b branch) int {
		switch {
		case a.to != b.to:
			if a.to < b.to {
				return -1
			}
			return 1
		}
		return a.from - b.from
	}
	slices.SortFunc(f.branches, byTarget)
	slices.SortFunc(f.kernel, byTarget)
	return f
}

// note collects what instruction k means for the rules.
func (f *Func) note(k int) {
	i := &f.insts[k]
	at := f.in.Addr + uint64(i.Off)
	if f.exception < 0 && f.in.Exception != nil && f.in.Exception(at) {
		f.exception = i.Off
	}
	if t, ok := i.Target(at); ok {
		f.branchTo(i.Off, t)
	}
	// The end counts: it can be the fifth byte behind the last region's first.
	if t, ok := kernelTarget(&i.Inst, at); ok && t-f.in.Addr <= uint64(f.size) {
		f.kernel = append(f.kernel, branch{t, i.Off})
	}
	switch i.Class() {
	case insn.ClassJumpInd:
		j := IndirectJump{Off: i.Off, Targets: f.jumpTable(k)}
		for _, t := range j.Targets {
			f.branchTo(i.Off, t)
		}
		f.indirect = append(f.indirect, j)
	case insn.ClassFar:
		if f.farJump < 0 && i.Opcode == 0xff && i.Reg() == 5 {
			f.farJump = i.Off
		}
	}
}

// inside reports whether t is in the function.
func (f *Func) inside(t uint64) bool { return t-f.in.Addr < uint64(f.size) }

// branchTo notes a jump from the instruction at from to t, if t is in the
// function.
func (f *Func) branchTo(from int, t uint64) {
	if f.inside(t) {
		f.branches = append(f.branches, branch{t, from})
	}
}

// Addr returns the function's address.
func (f *Func) Addr() uint64 { return f.in.Addr }

// Size returns the number of bytes that were given, padding included.
func (f *Func) Size() int { return f.size }

// Insts returns the instructions, ascending by offset, up to the first place
// that cannot be decoded. The slice is the function's own and must not be
// changed.
func (f *Func) Insts() []Inst { return f.insts }

// Index returns the index in Insts of the instruction that begins at off, and
// false when none does.
func (f *Func) Index(off int) (int, bool) {
	return slices.BinarySearchFunc(f.insts, off, func(i Inst, off int) int { return i.Off - off })
}

// Undecodable returns the offset of the first byte at which no instruction
// begins, why (an error of insn.Decode), and true; false when all of the
// function was decoded. A function above MaxCode is not decoded at all, and has
// no such place.
func (f *Func) Undecodable() (off int, err error, bad bool) {
	return f.bad, f.badErr, f.badErr != nil
}

// Indirect returns the near indirect jumps, ascending. The slice is the
// function's own and must not be changed.
func (f *Func) Indirect() []IndirectJump { return f.indirect }

// Entry returns the offset of the function's entry as a probe sees it: behind
// the endbr64 or endbr32 that the function begins with, where there is one
// (kprobes on a function with one go there: arch_adjust_kprobe_addr).
func (f *Func) Entry() int {
	if len(f.insts) > 1 && f.insts[0].IsEndbr() {
		return f.insts[1].Off
	}
	return 0
}

// into returns the first branch of bs whose target is in [lo, hi).
func into(bs []branch, lo, hi uint64) (branch, bool) {
	i := sort.Search(len(bs), func(i int) bool { return bs[i].to >= lo })
	if i < len(bs) && bs[i].to < hi {
		return bs[i], true
	}
	return branch{}, false
}

// kernelTarget returns where the instruction jumps in the eyes of Linux 6.12
// (can_optimize and insn_jump_into_range): jmp, jcc, loop and jrcxz, but not
// call. It keeps the opcode of a VEX or EVEX instruction where it keeps one-byte
// opcodes, so that vzeroupper is a "ja" to the next instruction; so does this.
func kernelTarget(i *insn.Inst, addr uint64) (uint64, bool) {
	switch op := i.Opcode; {
	case i.Enc == insn.Legacy && i.Map == insn.Map0F:
		if op&0xf0 != 0x80 {
			return 0, false
		}
	case i.Enc == insn.Legacy && i.Map != insn.Map0:
		return 0, false
	case op >= 0xe0 && op <= 0xe3, op == 0xe9, op == 0xeb, op&0xf0 == 0x70:
	default:
		return 0, false
	}
	return addr + uint64(i.Len) + uint64(i.Imm), true
}
