package probe

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/code"
)

// This file defines what a backend must provide, from top to bottom: Target with
// Symbols and World, which every backend has; Capabilities, by which it says which
// probes its host supports; optional interfaces (PageTables, Files, Runner, Detours,
// PerCPU, Watcher, and Image, StackWalker and Kernel in addition to Symbols); and
// Trap and Verdict, the calls in the other direction. A request that needs something
// the backend lacks is rejected with a reason, and everything else works: a backend
// that sees no exits still supports programs at optimizable sites. kvm/machine
// implements everything over KVM, internal/testing/probetest in plain Go.

// Regs are the saved general registers of a vCPU.
type Regs = x86.Regs

// Target is the guest as the engine needs it, whatever runs its vCPUs.
type Target interface {
	// NumCPU returns the number of vCPUs, fixed for the life of the target.
	NumCPU() int

	// Symbols returns the names of the guest's current image. The result may be an
	// Image, too.
	Symbols() Symbols

	// Capabilities says what the host can do with kernel code or with user code. If
	// that changes Engine.TargetChanged must be called.
	Capabilities(user bool) Capabilities

	// ReadMemory and WriteMemory access guest virtual memory through the page tables
	// at root; root 0 means the kernel's tables that the guest was booted with. They
	// transfer all of p or fail. They take no lock and allocate nothing when they
	// succeed: the hit path uses them. WriteMemory is for data (a handler's write, an
	// emulated push); text goes through World.PatchText. Their errors should wrap a
	// *guest.PageFaultError: from it the engine makes the exception that the
	// processor would have raised.
	ReadMemory(root guest.GPA, addr guest.GVA, p []byte) error
	WriteMemory(root guest.GPA, addr guest.GVA, p []byte) error

	// Stop brings every vCPU out of guest mode and between two hits, runs f, and
	// resumes them, whatever f returned. It must not be called from a handler: that
	// vCPU could never come to rest (ErrInHandler).
	Stop(f func(World) error) error

	// AllocExec returns size bytes of guest memory that the guest can execute at the
	// privilege of the text at near and whose every byte is within rel32 reach of
	// near (arithmetic modulo 2^64). It is never freed: the engine reuses its memory.
	// WriteExec fills it; at that time no vCPU executes there.
	AllocExec(near guest.GVA, size int) (guest.GVA, error)
	WriteExec(addr guest.GVA, p []byte) error
}

// Symbols is the part of an image that every backend has.
type Symbols interface {
	// Lookup returns the one symbol of that name, guest.ErrSymbolNotFound, or
	// a *guest.AmbiguousSymbolError.
	Lookup(name string) (guest.Symbol, error)
	// Find returns the symbol whose extent holds addr. The extent of a
	// function without a size ends at the next symbol.
	Find(addr guest.GVA) (guest.Symbol, bool)
	// IsText reports whether addr is in an executable segment.
	IsText(addr guest.GVA) bool
	// Code returns the image's own n bytes at addr, unpatched; fewer where the
	// segment ends.
	Code(addr guest.GVA, n int) []byte
	// BlacklistReason returns why nothing in the symbol at addr may be probed
	// (its section, or an entry of the image's blacklist), or "".
	BlacklistReason(addr guest.GVA) string
}

// Image is an optional interface of Symbols that have the guest's whole program.
// *guest.Image is one.
type Image interface {
	// Symbols returns all functions and objects: with them the optimizer sees jumps
	// from one function into another, and Engine.Blacklist is complete.
	Symbols() []guest.Symbol
	// Text returns the ranges of the image's code, ascending: the kernel's, or that
	// of CPL3.
	Text(user bool) []guest.Range
	// Constant returns the image's n bytes at addr if the guest cannot write them, or
	// nil: with them the optimizer finds the jump tables of switches. The bytes must
	// not be changed.
	Constant(addr guest.GVA, n int) []byte
	// Data describes the data in [lo, hi) of the image's text (a symbol of an object,
	// a relocated field), or returns "".
	Data(lo, hi guest.GVA) string
	// FrameRule says how to find the caller of the function at pc (call frame
	// information). It allocates nothing: handlers use it.
	FrameRule(pc guest.GVA) (guest.FrameRule, bool)
	// Profile says which task runs, and which task a stack belongs to: with it the
	// engine detects activations whose task is gone, or has unwound its stack, before
	// that stack is used again.
	Profile() (guest.Profile, error)
}

// StackWalker is an optional interface of Symbols that know programs which look up
// the return addresses on their own stacks.
type StackWalker interface {
	// WalksStacks names the runtime that ends the program when it finds a foreign
	// return address there; "" if the code at addr has none.
	WalksStacks(addr guest.GVA) string
}

