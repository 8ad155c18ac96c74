package guest

import (
	"errors"
	"math/bits"
)

// SymProfile is the data symbol of an image's description of how to find the running
// task from an interrupted stack pointer alone, at CPL 0 and at CPL 3.
const SymProfile = "gp_profile"

// The object at SymProfile: little endian, aligned to 8. Offsets in bytes; fields are
// 8 bytes wide, from ProfileMagicOff on 4 bytes and signed.
const (
	ProfileMagic = 0x31464f5250504728 // "(GPPROF1"

	ProfileMagicAt    = 0x00 // ProfileMagic
	ProfileStackMask  = 0x08 // Profile.StackMask
	ProfileStackMagic = 0x10
	ProfileFlagsAt    = 0x18
	ProfileMagicOff   = 0x20
	ProfileCPUOff     = 0x24
	ProfilePIDOff     = 0x28
	ProfileTGIDOff    = 0x2c
	ProfileCommOff    = 0x30
	ProfileSize       = 0x38 // with 4 reserved bytes
)

// Limits of a profile: the size of the guest's stacks, a power of two, and the
// length of a task's name.
const (
	MinProfileStack = 512
	MaxProfileStack = 1 << 20
	ProfileCommSize = 16
)

// ProfileFlags are a guest's promises about its address spaces. A guest may set flags
// while it runs; one that is set stays set.
type ProfileFlags uint64

// ProfileOneMapping is set in a guest whose address spaces all have the user text and
// the engine's memory at the addresses of the boot page tables, and nowhere else.
// Then a user address always means the same code, and the places that the code refers
// to exist in every address space.
const ProfileOneMapping ProfileFlags = 1

// ProfileKernelOnce is set in a guest that executes its kernel text only at the
// image's addresses, and has the engine's memory at the addresses of the boot page
// tables in every address space. RAM is identity mapped at boot, executable: without
// this flag the same text may run at a second address, where a jump's displacement
// leads elsewhere.
const ProfileKernelOnce ProfileFlags = 2

// SymFlags is the data symbol of the flags of an image without a profile: 8 bytes,
// aligned to 8.
const SymFlags = "gp_flags"

// Profile says how guest code finds its vCPU and its task, in one of two ways.
//
// By the stack: at info = RSP & StackMask, the lowest address of its stack, is a
// structure with the fields below; if the 8 bytes at info + MagicOff are not
// StackMagic, the stack is not a task's and nothing is known. All stacks, kernel and
// user, have the same size and are aligned to it, their tasks stay on the vCPU in the
// structure, and RSP is never at the very top of a stack. When a task is gone for
// good, its stack loses the magic, or another task has the stack with another number:
// activations that were under way on it never return.
//
// By GS, as in Linux: the kernel has memory for each vCPU at its GS base. At GS base
// + CPUOff is the number of the vCPU, and at GS base + TaskOff the address of the
// running task's structure, which has the other fields; wherever a kernel probe can
// be, both are mapped and the base is the kernel's. If StackMask is not 0, the kernel
// stacks of tasks have the same size, are aligned to it, and are used from their tops
// down. A task is gone for good if its structure has another number, or a bit of Dead
// in its state.
//
// Image.Profile returns only profiles by the stack, with the mask of a stack of
// MinProfileStack to MaxProfileStack bytes, a nonzero magic, and fields inside the
// stack that are aligned to their size.
type Profile struct {
	GS bool // by GS, not by the stack

	StackMask, StackMagic uint64

	MagicOff int32 // by the stack: 8 bytes, StackMagic
	CPUOff   int32 // 4 bytes, number of the vCPU
	TaskOff  int32 // by GS: 8 bytes, address of the task's structure
	PIDOff   int32 // 4 bytes, number of the thread
	TGIDOff  int32 // 4 bytes, number of its thread group
	CommOff  int32 // ProfileCommSize bytes, the name, padded with NULs

	// Faults, by GS, says how kernel code accesses memory that may not be there; nil:
	// not known.
	Faults *FaultProfile

	StateOff int32  // by GS: 4 bytes, the task's state
	Dead     uint32 // by GS: bits of the state which say that the task never runs again; 0: not known

	Flags   ProfileFlags // in the image; the guest may have changed them
	FlagsAt GVA          // where the guest keeps them, 8 bytes
}

