package bpf

// Frames says how compiled code goes through the stacks of the code that it interrupts: by
// frame pointers (System V ABI, 3.2.2), but for what is said here.
type Frames struct {
	User bool    // the interrupted code is of CPL3, so that its stack is the user's
	Text []Range // where code is; a return address elsewhere ends a walk
	// Calls are the return addresses behind whose calls no frame pointer leads to the caller.
	// Of Returns the same is true once the call has returned. Both ascend.
	Calls, Returns []FrameAt
	Longest        int32 // bytes of the longest frame
	Trampolines    Trampolines
}

// Range is [Start, End).
type Range struct{ Start, End uint64 }

// FrameRule says how the caller's registers follow from those at an instruction: its RSP is
// CFA bytes above RSP or RBP, behind the return address. Its RBP is saved RBP bytes above
// that, or with 0 is still the same.
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

// byPointer is the rule of code that keeps frame pointers, behind the beginning of a
// function.
var byPointer = FrameRule{FromRBP: true, CFA: 16, RBP: -16}

// Trampolines says what a return address may be a stand-in for: each has a near jump at
// Jump, and in front of where that leads four words: Magic, where the address stands that the
// first of them is for (0: that is not known), how far apart these are and in the upper half how
// many, and where the first trampoline is. They are Size apart, a power of two.
type Trampolines struct {
	Magic      uint64
	Jump, Size int
	Near       Range // where they may be, at multiples of Size; it may go round
}