// Kernel is an optional interface of an Image of a kernel that patches itself as
// Linux does. Its text holds only instructions and padding: its build decodes all of
// it (tools/objtool). The methods may be called from any thread.
type Kernel interface {
	// FixedReason returns why no byte of [lo, hi) may be changed now: the guest
	// itself rewrites it, or compares it before it does ("ftrace", "jump_label",
	// "static_call", "alternative"); "" if it may be. A place that it rewrites once
	// may be free later: Engine.TargetChanged then tells the engine.
	FixedReason(lo, hi guest.GVA) string
	// Entry returns the address for a probe on the entry of a function whose first
	// instruction, after endbr64, is at addr: after the place where the function
	// calls its tracer (ftrace), or addr if it has none. That place is one
	// instruction, and the hit is reported at addr, as the kernel's kprobes on ftrace
	// do.
	Entry(addr guest.GVA) guest.GVA
	// Edges returns the places in [lo, hi) that a branch or an exception may lead to
	// although the text does not show it: the other target of a jump label, the jump
	// target of an alternative, the fixup of an entry of the exception table.
	Edges(lo, hi guest.GVA) []guest.GVA
	// Pieces returns all of the text, by the parts that are loaded and unloaded. It
	// is the same slice until something has changed.
	Pieces() []guest.Piece
	// FreedText reports whether addr is no longer text, or possibly other text than
	// before, according to the guest's memory now; IsText may be slightly out of
	// date. It is called with the world stopped.
	FreedText(addr guest.GVA) bool
	// Exception reports whether the guest looks up a fault of the instruction at addr
	// by its address (an entry of the exception table): then no copy of it may fault.
	Exception(addr guest.GVA) bool
	// Padding returns addresses of int3s of the kernel's own that are never executed,
	// in text that stays mapped and unchanged; no two are next to each other. Calls
	// return to one where the engine has no trampolines yet. It must not be changed.
	Padding() []guest.GVA
}

// World is a stopped target: every vCPU is out of guest mode. It is valid only
// inside the function that Stop runs.
type World interface {
	// PatchText replaces the bytes old at addr by new (of the same length). If it
	// finds something else there it changes nothing and fails with
	// *guest.TextMismatchError.
	PatchText(addr guest.GVA, old, new []byte) error
	// CPU returns the saved state of vCPU i, which may be changed.
	CPU(i int) State
	// Words calls found with each value within one of the ranges, at most two, that a
	// context of the guest could resume at. It looks at each 8 bytes, at any address,
	// of all the memory that the guest can write except AllocShared's. It also looks
	// at each general register and each 8 bytes of the vector registers of each vCPU,
	// whether the vCPU runs or waits for something that the host has put in between.
	// False means that the target cannot tell: then none of the engine's executable
	// memory is reused.
	Words(ranges []code.Range, found func(guest.GVA)) bool
}

// Capabilities says what the host can do with code of one privilege level. The zero
// value is a host with breakpoints and nothing else.
type Capabilities struct {
	NoBreakpoint string // why an int3 there does not reach the engine; "" = it does
	InPlace      bool   // StepInPlace works

	// DetourPort, if not 0, is an I/O port: out %al to it there is reported as
	// TrapDetour, and is cheaper than an int3.
	DetourPort uint8
	// NoStage says why no Stage runs in the guest there; "" = they do.
	NoStage string
	// NoFault says why a fault of a Stage there cannot be handled: exceptions do not
	// reach the engine before the guest's handlers, and the guest's profile has no
	// Faults. A Stage with fixups then runs on the host.
	NoFault string
	// NoExec says why the engine has no executable memory there yet; "" = AllocExec
	// works. Then an instruction is emulated or stepped in place instead of running
	// in a slot; no site has a jump, and functions have kretprobes only by
	// Kernel.Padding.
	NoExec string
}

// PageTables is an optional interface of a Target that walks the guest's page tables
// as the processor does. Like Target.ReadMemory and WriteMemory, its methods take no
// lock, and allocate only to fail.
type PageTables interface {
	// ReadUser and WriteUser are ReadMemory and WriteMemory with no more rights than
	// code at CPL3 has. Without them a user task could reach supervisor memory
	// through a probed push: no instruction that touches memory is then emulated at
	// CPL3, and no user function has a kretprobe.
	ReadUser(root guest.GPA, addr guest.GVA, p []byte) error
	WriteUser(root guest.GPA, addr guest.GVA, p []byte) error

	// Translate returns the physical address of addr in the page tables at root,
	// where 0 means those that the kernel was booted with, and whether it is mapped.
	// A breakpoint is in a physical page: with Translate the engine recognizes it
	// wherever that page is mapped, and does not mistake the guest's own int3 at the
	// same virtual address in another address space for its own. Without it there is
	// one address space.
	Translate(root guest.GPA, addr guest.GVA) (guest.GPA, bool)
}

