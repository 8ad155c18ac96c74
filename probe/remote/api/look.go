package api

import "encoding/json"

// RegisterList answers GET /v1/registers: the vCPUs that were asked for, all of one instant.
type RegisterList struct {
	VCPUs []Registers `json:"vcpus"`
}

// Registers are those of a vCPU.
type Registers struct {
	CPU   int    `json:"cpu"`
	State string `json:"state"` // what it is doing, as CPUInfo.State
	CPL   uint8  `json:"cpl"`

	Regs   map[string]Hex `json:"regs"`             // rax to r15, rip, rflags
	Symbol string         `json:"symbol,omitempty"` // of rip, with offset
	Flags  []string       `json:"flags"`            // of rflags, those that are set

	// Live is where the vCPU really is, when that is code of a probe's: then rip is what it stands
	// for. Inside says that the handlers there have the other registers for themselves.
	Live   Hex  `json:"live,omitempty"`
	Inside bool `json:"inside,omitempty"`

	Segments map[string]Segment  `json:"segments"` // cs, ss, ds, es, fs, gs, tr, ldt
	Tables   map[string]Table    `json:"tables"`   // gdt, idt
	Control  map[string]Hex      `json:"control"`  // cr0, cr2, cr3, cr4, cr8, efer, xcr0, apic_base, kernel_gs_base
	Set      map[string][]string `json:"set"`      // the bits of cr0, cr4, efer and xcr0 that are set
	Debug    map[string]Hex      `json:"debug"`    // dr0 to dr3, dr6, dr7

	Vectors *Vectors `json:"vectors,omitempty"` // where they were asked for
}

// WriteRegisters is the body of PUT /v1/registers, which answers with Registers.
type WriteRegisters struct {
	VCPU int `json:"vcpu"`
	// Set are numbers, as wide as the register, as 0x… or decimal. The names are those of general registers, rip, rflags,
	// fs_base, gs_base, kernel_gs_base, cr0, cr2, cr3, cr4, cr8, efer, dr0 to dr3, dr6, dr7, st0 to st7, fctrl, fstat, ftag, fop,
	// fip, fdp, mxcsr, and, where the vCPU has them, xmm0 and so on, ymm0, zmm0, k0 and pkru.
	Set map[string]string `json:"set"`
}

// Segment is a segment register with its hidden part.
type Segment struct {
	Selector uint16 `json:"selector"`
	Base     Hex    `json:"base"`
	Limit    uint32 `json:"limit"`
	Type     uint8  `json:"type"`
	DPL      uint8  `json:"dpl"`
	Attr     string `json:"attr"` // present, code64, ... for people
}

// Table is where a descriptor table is.
type Table struct {
	Base  Hex    `json:"base"`
	Limit uint16 `json:"limit"`
}

// Vectors are the floating point and vector registers. Their bytes are hexadecimal, the lowest last, as
// a number is written.
type Vectors struct {
	Control uint16 `json:"fctrl"`
	Status  uint16 `json:"fstat"`
	Tag     uint8  `json:"ftag"` // a bit for each register that is not empty
	Opcode  uint16 `json:"fop"`
	IP      Hex    `json:"fip"`
	DP      Hex    `json:"fdp"`
	MXCSR   uint32 `json:"mxcsr"`

	ST    []string `json:"st"`             // st0 to st7, 10 bytes each
	Name  string   `json:"name"`           // what Regs are: xmm, ymm or zmm
	Regs  []string `json:"regs"`           // 16 or 32
	Mask  []Hex    `json:"mask,omitempty"` // k0 to k7
	PKRU  *uint32  `json:"pkru,omitempty"`
	Width int      `json:"width"` // bytes of one of Regs
}

// MaxLook bounds how many bytes of memory one request reads or writes.
const MaxLook = 1 << 20

