package api

import "encoding/json"

// RegisterList answers GET /v1/registers: the vCPUs that were asked for, all of one instant.
type RegisterList struct {
	VCPUs []Registers `json:"vcpus"`
}

// Registers are the registers of a vCPU.
type Registers struct {
	CPU   int    `json:"cpu"`
	State string `json:"state"` // as CPUInfo.State: running, idle, halted, stopped or parked
	CPL   uint8  `json:"cpl"`

	Regs   map[string]Hex `json:"regs"`             // rax to r15, rip and rflags; rip is an address of the guest's own code
	Symbol string         `json:"symbol,omitempty"` // of rip, with offset
	Flags  []string       `json:"flags"`            // of rflags, those that are set

	Live   Hex  `json:"live,omitempty"`   // the vCPU's address if that is in code of a probe; rip is then the address that this code replaces
	Inside bool `json:"inside,omitempty"` // the vCPU runs handlers that use the other registers, and that will restore them

	Segments map[string]Segment  `json:"segments"` // cs, ss, ds, es, fs, gs, tr and ldt
	Tables   map[string]Table    `json:"tables"`   // gdt and idt
	Control  map[string]Hex      `json:"control"`  // cr0, cr2, cr3, cr4, cr8, efer, xcr0, apic_base, kernel_gs_base
	Set      map[string][]string `json:"set"`      // the names of the bits of cr0, cr4, efer and xcr0 that are set
	Debug    map[string]Hex      `json:"debug"`    // dr0 to dr3, dr6 and dr7

	Unknown []string `json:"unknown,omitempty"` // registers of control and debug that cannot be read of a guest of another VMM

	Vectors *Vectors `json:"vectors,omitempty"` // where they were asked for
}

// WriteRegisters is the body of PUT /v1/registers, which answers with Registers.
type WriteRegisters struct {
	VCPU int `json:"vcpu"`

	// Numbers as wide as the register, as 0x… or decimal, by the register's name: general registers, rip, rflags,
	// fs_base, gs_base, kernel_gs_base, cr0, cr2, cr3, cr4, cr8, efer, dr0 to dr3, dr6, dr7, st0 to st7, fctrl, fstat,
	// ftag, fop, fip, fdp, mxcsr, and, if the vCPU has them, xmm0 to xmm31, the same of ymm and zmm, k0 to k7 and
	// pkru.
	Set map[string]string `json:"set"`
}

// Segment is a segment register with its hidden part.
type Segment struct {
	Selector uint16 `json:"selector"`
	Base     Hex    `json:"base"`
	Limit    uint32 `json:"limit"`
	Type     uint8  `json:"type"`
	DPL      uint8  `json:"dpl"`
	Attr     string `json:"attr"` // for people: unusable, system, code64, code32, code16, data, or data, read-only
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
	Name  string   `json:"name"`           // the kind of Regs: xmm, ymm or zmm
	Regs  []string `json:"regs"`           // 16 or 32
	Mask  []Hex    `json:"mask,omitempty"` // k0 to k7, if the guest has them
	PKRU  *uint32  `json:"pkru,omitempty"`
	Width int      `json:"width"` // bytes of one of Regs
}

// MaxLook bounds how many bytes of memory one request reads or writes.
const MaxLook = 1 << 20

// Memory answers GET /v1/memory.
type Memory struct {
	Addr   Hex    `json:"addr"`
	Symbol string `json:"symbol,omitempty"` // of it, with offset
	Space  Hex    `json:"space,omitempty"`  // the page tables; absent: the kernel's
	Live   bool   `json:"live,omitempty"`   // with the bytes that probes have there
	Data   string `json:"data"`             // hexadecimal
	Fault  string `json:"fault,omitempty"`  // why there are fewer bytes than requested

	Symbols []Pointer `json:"symbols,omitempty"` // to which words of 8 bytes in it point, if they were asked for, or if the memory was asked for as a type

	Type  string          `json:"type,omitempty"`  // of memory that was asked for as a type: the type as C writes it
	Text  string          `json:"text,omitempty"`  // of the same: the value as C writes it, in lines
	Value json.RawMessage `json:"value,omitempty"` // of the same: the value as JSON
}

// Pointer is a word of 8 bytes that points to a symbol.
type Pointer struct {
	Offset int    `json:"offset"` // in the memory
	Symbol string `json:"symbol"` // with offset
}