// Keys is an optional interface of a Target whose guest may have protection keys on pages of user code
// (SDM Vol. 3, 4.6.2). The engine does not access such a page in place of user code: the processor knows whether the
// key's rights allow that.
type Keys interface {
	// Keyed reports whether the page at addr has a key other than 0. It takes no lock, and allocates nothing.
	Keyed(root guest.GPA, addr guest.GVA) bool
}

// Spaces is an optional interface of a Target whose guest has more than one top-level
// page table for an address space: with page-table isolation user code uses another
// one than the kernel.
type Spaces interface {
	// SameSpace reports whether root and space, which differ, are the tables of one address space, as far as is known. Any thread
	// may call it. It takes no lock, and allocates nothing.
	SameSpace(root, space guest.GPA) bool
}

// Files is an optional interface of a Target whose guest runs programs from files.
// Symbols has one address for each byte of a file, which no code of the guest has,
// and the guest has that byte in any number of pages and at any number of addresses.
// World.PatchText of such an address changes the byte in all of them, and
// Target.ReadMemory with root 0 reads the result, whether the guest has it in memory
// or not.
type Files interface {
	// FilePlace returns Symbols' address for the byte that the page tables at root
	// map at addr, if it is a byte of a file that PatchText has changed. It takes no
	// lock, and allocates nothing.
	FilePlace(root guest.GPA, addr guest.GVA) (guest.GVA, bool)

	// FileCode returns Symbols' address for the byte that the page tables at root map
	// at addr, if it is a byte of a file that Symbols knows. It allocates nothing,
	// and holds locks only briefly.
	FileCode(root guest.GPA, addr guest.GVA) (guest.GVA, bool)
}

// Runner is an optional interface of a Target that runs the vCPUs on threads of its
// own.
type Runner interface {
	// OnVCPU reports whether the caller is on a vCPU's own thread, and so inside a
	// handler. The engine asks it before it takes its lock, so that a handler that
	// registers or unregisters gets ErrInHandler at once; without it only Stop can
	// detect that.
	OnVCPU() bool

	// CallGuest runs a guest function from inside a handler, on the handler's own
	// vCPU: it saves all registers of the vCPU, runs the function at addr with the
	// arguments in RDI, RSI, RDX, RCX, R8 and R9 (System V ABI) at CPL0 on the
	// interrupted stack (below its red zone), restores the registers and returns the
	// function's RAX. Probes that are hit during the call reach Engine.Hit in the
	// ordinary way and count as missed.
	CallGuest(cpu int, addr guest.GVA, args []uint64) (uint64, error)
}

// Detours is an optional interface of a Target where probes can be optimized:
// executable memory at addresses that the engine chooses, and memory for the code
// there.
type Detours interface {
	// MapExec makes the n bytes at addr executable memory of the engine, as AllocExec
	// does, with the privilege of the text at near; near and addr are within rel32
	// reach. Memory that already is the engine's stays as it is. It fails where
	// something else is mapped.
	MapExec(near, addr guest.GVA, n int) error

	// OneMapping returns "" if the guest executes its text of that privilege at the
	// image's addresses only, and has the engine's memory at the same addresses in
	// every address space that it runs that text in: at another address a jump leads
	// to another place. Otherwise it says why that is not known. An alias that the
	// guest makes later cannot be seen before it is executed, so "" must hold for
	// good.
	OneMapping(user bool) string

	// Profile says how guest code determines the number of its vCPU, and returns
	// false if it cannot: then no Stage runs in the guest. user selects CPL3 or CPL0.
	Profile(user bool) (guest.Profile, bool)

	// AllocShared returns memory that host and guest share: zeroed, aligned to 64
	// bytes, and never executable; with user for code of CPL3, otherwise out of its
	// reach. A reset only zeroes it. The guest can write there at any time.
	// FreeShared frees it, when no code in the guest refers to it any more.
	AllocShared(size int, user bool) (guest.GVA, []byte, error)
	FreeShared(addr guest.GVA)
}

// Boards is an optional interface of a Target whose guest may map memory anywhere:
// boards of jumps, for which MapExec is called, are at these addresses only. Without
// it they may be anywhere within reach of the text.
type Boards interface {
	// Boards returns the addresses for the text of a privilege, the preferred ones
	// first. If anywhere is set MapExec says which are free.
	Boards(user bool) (windows []guest.Range, anywhere bool)
}

// PerCPU is an optional interface of a Target whose guest has a profile by GS.
type PerCPU interface {
	// KernelGS returns the GS base of the guest's kernel on vCPU cpu, which is in the
	// state s: at CPL3 the value that swapgs would put there. 0 means that it is not
	// known. It is called on the vCPU's own thread, takes no lock and allocates
	// nothing.
	KernelGS(cpu int, s State) guest.GVA
}