// Memory answers GET /v1/memory.
type Memory struct {
	Addr   Hex    `json:"addr"`
	Symbol string `json:"symbol,omitempty"` // of it, with offset
	Space  Hex    `json:"space,omitempty"`  // the page tables; none: those of the kernel
	Live   bool   `json:"live,omitempty"`   // with what probes have put there
	Data   string `json:"data"`             // hexadecimal
	Fault  string `json:"fault,omitempty"`  // why there are fewer bytes than were asked for

	// Symbols are those that words of 8 bytes in it point to, where they were asked for, and of memory as a type.
	Symbols []Pointer `json:"symbols,omitempty"`

	// Of memory that was asked for as a type: as C writes that type, and the value.
	Type  string          `json:"type,omitempty"`
	Text  string          `json:"text,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Pointer is a word of 8 bytes that points to a symbol.
type Pointer struct {
	Offset int    `json:"offset"` // in the memory
	Symbol string `json:"symbol"` // with offset
}

// WriteMemory is the body of PUT /v1/memory.
type WriteMemory struct {
	At    string `json:"at"` // as GET /v1/memory has it
	VCPU  *int   `json:"vcpu,omitempty"`
	Task  *int   `json:"task,omitempty"`
	Space Hex    `json:"space,omitempty"`
	Data  string `json:"data"` // hexadecimal
}

// PageWalk answers GET /v1/pagetables: how the processor finds what is at an address.
type PageWalk struct {
	Addr   Hex        `json:"addr"`
	Symbol string     `json:"symbol,omitempty"`
	Space  Hex        `json:"space"` // the top-level table
	Levels int        `json:"levels"`
	Steps  []PageStep `json:"steps"`

	Fault   string   `json:"fault,omitempty"` // why nothing is mapped
	Mapping *Mapping `json:"mapping,omitempty"`
}

// PageStep is an entry of a page table.
type PageStep struct {
	Level  int      `json:"level"` // 5 or 4 to 1
	Name   string   `json:"name"`  // PML5E, PML4E, PDPTE, PDE or PTE
	Index  int      `json:"index"` // in its table
	At     Hex      `json:"at"`    // physical
	Entry  Hex      `json:"entry"`
	Points Hex      `json:"points,omitempty"` // to the next table, or the page; none: it is not present
	Flags  []string `json:"flags"`
}

// Mapping is what an address is mapped to.
type Mapping struct {
	Physical Hex    `json:"physical"`
	Size     uint64 `json:"size"` // of the page
	Writable bool   `json:"writable"`
	User     bool   `json:"user"`
	NoExec   bool   `json:"noExec"`
	Region   string `json:"region,omitempty"` // of the guest's memory; none: the guest has none there
}

// BacktraceList answers GET /v1/backtraces: all of one instant.
type BacktraceList struct {
	Backtraces []Backtrace `json:"backtraces"`
}

// Backtrace is where a vCPU or a task stands, and what has called that.
type Backtrace struct {
	CPU    *int         `json:"cpu,omitempty"`  // none: it runs on none
	Task   *TaskInfo    `json:"task,omitempty"` // of a Linux guest
	Frames []StackFrame `json:"frames"`         // the innermost first
	More   bool         `json:"more,omitempty"` // there are more frames
	Note   string       `json:"note,omitempty"` // what is not exact
}

// StackFrame is a frame of a backtrace.
type StackFrame struct {
	Frame
	Args []FrameArg `json:"args,omitempty"` // what it was called with
}

// FrameArg is an argument of a function on a stack. One of Value and Why is set.
type FrameArg struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Value string `json:"value,omitempty"` // as C writes it
	Why   string `json:"why,omitempty"`   // why it is not to be had there
}

// ResumeGuest is the body of POST /v1/guest/resume.
type ResumeGuest struct {
	VCPU *int `json:"vcpu,omitempty"` // let this one go on, which is stopped; nil: all
}

// MaxSteps is how many instructions one Step may have executed.
const MaxSteps = 1_000_000

// Step is the body of POST /v1/guest/step: one of the ways in which a vCPU that is stopped goes on for a while.
type Step struct {
	VCPU  *int   `json:"vcpu,omitempty"`  // nil: the one that is stopped
	How   string `json:"how"`             // StepInto, StepNext, StepFinish or StepUntil
	Count int    `json:"count,omitempty"` // of StepInto and StepNext: how many instructions, 1 to MaxSteps; 0 means 1
	At    string `json:"at,omitempty"`    // of StepUntil: an address, as GET /v1/memory has it

	TimeoutMS *int `json:"timeoutMs,omitempty"` // 1 to 60000; nil means 5000
}

// The values of Step.How.
const (
	StepInto   = "step"   // instructions, into calls
	StepNext   = "next"   // instructions, over calls
	StepFinish = "finish" // until the function returns
	StepUntil  = "until"  // until it comes to an address
)

// Stepped says where the vCPU stands behind it.
type Stepped struct {
	CPU     int    `json:"cpu"`
	Steps   int    `json:"steps"`   // instructions executed, as far as they were counted: by step and next
	Reached bool   `json:"reached"` // false: it has stopped before, at a hit
	RIP     Hex    `json:"rip"`
	Symbol  string `json:"symbol,omitempty"` // of it, with offset
	Source  string `json:"source,omitempty"` // FILE:LINE
	Text    string `json:"text,omitempty"`   // the next instruction, GNU syntax
	Ret     *Hex   `json:"ret,omitempty"`    // of finish: what the function returned in RAX
}