// WriteMemory is the body of PUT /v1/memory.
type WriteMemory struct {
	At    string `json:"at"` // an address, a symbol or %REGISTER, optionally followed by +OFFSET or -OFFSET
	VCPU  *int   `json:"vcpu,omitempty"`
	Task  *int   `json:"task,omitempty"`
	Space Hex    `json:"space,omitempty"`
	Data  string `json:"data"` // hexadecimal, at most 1 MiB
}

// PageWalk answers GET /v1/pagetables: how the processor translates an address.
type PageWalk struct {
	Addr   Hex        `json:"addr"`
	Symbol string     `json:"symbol,omitempty"`
	Space  Hex        `json:"space"`  // the top-level table
	Levels int        `json:"levels"` // 4 or 5
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
	Points Hex      `json:"points,omitempty"` // to the next table, or to the page; absent: the entry is not present
	Flags  []string `json:"flags"`
}

// Mapping is what an address is mapped to.
type Mapping struct {
	Physical Hex    `json:"physical"`
	Size     uint64 `json:"size"` // of the page in bytes
	Writable bool   `json:"writable"`
	User     bool   `json:"user"`
	NoExec   bool   `json:"noExec"`
	Region   string `json:"region,omitempty"` // of the guest's memory; empty: the guest has no memory there
}

// BacktraceList answers GET /v1/backtraces: all of one instant.
type BacktraceList struct {
	Backtraces []Backtrace `json:"backtraces"`
}

// Backtrace is the call stack of a vCPU or of a task.
type Backtrace struct {
	CPU    *int         `json:"cpu,omitempty"`  // absent: it runs on no vCPU
	Task   *TaskInfo    `json:"task,omitempty"` // of a Linux guest
	Frames []StackFrame `json:"frames"`         // the innermost first, at most 256
	More   bool         `json:"more,omitempty"` // there are more frames
	Note   string       `json:"note,omitempty"` // a warning about inexact frames
}

// StackFrame is a frame of a backtrace.
type StackFrame struct {
	Frame
	Args []FrameArg `json:"args,omitempty"` // its arguments at the call
}

// FrameArg is an argument of a function on a stack. One of Value and Why is set.
type FrameArg struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Value string `json:"value,omitempty"` // as C writes it
	Why   string `json:"why,omitempty"`   // instead of Value: why it is not available
}

// ResumeGuest is the body of POST /v1/guest/resume.
type ResumeGuest struct {
	VCPU *int `json:"vcpu,omitempty"` // resume only this vCPU, which is stopped; nil: all
}

// MaxSteps is how many instructions one Step may have executed.
const MaxSteps = 1_000_000

// Step is the body of POST /v1/guest/step: a way in which a stopped vCPU runs on and stops again.
type Step struct {
	VCPU  *int   `json:"vcpu,omitempty"`                            // nil: the one that is stopped
	How   string `json:"how" openapi:"enum=step|next|finish|until"` // StepInto, StepNext, StepFinish or StepUntil
	Count int    `json:"count,omitempty"`                           // of StepInto and StepNext: the number of instructions, 1 to MaxSteps; 0 means 1
	At    string `json:"at,omitempty"`                              // of StepUntil: an address, as GET /v1/memory takes it

	TimeoutMS *int `json:"timeoutMs,omitempty" openapi:"minimum=1,maximum=60000,default=5000"` // 1 to 60000; nil means 5000
}

// The values of Step.How.
const (
	StepInto   = "step"   // instructions, into calls
	StepNext   = "next"   // instructions, over calls
	StepFinish = "finish" // until the function returns
	StepUntil  = "until"  // until it comes to an address
)

// Stepped says where the vCPU is after the step.
type Stepped struct {
	CPU     int    `json:"cpu"`
	Steps   int    `json:"steps"`   // instructions executed, as far as they were counted: by step and next
	Reached bool   `json:"reached"` // false: it has stopped before that, at a hit
	RIP     Hex    `json:"rip"`
	Symbol  string `json:"symbol,omitempty"` // of it, with offset
	Source  string `json:"source,omitempty"` // FILE:LINE
	Text    string `json:"text,omitempty"`   // the next instruction, GNU syntax
	Ret     *Hex   `json:"ret,omitempty"`    // of finish: what the function returned in RAX
}
