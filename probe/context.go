package probe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Context is what a handler sees of one hit. It is valid only until the
// handler returns; there is one per vCPU, reused for every hit.
type Context struct {
	CPU   int       // vCPU number
	Probe *Kprobe   // whose handler runs; nil in that of a watch
	Addr  guest.GVA // the probed address
	Regs  *Regs     // saved registers; changes take effect
	Root  guest.GPA // the top-level page table of the interrupted code, a multiple of 4096
	CPL   uint8     // 0 or 3

	// Ret and Data are for the handlers of a kretprobe: the address that the
	// function returns to, and the instance's private memory, of the size asked
	// for, which the return handler finds as the entry handler left it. It is not
	// cleared between activations.
	Ret  guest.GVA
	Data []byte

	// Watched is for the handlers of a watch: the access. Addr is then the address
	// of the instruction that made it.
	Watched Watched

	cpu   *cpu
	tally *tally
}

// ErrNoGuestCall is returned by Context.Call when the target cannot run a guest
// function from within a handler.
var ErrNoGuestCall = errors.New("this target cannot call guest functions from a handler")

// Read reads guest memory as the interrupted code sees it. A bad address is an
// error, counted in Stats.BadAccesses, and does no other harm.
func (c *Context) Read(addr guest.GVA, p []byte) error {
	err := c.cpu.target.ReadMemory(c.Root, addr, p)
	if err != nil {
		c.badAccess(addr, err)
	}
	return err
}

// Write writes guest memory as the interrupted code sees it. A bad address is
// an error, counted in Stats.BadAccesses, and does no other harm.
func (c *Context) Write(addr guest.GVA, p []byte) error {
	err := c.cpu.target.WriteMemory(c.Root, addr, p)
	if err != nil {
		c.badAccess(addr, err)
	}
	return err
}

// ErrProbed is returned by Context.Poke for the text of a probe.
var ErrProbed = errors.New("a probed instruction is there")

// Poke writes guest memory with the rights of the interrupted code: all of p or nothing. An
// address that may not be written, and with ErrProbed one of an instruction that is probed
// or that a jump displaces, in whatever mapping of its page, is an error, which is not
// counted: the address may be anything.
func (c *Context) Poke(addr guest.GVA, p []byte) error {
	if c.cpu.touched(c.Root, addr, len(p)) {
		return ErrProbed
	}
	if c.CPL == 0 {
		return c.cpu.target.WriteMemory(c.Root, addr, p)
	}
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

// ReturnTo makes the function whose first instruction is probed return v to back, which
// Caller has said, instead of running. A pre handler that calls it must return nonzero.
func (c *Context) ReturnTo(back guest.GVA, v uint64) {
	c.Regs.RAX, c.Regs.RIP = v, uint64(back)
	c.Regs.RSP += 8
}

// FileCode returns what the image has for an address of the interrupted code's: that of the byte
// of a file of the guest's which is mapped there, if the image knows that file, and else addr.
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
// arguments, and returns what it returned. Probes that it hits count as missed.
// The registers in c.Regs are afterwards what they were. Errors are
// ErrNoGuestCall and those of the target.
func (c *Context) Call(addr guest.GVA, args ...uint64) (uint64, error) {
	if c.cpu.runner == nil {
		return 0, ErrNoGuestCall
	}
	if len(args) > 6 {
		return 0, fmt.Errorf("call guest function at %v: %d arguments: want at most 6", addr, len(args))
	}
	return c.cpu.runner.CallGuest(c.CPU, addr, args)
}

// Task fills in t with the task that was interrupted, as the guest's profile says, and
// reports whether it is known. What a stack says is read with the rights of the
// interrupted code, what the kernel says with its own.
func (c *Context) Task(t *guest.Task) bool {
	p := c.cpu.tasks.Load()
	return p != nil && c.cpu.readTask(p, t, State{Regs: c.Regs, Root: c.Root, CPL: c.CPL})
}

// ReadAsGuest reads guest memory with the rights of the interrupted code: at CPL3
// what only the kernel may read is an error, as it would be a fault there. Unlike
// Read it does not count errors: the address may be anything.
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
