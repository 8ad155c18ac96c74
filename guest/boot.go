package guest

// I/O ports through which guest code talks to the host. If the host itself intercepts
// int3, a guest can be probed without any of them.
const (
	PortConsole    = 0xe9 // out, 1 byte: a byte for the console (Bochs convention)
	PortExit       = 0xf4 // out, 1, 2 or 4 bytes: the guest ends with this exit code (QEMU isa-debug-exit convention)
	PortBreakpoint = 0xf3 // out %al,$0xf3 in the vector 3 stub: RSP points at the frame {RIP, CS, RFLAGS, RSP, SS}
	PortDebug      = 0xf1 // out %al,$0xf1: the same in the vector 1 stub
	PortFault      = 0xf6 // out %al,$0xf6: a fault in an exec area; RSP points at {vector, error code, RIP, CS, RFLAGS, RSP, SS}
	PortDetour     = 0xf5 // out %al,$0xf5 in the engine's own code: a hit of an optimized site; elsewhere an unused port
	PortReport     = 0xf7 // outl %eax,$0xf7: a failed self-check; EAX is its code
	PortHome       = 0xf8 // out %al,$0xf8 at CPL0: RAX, an address, becomes the corresponding one in the guest's own text
	PortText       = 0xf9 // out %al,$0xf9 at CPL0: the guest has changed its text; the probes' bytes are checked before it resumes
)

// FaultHandled is the value that the host writes to the vector word of a frame
// forwarded through PortFault if it has handled the exception: the stub pops two
// words and returns.
const FaultHandled = ^uint64(0)

// TimerVector is the interrupt vector of the periodic timer.
const TimerVector = 0x20

// SymForeignBreakpoint is the symbol the host continues at when an int3 that
// arrives through PortBreakpoint is not one of its own.
const SymForeignBreakpoint = "gp_foreign_bp"

// The boot-info block: little endian, one page per vCPU, its address in RDI at
// entry. Offsets of fields in bytes; fields are 8 bytes wide unless said otherwise.
const (
	BootMagic = 0x31424f5250545347 // "GSTPROB1"

	BootInfoMagic      = 0x00 // BootMagic
	BootInfoSizeof     = 0x08 // BootInfoSize
	BootInfoRAM        = 0x10 // bytes of RAM from physical address 0
	BootInfoVCPU       = 0x18 // 4 bytes: number of this vCPU, from 0
	BootInfoNVCPUs     = 0x1c // 4 bytes: number of vCPUs
	BootInfoCmdline    = 0x20 // GVA of the command line, NUL-terminated
	BootInfoCmdlineLen = 0x28 // its length without the NUL
	BootInfoKernelLo   = 0x30 // kernel exec area: first GVA
	BootInfoKernelHi   = 0x38 // and the GVA after the last
	BootInfoUserLo     = 0x40 // user exec area; both 0 if the image has no user segment
	BootInfoUserHi     = 0x48 //
	BootInfoStackTop   = 0x50 // RSP at entry, 16-byte aligned
	BootInfoTickUsec   = 0x58 // timer period in microseconds; 0: no timer
	BootInfoTimerVec   = 0x60 // TimerVector
	BootInfoFlags      = 0x68 // reserved, 0
	BootInfoBoards     = 0x80 // addresses for boards (BootState.KernelBoards): first GVA and end, boardWindows times; 0: no boards
	BootInfoUserBoards = 0xa0 // BootState.UserBoards
	BootInfoSize       = 0xc0 // bytes up to here are defined; unnamed ones are 0
)

// The call service: a mailbox at the symbol SymCallMailbox. The host fills in
// function and arguments and increments Request; the guest calls, stores the
// result and makes Done equal to Request. Offsets in bytes, fields 8 bytes wide.
const (
	SymCallMailbox = "gp_call_mailbox"
	MailboxMagic   = 0x314c4c414350472e // ".GPCALL1"

	MailboxMagicOff = 0x00
	MailboxRequest  = 0x08
	MailboxDone     = 0x10
	MailboxFn       = 0x18
	MailboxArgs     = 0x20 // MailboxNArgs of them
	MailboxNArgs    = 6
	MailboxRet      = 0x50
	MailboxSize     = 0x58
)

// Selectors of the GDT that a guest starts with: flat segments. The guest may
// load its own.
const (
	SelKernelCode = 0x08 // 64-bit code, DPL 0
	SelKernelData = 0x10 // data, DPL 0
	SelUserData   = 0x1b // data, DPL 3
	SelUserCode   = 0x23 // 64-bit code, DPL 3
)

// gdt are the descriptors for the selectors: present, accessed (so that the processor
// need not write to the table), base 0, limit 4 GiB (SDM Vol. 3, 3.4.5 and 5.2.1).
var gdt = [...]uint64{
	0,
	SelKernelCode / 8: 0x00af_9b00_0000_ffff,
	SelKernelData / 8: 0x00cf_9300_0000_ffff,
	SelUserData / 8:   0x00cf_f300_0000_ffff,
	SelUserCode / 8:   0x00af_fb00_0000_ffff,
}

// Limits of BootOptions.
const (
	MaxVCPUs   = 64
	MaxCmdline = PageSize - 1 // bytes
	MaxRAM     = 64 << 30     // bytes
)

// StackSize is the size in bytes of the stack each vCPU starts on. The page
// below a stack is not mapped.
const StackSize = 16 << 10

// BootOptions are the parameters of a guest's boot.
type BootOptions struct {
	VCPUs    int    // 1 to MaxVCPUs
	RAM      uint64 // bytes, whole pages, 1 to MaxRAM
	Cmdline  string // up to MaxCmdline bytes, no NUL
	TickUsec uint64 // timer period in microseconds; 0: no timer
	NoNX     bool   // EFER.NXE will be off, so that no page can be mapped non-executable
}

// Area is guest memory for the engine. If it is for code, the guest may read and
// execute it at one privilege, but not write it.
type Area struct {
	GVA  GVA // 2 MiB aligned
	GPA  GPA
	Size uint64 // bytes; 0: there is no area
}

// Contains reports whether va is in the area.
func (a Area) Contains(va GVA) bool { return uint64(va-a.GVA) < a.Size }

// End returns the address after the area.
func (a Area) End() GVA { return a.GVA + GVA(a.Size) }

// VCPUStart is the initial state of one vCPU. Its other registers are 0.
type VCPUStart struct {
	RIP GVA // the image's entry
	RSP GVA // top of its own stack, 16-byte aligned
	RDI GVA // its boot-info block
}

// BootState is the result of Boot, for setting the vCPUs' registers. They start in
// 64-bit mode at CPL 0 with interrupts off: CR0.PG|WP|PE, CR4.PAE, EFER.LME|LMA, and
// EFER.NXE if NX.
type BootState struct {
	Root       GPA    // CR3
	Deep       bool   // the tables have 5 levels
	Home       Home   // memory mapped before the tables say so
	GDT        GVA    // identity-mapped
	GDTLimit   uint16 // bytes - 1
	NX         bool   // the tables use the XD bit
	VCPUs      []VCPUStart
	KernelExec Area
	UserExec   Area // Size 0 if the image has no user text

	// Memory shared by host and guest, writable, not executable: the first for CPL0
	// only, the second for CPL3.
	KernelData, UserData Area

	// KernelBoards and UserBoards are addresses where nothing is mapped, and that the
	// guest leaves to the engine's boards: at most boardWindows of each.
	KernelBoards, UserBoards []Range

	// KernelFar and UserFar are pages that are not mapped yet; Tables maps them.
	KernelFar, UserFar MemoryRange
	Tables             Mapper
}