// FaultProfile says how code in a kernel like Linux loads from memory that may not be
// there, wherever a kernel probe can be, with interrupts off. While the task's count
// is not 0 the kernel does not wait for missing user memory. A load that faults makes
// it call Fixup with the address of struct pt_regs, which may set RIP there and return
// 1; then the kernel resumes at that RIP. The fields are in the running task's
// structure.
type FaultProfile struct {
	Fixup string // a function of the kernel

	CountOff int32 // 4 bytes
	StackOff int32 // 8 bytes, the lowest address of the task's stack

	// If a bit of SignalMask is set in the byte at SignalOff, the kernel sends the
	// task a signal for a fault that was fixed up.
	SignalOff  int32
	SignalMask uint8 // 0: it never does

	// SMAP says that RFLAGS.AC must be set for loads from user memory, and that the
	// processor has stac.
	SMAP bool
}

// Profile returns the image's profile. If the image has none, the error wraps
// ErrSymbolNotFound; if it is invalid, the error is an *ImageError or an
// *AmbiguousSymbolError.
func (img *Image) Profile() (Profile, error) {
	s, err := img.lookupExact(SymProfile)
	if err != nil {
		return Profile{}, err
	}
	b := img.bytesAt(s.Addr, ProfileSize)
	switch {
	case b == nil:
		return Profile{}, damagedError(SymProfile, "its %d bytes at %v are not in the file", ProfileSize, s.Addr)
	case s.Addr%8 != 0:
		return Profile{}, damagedError(SymProfile, "address %v is not a multiple of 8", s.Addr)
	}
	p, err := parseProfile(b)
	if err != nil {
		return Profile{}, err
	}
	p.FlagsAt = s.Addr + ProfileFlagsAt
	return p, nil
}

// FlagsAt returns the address of the guest's ProfileFlags: in its profile or, in an
// image without one, at SymFlags. It fails as Profile does; the error wraps
// ErrSymbolNotFound if the image has neither.
func (img *Image) FlagsAt() (GVA, error) {
	p, err := img.Profile()
	if err == nil || !errors.Is(err, ErrSymbolNotFound) {
		return p.FlagsAt, err
	}
	s, err := img.lookupExact(SymFlags)
	if err != nil {
		return 0, err
	}
	switch {
	case s.Addr%8 != 0:
		return 0, damagedError(SymFlags, "address %v is not a multiple of 8", s.Addr)
	case img.bytesAt(s.Addr, 8) == nil:
		return 0, damagedError(SymFlags, "its 8 bytes at %v are not in the file", s.Addr)
	}
	return s.Addr, nil
}

// parseProfile decodes and checks the ProfileSize bytes of a profile.
func parseProfile(b []byte) (Profile, error) {
	off := func(at int) int32 { return int32(le32(b[at:])) }
	p := Profile{
		StackMask: le64(b[ProfileStackMask:]), StackMagic: le64(b[ProfileStackMagic:]), Flags: ProfileFlags(le64(b[ProfileFlagsAt:])),
		MagicOff: off(ProfileMagicOff), CPUOff: off(ProfileCPUOff), PIDOff: off(ProfilePIDOff), TGIDOff: off(ProfileTGIDOff), CommOff: off(ProfileCommOff),
	}
	size := -p.StackMask
	switch magic := le64(b[ProfileMagicAt:]); {
	case magic != ProfileMagic:
		return Profile{}, damagedError(SymProfile, "magic %#x, not %#x", magic, uint64(ProfileMagic))
	case bits.OnesCount64(size) != 1 || size < MinProfileStack || size > MaxProfileStack:
		return Profile{}, damagedError(SymProfile, "stack mask %#x is not that of a power of two from %d to %d", p.StackMask, MinProfileStack, MaxProfileStack)
	case p.StackMagic == 0:
		return Profile{}, damagedError(SymProfile, "the magic of stacks is 0")
	}
	for _, f := range []struct {
		name        string
		off         int32
		size, align int32
	}{
		{"magic", p.MagicOff, 8, 8}, {"vCPU", p.CPUOff, 4, 4}, {"pid", p.PIDOff, 4, 4}, {"tgid", p.TGIDOff, 4, 4}, {"comm", p.CommOff, ProfileCommSize, 1},
	} {
		if f.off < 0 || f.off > int32(size)-f.size || f.off%f.align != 0 {
			return Profile{}, damagedError(SymProfile, "%s at offset %d: want a multiple of %d within the stack's %d bytes", f.name, f.off, f.align, size)
		}
	}
	return p, nil
}

