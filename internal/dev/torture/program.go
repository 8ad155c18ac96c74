package torture

import "debug/elf"

// Program is code and the facts about it.
type Program struct {
	Text  []byte
	Funcs []Func // ascending
	Insts []Inst // where probes can be, ascending
	Data  []byte // at the beginning of each task's data; the first 8 bytes are its resume word
	Tasks int
	// Steps: parts of it run with RFLAGS.TF set.
	Steps bool
	// Kernel: it runs at CPL0, without things that only user code can rely on: a
	// red zone, a stack that may end right below RSP, alignment checks.
	Kernel bool
	Entry  int // offset in Text

	Classes Class
	Bytes   bool   // it copies stacks byte by byte
	Uneven  bool   // it calls with a stack that is not a multiple of 8
	Alias   *Alias // a second mapping of the text

	Handler     int  // offset of the signal handler; 0: none
	AltStack    bool // signals have a stack of their own
	SignalEvery int  // timer ticks from one to the next
	// Lazy is how many pages of each stack, from the second on, are not there until
	// they are touched.
	Lazy int
}

// Func is a symbol of a program.
type Func struct {
	Name      string
	Off, Size int
	Label     bool // without a type, as hand-written assembly has them
	Calls     bool // it is entered by calls and left by returns, so kretprobes work
}

func (f *Func) symType() elf.SymType {
	if f.Label {
		return elf.STT_NOTYPE
	}
	return elf.STT_FUNC
}

// Inst is an instruction that a probe can be on.
type Inst struct {
	Off       int
	Signal    bool // it runs at signals, so the number of its runs is unknown
	Changed   bool // the program rewrites it before it runs, so no probe stays on it
	Rewritten bool // by the instruction before it, without notification
	Odd       bool // the state it runs in is rare: probes are there more often
}

// pages returns the bounds of the task's lazy pages.
func (p *Program) pages(task int) (lo, hi uint64) {
	lo = stackOf(task, false) + 4096
	return lo, lo + uint64(p.Lazy)*4096
}