// Watcher is an optional interface of a Target that can watch memory; it reports
// accesses to Engine.Hit (TrapWatch) and Engine.Accessed. The methods are called with
// the world stopped, except NoWatchReason.
type Watcher interface {
	// NoWatchReason returns why accesses of this kind to kernel or user variables
	// cannot be watched, or "": by the debug registers, or by protecting pages.
	NoWatchReason(a Access, user, emulate bool) string
	// GuestDebugs reports whether the guest has breakpoints of its own in the debug
	// registers of a vCPU.
	GuestDebugs(cpu int) (bool, error)
	// ImplicitAccesses describes, for each of pages, accesses by the processor, or by
	// the hypervisor in the guest's place, that would fail while the page is
	// protected, such as "the GDT of vCPU 0"; or "".
	ImplicitAccesses(pages []WatchedPage) []string
	// SetWatches replaces the debug registers of all vCPUs and the protected pages.
	// On an error nothing has changed.
	SetWatches(d DebugRegisters, pages []WatchedPage) error
}

// WatchedPage is a page of guest memory whose accesses are reported to
// Engine.Accessed: writes, and with Read set reads too.
type WatchedPage struct {
	PA   guest.GPA
	Read bool
}

// PageAccess is an access to a WatchedPage, already done.
type PageAccess struct {
	PA       guest.GPA
	Len      int // 1 to 8
	Write    bool
	Old, New [8]byte // of the bytes at PA; the same for a read
}

// State is the saved state of one vCPU at a trap or while the world is
// stopped.
type State struct {
	Regs *Regs     // changes take effect when the vCPU resumes
	Root guest.GPA // the address of its top-level page table: CR3 without flags and PCID
	CPL  uint8     // 0 or 3
}

// TrapKind says what the machine reported.
type TrapKind uint8

// The kinds of trap. The zero value is invalid.
const (
	TrapBreakpoint TrapKind = iota + 1 // int3; Regs.RIP is at it, not after it
	TrapStep                           // single step done
	TrapFault                          // the guest's own exception, before the guest's handler sees it
	TrapWatch                          // data or execute breakpoint of the debug registers
	TrapDetour                         // out to Capabilities.DetourPort; Regs.RIP is at it or after it, depending on the host
)

// Trap is one event that the machine reports to the engine.
type Trap struct {
	Kind   TrapKind
	Vector uint8     // TrapFault: exception vector (SDM Vol. 3, 6.3.1)
	Code   uint32    // TrapFault: error code, 0 where the vector has none
	CR2    guest.GVA // TrapFault with vector 14
	DR6    uint64    // TrapWatch, TrapStep: as SDM Vol. 3, 18.2.3
}

// Action says what the machine does with a vCPU after Engine.Hit.
type Action uint8

// The actions.
const (
	// NotOurs: the trap is not the engine's; deliver it to the guest (#BP with RIP
	// after the int3, a fault as it was, with Regs as they are).
	NotOurs Action = iota
	// Resume: run on with the registers as they are now.
	Resume
	// Inject: deliver Verdict.Fault to the guest at the registers as they are.
	Inject
	// StepInPlace: with every other vCPU stopped, put the original bytes of
	// the site back, execute exactly one instruction, put the site back, and
	// call Engine.NoteStep.
	StepInPlace
)

// Verdict is the engine's answer to a trap.
type Verdict struct {
	Action Action
	Fault  Trap // for Inject: Vector, Code and CR2 as in TrapFault; DR6 with vector 1

	// Shadow says that an emulated sti has just set IF: no interrupt may be
	// delivered before the next guest instruction has run (SDM Vol. 3, 6.8.3),
	// or "sti; hlt" could sleep through its wakeup.
	Shadow bool

	// Stop says that the vCPU is to rest when this verdict is carried out, before it
	// enters the guest again, until it is resumed: see Context.Stop.
	Stop bool
}

// onePageTable is the PageTables of a Target without its own: one address space, in
// which nothing is accessed with the rights of user code.
type onePageTable struct{}

func (onePageTable) ReadUser(guest.GPA, guest.GVA, []byte) error  { return errNoUserMemory }
func (onePageTable) WriteUser(guest.GPA, guest.GVA, []byte) error { return errNoUserMemory }

func (onePageTable) Translate(_ guest.GPA, addr guest.GVA) (guest.GPA, bool) {
	return guest.GPA(addr), true
}

// errNoUserMemory makes the engine run a user instruction natively if the target
// cannot do its access with user rights.
var errNoUserMemory = errors.New("target cannot access memory as user code")