// Task is the running task, found by a profile, as reported by the guest.
type Task struct {
	CPU, PID, TGID uint32
	Comm           [ProfileCommSize]byte // the name, padded with NULs
	At             GVA                   // of its structure

	buf [taskWindow]byte // the bytes read
}

// taskWindow is the largest distance between the fields of a task for reading them at
// once.
const taskWindow = 128

// ReadTask finds the task that runs with stack pointer rsp, on a vCPU whose GS base
// for the kernel is gs, through read, which fills p from the guest's memory at an
// address or fails, and fills in t. It returns false, with t invalid, if no task is
// known there. It does not allocate.
func (p *Profile) ReadTask(t *Task, rsp uint64, gs GVA, read func(addr GVA, p []byte) error) bool {
	t.At = GVA(rsp & p.StackMask)
	from := min(p.PIDOff, p.TGIDOff, p.CommOff)
	end := max(p.PIDOff+4, p.TGIDOff+4, p.CommOff+ProfileCommSize)
	if p.GS {
		if gs == 0 || read(gs+GVA(p.CPUOff), t.buf[:4]) != nil {
			return false
		}
		t.CPU = le32(t.buf[:])
		if read(gs+GVA(p.TaskOff), t.buf[:8]) != nil {
			return false
		}
		t.At = GVA(le64(t.buf[:]))
	} else {
		from, end = min(from, p.MagicOff, p.CPUOff), max(end, p.MagicOff+8, p.CPUOff+4)
	}
	if !p.GS && !t.At.Canonical() { // with 5-level tables an address has 57 bits
		return false
	}
	whole := end-from <= taskWindow && read(t.At+GVA(from), t.buf[:end-from]) == nil
	field := func(off, size int32) []byte {
		if whole {
			return t.buf[off-from:][:size]
		}
		if read(t.At+GVA(off), t.buf[:size]) != nil {
			return nil
		}
		return t.buf[:size]
	}
	if !p.GS {
		if b := field(p.MagicOff, 8); b == nil || le64(b) != p.StackMagic {
			return false
		}
	}
	numbers := [...]struct {
		off int32
		to  *uint32
	}{{p.PIDOff, &t.PID}, {p.TGIDOff, &t.TGID}, {p.CPUOff, &t.CPU}}
	inTask := len(numbers)
	if p.GS {
		inTask--
	}
	for _, f := range numbers[:inTask] {
		b := field(f.off, 4)
		if b == nil {
			return false
		}
		*f.to = le32(b)
	}
	b := field(p.CommOff, ProfileCommSize)
	copy(t.Comm[:], b)
	return b != nil
}

// Gone reports whether the task of number pid, which was once on the stack that
// contains place or, by GS, had its structure at at, is known to be gone. If memory
// cannot be read the result is false. buf has room for 8 bytes.
func (p *Profile) Gone(place uint64, at GVA, pid uint32, buf []byte, read func(addr GVA, p []byte) error) bool {
	if !p.GS {
		at = GVA(place & p.StackMask)
		if read(at+GVA(p.MagicOff), buf[:8]) != nil {
			return false
		}
		if le64(buf) != p.StackMagic {
			return true
		}
	}
	switch {
	case at == 0 || read(at+GVA(p.PIDOff), buf[:4]) != nil:
		return false
	case le32(buf) != pid:
		return true
	}
	return p.GS && p.Dead != 0 && read(at+GVA(p.StateOff), buf[:4]) == nil && le32(buf)&p.Dead != 0
}
