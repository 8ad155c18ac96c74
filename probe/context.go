package probe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Context is a handler's view of one hit. It is valid only until the handler returns;
// there is one per vCPU, reused for every hit.
type Context struct {
	CPU   int       // vCPU number
	Probe *Kprobe   // the probe whose handler runs; nil in a watch's handler
	Addr  guest.GVA // the probed address
	Regs  *Regs     // saved registers; changes take effect
	Root  guest.GPA // the top-level page table of the interrupted code, a multiple of 4096
	CPL   uint8     // 0 or 3

	// Ret and Data are for the handlers of a kretprobe: the address that the function
	// returns to, and the instance's private memory, of the requested size, which the
	// return handler finds as the entry handler left it. It is not cleared between
	// activations.
	Ret  guest.GVA
	Data []byte

	// Watched is for the handlers of a watch: the access. Addr is then the address
	// of the instruction that made it.
	Watched Watched

	cpu   *cpu
	tally *tally
}

// ErrCallLater is wrapped by errors of a target that cannot run a guest function now,
// but may be able to later: the guest is paused, has not started its kernel yet, or
// is busy with an earlier call.
var ErrCallLater = errors.New("try again later")

// ErrNoGuestCall is returned by Context.Call if the target cannot run a guest
// function from within a handler.
var ErrNoGuestCall = errors.New("this target cannot call guest functions from a handler")

// Read reads guest memory as the interrupted code sees it. A bad address is an error,
// counted in Stats.BadAccesses, and has no other effect.
func (c *Context) Read(addr guest.GVA, p []byte) error {
	err := c.cpu.target.ReadMemory(c.Root, addr, p)
	if err != nil {
		c.badAccess(addr, err)
	}
	return err
}

// Write writes guest memory as the interrupted code sees it. A bad address is an
// error, counted in Stats.BadAccesses, and has no other effect.
func (c *Context) Write(addr guest.GVA, p []byte) error {
	err := c.cpu.target.WriteMemory(c.Root, addr, p)
	if err != nil {
		c.badAccess(addr, err)
	}
	return err
}

// ErrProbed is returned by Context.Poke for the text of a probe.
var ErrProbed = errors.New("a probed instruction is there")

// Poke writes guest memory with the rights of the interrupted code: all of p or
// nothing. It fails for an address that may not be written, and with ErrProbed for an
// instruction that is probed or that a jump displaces, in any mapping of its page.
// The error is not counted: the address may be anything.
func (c *Context) Poke(addr guest.GVA, p []byte) error {
	if c.cpu.touched(c.Root, addr, len(p)) {
		return ErrProbed
	}
	if c.CPL == 0 {
		return c.cpu.target.WriteMemory(c.Root, addr, p)
	}
	return c.writeUser(addr, p)
}

// PokeUser is Poke with the rights of user code, at any privilege.
func (c *Context) PokeUser(addr guest.GVA, p []byte) error {
	if c.cpu.touched(c.Root, addr, len(p)) {
		return ErrProbed
	}
	return c.writeUser(addr, p)
}

func (c *Context) writeUser(addr guest.GVA, p []byte) error {
	u := c.cpu.mem.user
	if u == nil {
		return errNoUserMemory
	}
	return u.WriteUser(c.Root, addr, p)
}

// Caller returns, at a function's first instruction, the address that the function returns
// to, read with the rights of the interrupted code.
func (c *Context) Caller() (guest.GVA, error) {
	b := c.cpu.word[:]
	if err := c.ReadAsGuest(guest.GVA(c.Regs.RSP), b); err != nil {
		c.badAccess(guest.GVA(c.Regs.RSP), err)
		return 0, err
	}
	return guest.GVA(binary.LittleEndian.Uint64(b)), nil
}

// ReturnTo makes the function whose first instruction is probed return v to back, the
// result of Caller, instead of running. A pre handler that calls it must return
// nonzero.
func (c *Context) ReturnTo(back guest.GVA, v uint64) {
	c.Regs.RAX, c.Regs.RIP = v, uint64(back)
	c.Regs.RSP += 8
}

// FileCode translates an address of the interrupted code to the image's: if a byte of
// a file of the guest's is mapped there, and the image knows that file, it returns
// the image's address of that byte, and else addr.
func (c *Context) FileCode(addr guest.GVA) guest.GVA { return c.cpu.fileCode(c.Root, addr) }

// fileCode is Context.FileCode of code with the page tables at root.
func (k *core) fileCode(root guest.GPA, addr guest.GVA) guest.GVA {
	if k.files != nil && addr>>47 == 0 {
		if at, ok := k.files.FileCode(root, addr); ok {
			return at
		}
	}
	return addr
}

// Call runs the guest function at addr on this vCPU, with at most six integer
// arguments, and returns what it returned. Probes that it hits count as missed. The
// registers in c.Regs are afterwards what they were. Errors are ErrNoGuestCall and
// any error of the target.
func (c *Context) Call(addr guest.GVA, args ...uint64) (uint64, error) {
	if c.cpu.runner == nil {
		return 0, ErrNoGuestCall
	}
	if len(args) > 6 {
		return 0, fmt.Errorf("call guest function at %v: %d arguments: want at most 6", addr, len(args))
	}
	return c.cpu.runner.CallGuest(c.CPU, addr, args)
}

// Task fills in t with the interrupted task, by the guest's profile, and reports
// whether it is known. Stacks are read with the rights of the interrupted code, the
// kernel's data with the kernel's.
func (c *Context) Task(t *guest.Task) bool {
	p := c.cpu.tasks.Load()
	return p != nil && c.cpu.readTask(p, t, State{Regs: c.Regs, Root: c.Root, CPL: c.CPL})
}

// ReadAsKernel reads the memory of the guest's kernel with the kernel's rights, also when user code was interrupted: its page
// tables may lack the kernel (page-table isolation), so those are used that the kernel was booted with. Unlike Read it does not count
// errors: the address may be anything.
func (c *Context) ReadAsKernel(addr guest.GVA, p []byte) error {
	root := c.Root
	if c.CPL != 0 {
		root = 0
	}
	return c.cpu.target.ReadMemory(root, addr, p)
}

// ReadAsGuest reads guest memory with the rights of the interrupted code: at CPL3
// memory that only the kernel may read is an error, as it would be a fault there.
// Unlike Read it does not count errors: the address may be anything.
func (c *Context) ReadAsGuest(addr guest.GVA, p []byte) error {
	if c.CPL == 0 {
		return c.cpu.target.ReadMemory(c.Root, addr, p)
	}
	u := c.cpu.mem.user
	if u == nil {
		return errNoUserMemory
	}
	return u.ReadUser(c.Root, addr, p)
}
