package bpf

// Frames says how compiled code walks the stacks of the code that it interrupts: by
// frame pointers (System V ABI, 3.2.2), except as listed here.
type Frames struct {
	User bool    // the interrupted code is of CPL3, so its stack is the user's
	Text []Range // where code is; a return address elsewhere ends a walk
	// Calls are the return addresses of calls after which no frame pointer leads to
	// the caller. For Returns the same is true once the call has returned. Both
	// ascend.
	Calls, Returns []FrameAt
	Longest        int32 // bytes of the longest frame
	Trampolines    Trampolines
}

// Range is [Start, End).
type Range struct{ Start, End uint64 }

// FrameRule says how the caller's registers follow from those at an instruction: its
// RSP is CFA bytes above RSP or RBP, and the return address is right below it. Its
// RBP is saved RBP bytes above that RSP, or unchanged if RBP is 0.
type FrameRule struct {
	FromRBP  bool
	CFA, RBP int32
	Outer    bool // there is no caller
}

// FrameAt is the rule at an address.
type FrameAt struct {
	PC uint64
	FrameRule
}

// byPointer is the rule of code that keeps frame pointers, after the beginning of a
// function.
var byPointer = FrameRule{FromRBP: true, CFA: 16, RBP: -16}

// Trampolines describes the addresses that may replace return addresses. Each
// trampoline has a near jump at Jump, and in front of the jump's target are four
// words: Magic; the address of the word that the first trampoline replaces (0: not
// known); how far apart these words are, with their number in the upper half; and the
// address of the first trampoline. Trampolines are Size apart, a power of two.
type Trampolines struct {
	Magic      uint64
	Jump, Size int
	Near       Range // where they may be, at multiples of Size; the range may wrap around
}
